"""Multi-head Hyena against its sum over keys in loops, its cost, and what it refuses."""

import pytest
import torch

from argap.models.mixers.multihead_hyena import MultiheadHyena
from tests.builders.weights import redraw


@pytest.mark.parametrize(("heads", "length"), [(1, 9), (2, 12), (4, 40)])  # 40 taps by FFT
@torch.no_grad()
def test_each_key_is_compared_with_the_query(heads: int, length: int) -> None:
    torch.manual_seed(0)
    width = 4
    mixer = MultiheadHyena(width, length, heads=heads).double()
    redraw(mixer, 0.7)
    u = torch.randn(length, width, dtype=torch.float64)
    assert mixer.short.bias is not None
    short = []
    for t in range(length):
        taps = min(3, t + 1)
        short.append(sum(mixer.short.weight[s] * (mixer.projection.weight @ u[t - s]) for s in range(taps)))
        short[-1] = short[-1] + mixer.short.bias
    q, k, v = torch.stack(short).chunk(3, dim=1)
    filters, size = mixer.filter(length), width // heads
    for t in range(length):
        y = torch.zeros(width, dtype=torch.float64)
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            for s in range(t + 1):
                weight = filters[s, head] + (mixer.skip[head] if s == 0 else 0)
                y[own] += weight * (q[t, own] @ k[t - s, own]) * v[t - s, own]
        torch.testing.assert_close(mixer(u[None])[0, t], mixer.out.weight @ y, rtol=0, atol=1e-10)


@torch.no_grad()
def test_a_key_of_one_distance_is_recalled_by_hand() -> None:
    """One head, unit keys e₁ and e₂, a filter of ones: the query e₁ reads the values of all keys e₁."""
    mixer = MultiheadHyena(2, 4, heads=1, short_kernel=1).double()
    mixer.filter.forward = lambda taps: torch.ones(taps, 1, dtype=torch.float64)  # type: ignore[method-assign]
    torch.nn.init.zeros_(mixer.skip)
    torch.nn.init.ones_(mixer.short.weight)
    assert mixer.short.bias is not None
    torch.nn.init.zeros_(mixer.short.bias)
    mixer.projection.weight.copy_(torch.eye(2).repeat(3, 1))
    mixer.out.weight.copy_(torch.eye(2))
    x = torch.tensor([[[1.0, 0.0], [0.0, 3.0], [2.0, 0.0]]], dtype=torch.float64)
    # Position 2: keys and values (1, 0), (0, 3), (2, 0), query (2, 0): 2·1·(1, 0) + 0 + 2·2·(2, 0).
    assert mixer(x)[0].tolist() == [[1.0, 0.0], [0.0, 27.0], [10.0, 0.0]]
