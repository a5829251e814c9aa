"""The ops with kernels: what each computes, what runs it on this machine, and its launch configurations."""

from dataclasses import asdict, dataclass
from importlib import import_module

import torch

from argap.kernels.launch import LaunchTable, device_class, triton

OPS: dict[str, tuple[str, ...]] = {
    "linear_logprob": ("head.linear_logprob",),
    "linear_divergence": ("head.linear_divergence",),
    "linear_attention": ("recurrent.linear_attention",),
    "gla": ("recurrent.gla",),
    "taylor_attention": ("recurrent.taylor_attention", "recurrent.taylor_sums"),
    "delta_rule": ("recurrent.delta_rule", "recurrent.delta_rule_inverse", "recurrent.decayed_pairs"),
    "sliding_attention": ("attention.sliding_attention",),
    "generalized_delta_rule": ("recurrent.generalized_delta_rule", "recurrent.chunk_transitions"),
    "short_convolution": ("convolution.short_convolution",),
    "selective_scan": ("scan.selective_scan", "scan.selective_scan_backward"),
    "diagonal_scan": ("scan.diagonal_scan",),
    "wkv": ("recurrent.wkv",),
    "long_convolution": (
        "convolution.long_convolution",
        "convolution.one_kernel_convolution",
        "convolution.toeplitz_convolution",
        "convolution.trained_convolution",
    ),
    "residual_norm": ("fused.residual_norm",),
    "rotary": ("fused.rotary",),
    "gated_product": ("fused.gated_product",),
    "gated_norm": ("fused.gated_norm",),
    "step_decay": ("fused.step_decay",),
    "token_shift": ("fused.token_shift",),
    "weighted_rows": ("fused.weighted_rows",),
}
"""Modules of each op below `argap.kernels`: its own, which has a function of its name, then others with launch
tables."""


@dataclass(frozen=True)
class Configuration:
    """One row of a launch table."""

    kernel: str
    device: str
    """A device class; ``any`` serves devices without rows of their own."""
    shape: str
    """A shape class, whose meaning is the kernel's own."""
    blocks: dict[str, int]
    warps: int
    stages: int
    used_here: bool
    """Whether the row's device class serves this machine's GPU."""


@dataclass(frozen=True)
class Op:
    """An op as ``argap kernels`` prints it."""

    name: str
    about: str
    runs: str
    """``triton`` or ``reference``: what the op runs on this machine without gradients."""
    configurations: list[Configuration]

    def to_json(self) -> dict:
        return asdict(self)


def device() -> torch.device:
    """Return this machine's GPU, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def describe(name: str) -> Op:
    """Describe the op ``name``, one of `OPS`, on this machine's `device`."""
    modules = [import_module(f"argap.kernels.{module}") for module in OPS[name]]
    tables = [value for part in modules for value in vars(part).values() if isinstance(value, LaunchTable)]
    runs = "triton" if tables and triton is not None and device().type == "cuda" else "reference"
    about = (modules[0].__doc__ or "").strip().splitlines()[0].rstrip(".")
    return Op(name, about, runs, [row for table in tables for row in _rows(table, runs == "triton")])


def _rows(table: LaunchTable, on_gpu: bool) -> list[Configuration]:
    here = device_class(device())
    taken = here if here in table.by_device else "any"
    return [
        Configuration(table.kernel, on, shape, dict(launch.blocks), launch.warps, launch.stages, on_gpu and on == taken)
        for on, launches in table.by_device.items()
        for shape, launch in launches.items()
    ]
