"""The ops with kernels: what each computes, what runs it on this machine, and its launch configurations."""

from dataclasses import asdict, dataclass
from importlib import import_module

import torch

from argap.kernels.launch import LaunchTable, device_class, triton

OPS = (
    "linear_logprob",
    "linear_attention",
    "gla",
    "taylor_attention",
    "delta_rule",
    "short_convolution",
    "selective_scan",
    "wkv",
    "long_convolution",
    "residual_norm",
    "rotary",
    "gated_product",
    "gated_norm",
    "token_shift",
)
"""Each names a module of this package and a function in it."""

PARTS = {
    "delta_rule": ("delta_rule_inverse",),
    "long_convolution": ("one_kernel_convolution", "toeplitz_convolution", "trained_convolution"),
    "selective_scan": ("selective_scan_backward",),
    "taylor_attention": ("taylor_sums",),
}
"""Further modules with launch tables of an op."""


@dataclass(frozen=True)
class Configuration:
    """One row of a launch table."""

    kernel: str
    device: str
    """A device class; ``any`` serves those without rows of their own."""
    shape: str
    """A shape class, whose meaning is the kernel's own."""
    blocks: dict[str, int]
    warps: int
    stages: int
    used_here: bool
    """Whether the row's device class is the one that serves this machine's GPU."""


@dataclass(frozen=True)
class Op:
    """What ``argap kernels`` prints about an op."""

    name: str
    about: str
    runs: str
    """``triton`` or ``reference``: what the op runs on this machine without gradients."""
    configurations: list[Configuration]

    def to_json(self) -> dict:
        return asdict(self)


def device() -> torch.device:
    """This machine's GPU, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def describe(name: str) -> Op:
    """The op ``name``, one of `OPS`, on this machine's `device`."""
    module = import_module(f"argap.kernels.{name}")
    parts = [module, *(import_module(f"argap.kernels.{part}") for part in PARTS.get(name, ()))]
    tables = [value for part in parts for value in vars(part).values() if isinstance(value, LaunchTable)]
    runs = "triton" if tables and triton is not None and device().type == "cuda" else "reference"
    about = (module.__doc__ or "").strip().splitlines()[0].rstrip(".")
    return Op(name, about, runs, [row for table in tables for row in _rows(table, runs == "triton")])


def _rows(table: LaunchTable, on_gpu: bool) -> list[Configuration]:
    here = device_class(device())
    taken = here if here in table.by_device else "any"
    return [
        Configuration(table.kernel, on, shape, dict(launch.blocks), launch.warps, launch.stages, on_gpu and on == taken)
        for on, launches in table.by_device.items()
        for shape, launch in launches.items()
    ]
