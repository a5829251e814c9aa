"""Launch configurations: the block sizes, warps and pipeline stages that a kernel runs with.

They were measured once and stand beside their kernel, one for each device class and shape class. Nothing
is tuned while a program runs: a first call costs one compilation, ragged lengths cost none, and the same
input gives the same bits on the same device.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import torch

HOPPER = (9, 0)


@dataclass(frozen=True)
class Launch:
    """How one kernel is launched on one class of shapes."""

    blocks: Mapping[str, int]
    """The kernel's block sizes (its ``tl.constexpr`` arguments) by name."""
    warps: int = 4
    """Warps of 32 threads a program."""
    stages: int = 2
    """Iterations of a loop whose loads are in flight together."""

    def arguments(self) -> dict[str, int]:
        """As keyword arguments of a launch."""
        return {**self.blocks, "num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True)
class LaunchTable:
    """The configurations of one kernel: device class, then shape class."""

    kernel: str
    by_device: Mapping[str, Mapping[str, Launch]]
    """Holds ``any``; a device class that is not there takes that."""

    def at(self, device: torch.device, shape_class: str) -> Launch:
        """The configuration for ``shape_class`` on ``device``."""
        found = self.by_device.get(device_class(device), self.by_device["any"])
        return found[shape_class]


@cache
def device_class(device: torch.device) -> str:
    """``hopper`` (compute capability 9.0: H100, H200) or ``any``."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) == HOPPER:
        return "hopper"
    return "any"
