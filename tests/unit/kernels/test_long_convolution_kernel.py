"""The packed long convolution against its reference in float64, and that against a sum."""

import pytest
import torch

from argap.kernels.convolution.long_convolution import (
    fast_size,
    filter_spectrum,
    long_convolution_reference,
    packed_convolution,
    toeplitz_product,
)
from tests.unit.kernels.conftest import TOLERANCE, relative_error

pytestmark = pytest.mark.usefixtures("kernels_run")


def test_the_reference_is_the_sum() -> None:
    torch.manual_seed(0)
    x, taps = torch.randn(2, 9, 3, dtype=torch.float64), torch.randn(7, 3, dtype=torch.float64)
    y = long_convolution_reference(x, taps)
    for t in range(9):
        expected = sum(taps[s] * x[:, t - s] for s in range(min(t + 1, 7)))
        torch.testing.assert_close(y[:, t], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("length", "taps"), [(1, 1), (9, 7), (40, 40), (9, 12)])
def test_products_are_the_reference_with_its_gradients(length: int, taps: int) -> None:
    torch.manual_seed(length)
    x, h, dy = (torch.randn(size, dtype=torch.float64) for size in ((2, length, 3), (taps, 3), (2, length, 3)))
    given = x.requires_grad_(), h.requires_grad_()
    found, expected = toeplitz_product(*given), long_convolution_reference(x, h[:length])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    pairs = zip(torch.autograd.grad(found, given, dy), torch.autograd.grad(expected, given, dy), strict=True)
    for gradient, other in pairs:
        torch.testing.assert_close(gradient, other, rtol=0, atol=1e-12)


def test_sequences_of_a_pair_and_runs_are_apart(device: torch.device) -> None:
    torch.manual_seed(1)
    x, spectrum = torch.randn(2, 65, 8, device=device), filter_spectrum(torch.randn(65, 8, device=device), 65)
    found = packed_convolution(x, spectrum)
    assert torch.equal(found, packed_convolution(x, spectrum))
    x[1] *= 1000
    changed = packed_convolution(x, spectrum)
    # The pair shares a transform: what is 1,000 times larger leaves roundings of its own size.
    assert relative_error(changed[0], found[0].double()) < 1000 * TOLERANCE[torch.float32]
    assert relative_error(changed[1], 1000 * found[1].double()) < TOLERANCE[torch.float32]


def test_sizes_are_fast() -> None:
    assert [fast_size(least) for least in (1, 2, 3, 5, 6, 7, 9, 11, 13, 4095, 4097, 999)] == [
        1, 2, 3, 5, 6, 8, 10, 12, 16, 4096, 5120, 1024,
    ]  # fmt: skip


@pytest.mark.gpu
def test_offsets_beyond_32_bits(device: torch.device) -> None:
    length = 2**12  # no one kernel takes it
    x = torch.zeros(10, length, 2**16, dtype=torch.float16, device=device)  # 2.7 · 10⁹ elements
    x[-1, :, -8:] = torch.randn(length, 8).to(x)
    taps = torch.randn(length, 2**16, device=device)
    expected = long_convolution_reference(x[-1:, :, -8:].double(), taps[:, -8:].double())
    found = packed_convolution(x, filter_spectrum(taps, length))
    assert relative_error(found[-1:, :, -8:], expected) < TOLERANCE[torch.float16]
