"""Sliding-window attention against softmax over a masked square."""

import pytest
import torch

from argap.kernels.attention.sliding_attention import sliding_attention
from tests.unit.kernels.conftest import TOLERANCE


def masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """In float64: position i sees i − w + 1 to i."""
    q, k, v = q.double(), k.double(), v.double()
    length = q.shape[2]
    back = torch.arange(length, device=q.device)[:, None] - torch.arange(length, device=q.device)
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill((back < 0) | (back >= window), -torch.inf)
    return scores.softmax(dim=-1) @ v


@pytest.mark.parametrize("window", [1, 2, 64, 1000])
@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 500])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, pytest.param(torch.bfloat16, marks=pytest.mark.gpu)])
def test_it_is_masked_attention(length: int, window: int, dtype: torch.dtype, device: torch.device) -> None:
    torch.manual_seed(length)
    q, k, v = (torch.randn(2, length, 3, 16).to(device, dtype).transpose(1, 2) for _ in range(3))
    found = sliding_attention(q, k, v, window)
    expected = masked(q, k, v, window)
    assert found.dtype == dtype
    assert torch.equal(sliding_attention(q, k, v, window), found)
    assert (found.double() - expected).norm() < TOLERANCE.get(dtype, 1e-12) * expected.norm()
