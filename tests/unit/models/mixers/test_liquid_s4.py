"""Liquid-S4 against its sums as loops and against the liquid recurrence that it comes from; its cost."""

import cmath
import math
from typing import Any

import pytest
import torch

from argap.models.mixers.liquid_s4 import LiquidS4
from tests.builders.weights import redraw


def discrete(mixer: LiquidS4, channel: int) -> list[tuple[complex, complex, complex]]:
    """Ā, B̄ and C of each state of a channel, by the formulas of zero-order hold."""
    ssm = mixer.ssm
    assert ssm.input is not None
    found = []
    for n in range(ssm.frequency.shape[1]):
        a = complex(-math.exp(ssm.log_decay[channel, n]), ssm.frequency[channel, n])
        grown = cmath.exp(math.exp(ssm.log_step[channel]) * a)
        b = complex(*ssm.input[channel, n].tolist())
        found.append((grown, (grown - 1) / a * b, complex(*ssm.readout[channel, n].tolist())))
    return found


def finished(mixer: LiquidS4, y: list[list[float]], u: torch.Tensor) -> torch.Tensor:
    """Skip, GELU and projection of a state space model's output ``[T, D]``."""
    z = torch.tensor(y, dtype=torch.float64) + mixer.skip * u
    return (z * 0.5 * (1 + torch.erf(z / math.sqrt(2)))) @ mixer.out.weight.T


@pytest.mark.parametrize("kernel", ["pb", "kb"])
@torch.no_grad()
def test_liquid_s4_is_the_papers_sum(kernel: Any) -> None:
    torch.manual_seed(0)
    width, length, degree = 3, 36, 3
    mixer = redraw(LiquidS4(width, kernel=kernel, degree=degree, states=4).double(), 0.7)
    u = torch.randn(length, width, dtype=torch.float64)
    y = [[0.0] * width for _ in range(length)]
    for c in range(width):
        for t in range(length):
            for s in range(t + 1):  # all that entered s steps ago
                product = 1.0
                for p in range(1, min(degree, t - s + 1) + 1):
                    product *= float(u[t - s - p + 1, c])
                    if kernel == "kb" or p == 1 or s == 0:
                        tap = sum(2 * (out * grown**s * into**p).real for grown, into, out in discrete(mixer, c))
                        y[t][c] += tap * product
    torch.testing.assert_close(mixer(u[None])[0], finished(mixer, y, u), rtol=1e-11, atol=1e-11)


@torch.no_grad()
def test_kb_is_the_liquid_recurrence_where_it_ends_with_the_second_input() -> None:
    """With two inputs the only product is that of consecutive ones: nothing of the recurrence is left out."""
    torch.manual_seed(1)
    width = 3
    mixer = redraw(LiquidS4(width, kernel="kb", states=4).double(), 0.7)
    u = torch.randn(2, width, dtype=torch.float64)
    y = [[0.0] * width for _ in range(2)]
    for c in range(width):
        for grown, into, out in discrete(mixer, c):
            x = 0j
            for t in range(2):
                x = (grown + into * float(u[t, c])) * x + into * float(u[t, c])
                y[t][c] += 2 * (out * x).real
    torch.testing.assert_close(mixer(u[None])[0], finished(mixer, y, u), rtol=1e-11, atol=1e-11)
