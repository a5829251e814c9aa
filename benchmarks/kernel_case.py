"""One row of ``benchmarks/kernels.py``: an op at one shape, our kernel and its peers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

SHAPES = [(8, length, heads, size) for heads, size in ((16, 64), (8, 128)) for length in (512, 2048, 8192)]
"""Batch, positions, heads and head size of attention in linear time."""


@dataclass(frozen=True)
class Case:
    """Functions to time, and the minimum work that any implementation must do.

    The functions take no arguments and may return their output in any layout; ``check`` accepts all of them.
    """

    op: str
    shape: str
    """Printed as is: ``B 8, T 2048, H 16, D 64``."""
    flops: float
    """FLOPs of the cheapest known algorithm, as matrix products."""
    bytes: float
    """Memory traffic if each input is read once and each output written once."""
    ours: Callable[[], Any]
    check: Callable[[Any], float]
    """Computes the relative error ‖out − ref‖ / ‖ref‖ of an output against a float32 or float64 reference."""
    peers: Mapping[str, Callable[[], Any]] = field(default_factory=dict)


def relative_error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Compute ‖actual − expected‖ / ‖expected‖; infinite if any value is NaN."""
    actual, expected = actual.double(), expected.double()
    return float(((actual - expected).norm() / expected.norm()).nan_to_num(nan=float("inf")))


def first_output(function: Callable[..., Any], *inputs: Any, **options: Any) -> Callable[[], Any]:
    """Bind ``function`` to its arguments and keep only its first output."""
    return lambda: function(*inputs, **options)[0]


def turned(function: Callable[..., Any], *inputs: torch.Tensor, **options: Any) -> torch.Tensor:
    """Adapt a ``function`` of ``[B, H, T, ...]`` to inputs and first output ``[B, T, H, ...]``."""
    return function(*(x.transpose(1, 2) for x in inputs), **options)[0].transpose(1, 2)


def against(
    reference: Callable[..., torch.Tensor],
    *inputs: torch.Tensor,
    shared: Sequence[torch.Tensor] = (),
    sequences: int = 1,
    **options: Any,
) -> Callable[[torch.Tensor], float]:
    """Return a `Case.check` of the first ``sequences`` of an output ``[B, ...]`` against a float64 ``reference``.

    Its arguments are ``inputs``, each ``[B, ...]``, then those ``shared`` by all sequences.
    """

    def error(output: torch.Tensor) -> float:
        wide = [x[:sequences].double() for x in inputs] + [x.double() for x in shared]
        return relative_error(output[:sequences], reference(*wide, **options))

    return error
