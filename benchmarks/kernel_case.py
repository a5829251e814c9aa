"""One row of ``benchmarks/kernels.py``: an op at one shape, our kernel and its peers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Case:
    """What to run, and the least work that any implementation must do.

    A function takes no arguments and returns its output in any layout; ``check`` accepts the layouts of all functions.
    """

    op: str
    shape: str
    """Printed as is: ``B 8, T 2048, H 16, D 64``."""
    flops: float
    """Operations of the cheapest known form, counted as matrix products."""
    bytes: float
    """Each input read once, each output written once."""
    ours: Callable[[], Any]
    check: Callable[[Any], float]
    """The relative error ‖out − ref‖ / ‖ref‖ of an output, ours or a peer's, against a float32 or float64 reference."""
    peers: Mapping[str, Callable[[], Any]] = field(default_factory=dict)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """‖actual − expected‖ / ‖expected‖; infinite if any value is NaN."""
    actual, expected = actual.double(), expected.double()
    return float(((actual - expected).norm() / expected.norm()).nan_to_num(nan=float("inf")))


def first_output(function: Callable[..., Any], *inputs: Any, **options: Any) -> Callable[[], Any]:
    """``function`` bound to its arguments, returning its first output."""
    return lambda: function(*inputs, **options)[0]
