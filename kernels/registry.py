"""The ops that have kernels: what each is, what runs it here, and with which launch configurations."""

from dataclasses import asdict, dataclass
from importlib import import_module

import torch

from argap.kernels.language import triton
from argap.kernels.launch import LaunchTable, device_class

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
)
"""Each is a module of this package, and the function of that name in it."""

PARTS = {
    "delta_rule": ("delta_rule_inverse",),
    "long_convolution": ("one_kernel_convolution",),
    "taylor_attention": ("taylor_sums",),
}
"""Further modules that hold launches of an op."""


@dataclass(frozen=True)
class Configuration:
    """One row of a launch table."""

    kernel: str
    device: str
    """A device class: ``any`` is what the others take."""
    shape: str
    """A shape class."""
    blocks: dict[str, int]
    warps: int
    stages: int
    used_here: bool
    """Whether the device at hand takes this row rather than another class's."""


@dataclass(frozen=True)
class Op:
    """What ``argap kernels`` tells of one."""

    name: str
    about: str
    runs: str
    """``triton`` or ``reference``: what the op runs here without gradients."""
    configurations: list[Configuration]

    def to_json(self) -> dict:
        return asdict(self)


def device() -> torch.device:
    """The GPU at hand, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def describe(name: str) -> Op:
    """The op ``name`` of `OPS` on `device`."""
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
