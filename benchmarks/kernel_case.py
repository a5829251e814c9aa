"""One row of ``benchmarks/kernels.py``: an op at one shape, ours and its peers'."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Case:
    """What to run, and the least that any program for it must do.

    A function takes nothing and gives its output, whose layout is the case's own business: ``check``
    is told all of them.
    """

    op: str
    shape: str
    """As text: ``B 8, T 2048, H 16, D 64``."""
    flops: float
    """Operations of the cheapest known form, counted as matrix products."""
    bytes: float
    """Each input read once, each output written once."""
    ours: Callable[[], Any]
    check: Callable[[Any], float]
    """Relative error ‖out − ref‖ / ‖ref‖ of an output, ours or a peer's, against a reference in float32
    or float64."""
    peers: Mapping[str, Callable[[], Any]] = field(default_factory=dict)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """‖found − expected‖ / ‖expected‖; NaN is infinitely wrong."""
    found, expected = found.double(), expected.double()
    return float(((found - expected).norm() / expected.norm()).nan_to_num(nan=float("inf")))


def first_output(function: Callable[..., Any], *inputs: Any, **options: Any) -> Callable[[], Any]:
    """A call whose first output counts."""
    return lambda: function(*inputs, **options)[0]
