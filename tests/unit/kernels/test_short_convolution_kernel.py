"""The short convolution's kernel against its reference in float64, and that against a loop."""

from typing import Any

import pytest
import torch

from argap.kernels.convolution import short_convolution as short_convolution_kernel
from argap.kernels.convolution.short_convolution import short_convolution, short_convolution_reference
from tests.unit.kernels.conftest import TOLERANCE, relative_error

WIDTH = 40  # no multiple of a block

pytestmark = pytest.mark.usefixtures("kernels_run")


def kernel(*given: Any, **options: Any) -> torch.Tensor:
    return short_convolution(*given, **options)[0]


@pytest.mark.parametrize(
    ("unit_heads", "gated", "dtype"),
    [
        *(((heads, size), gated, torch.float32) for heads, size, gated in (
            (2, 16, True), (1, 20, True), (5, 8, True), (3, 5, True), (1, 1, True), (3, 5, False))),
        ((3, 5), True, torch.float16),
        pytest.param((3, 5), True, torch.bfloat16, marks=pytest.mark.gpu),
    ],
)  # fmt: skip
def test_heads_of_unit_norm(
    unit_heads: tuple[int, int], gated: bool, dtype: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several programs a row (the first of which have no other heads), of all and of part of the channels."""
    monkeypatch.setattr(short_convolution_kernel, "ROW", 16)
    torch.manual_seed(1)
    x, gate = torch.randn(2, 2, 9, WIDTH).to(device, dtype)
    taps = torch.randn(4, WIDTH).to(device, dtype)
    x[0, :5] = 0  # a norm of 0
    given = {"silu": True, "unit_heads": unit_heads}
    found = kernel(x, taps, gate=gate if gated else None, **given)
    wide = gate.double() if gated else None
    expected = short_convolution_reference(x.double(), taps.double(), gate=wide, **given)
    assert relative_error(found, expected) < TOLERANCE[dtype]
    if not gated:
        H, K = unit_heads
        norms = expected[..., : H * K].unflatten(-1, unit_heads).norm(dim=-1)
        assert torch.equal(norms[0, :5], torch.zeros(5, H).to(norms))
        torch.testing.assert_close(norms[1], torch.ones(9, H).to(norms))
        plain = short_convolution_reference(x.double(), taps.double(), silu=True)
        assert torch.equal(expected[..., H * K :], plain[..., H * K :])


def test_the_reference_is_the_definition() -> None:
    torch.manual_seed(0)
    sizes = ((2, 9, 5), (4, 5), (5,), (2, 9, 5), (2, 3, 5))
    x, taps, bias, gate, state = (torch.randn(size, dtype=torch.float64) for size in sizes)
    seen = torch.cat([state, x], dim=1)
    expected = torch.empty_like(x)
    for t in range(9):
        total = bias + sum(taps[s] * seen[:, 3 + t - s] for s in range(4))
        expected[:, t] = total * total.sigmoid() * gate[:, t]
    found, last = short_convolution(x, taps, bias, silu=True, gate=gate, state=state)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert torch.equal(last, x[:, 6:])


def test_a_result_by_channel_has_the_same_values(device: torch.device) -> None:
    torch.manual_seed(2)
    x, taps = torch.randn(2, 70, WIDTH, device=device), torch.randn(3, WIDTH, device=device)
    found = kernel(x, taps, by_channel=True)
    assert found.permute(2, 0, 1).is_contiguous()
    torch.testing.assert_close(found, kernel(x, taps), rtol=1e-6, atol=1e-6)  # another layout, another order of sums


@pytest.mark.gpu
def test_offsets_beyond_32_bits(device: torch.device) -> None:
    x = torch.zeros(2, 2**20 + 8, 1024, dtype=torch.bfloat16, device=device)  # 2³¹ elements and some
    x[1, -8:] = torch.randn(8, 1024).to(x)
    taps = torch.randn(4, 1024).to(x)
    expected = short_convolution_reference(x[1:, -8:].double(), taps.double())
    assert relative_error(kernel(x, taps)[1:, -8:], expected) < TOLERANCE[torch.bfloat16]
