"""The long convolution, by packed transforms and in one kernel, against sums, float32 transforms and each other."""

import pytest
import torch

import argap.kernels.convolution.one_kernel_convolution as module
from argap.kernels.convolution.long_convolution import (
    fast_size,
    filter_spectrum,
    long_convolution_reference,
    packed_convolution,
    toeplitz_product,
)
from argap.kernels.convolution.one_kernel_convolution import (
    one_kernel_convolution,
    one_kernel_size,
    one_kernel_spectrum,
)
from argap.kernels.launch import Launch, LaunchTable
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
@pytest.mark.alone
def test_offsets_beyond_32_bits(device: torch.device) -> None:
    length = 2**12  # no one kernel takes it
    x = torch.zeros(10, length, 2**16, dtype=torch.float16, device=device)  # 2.7 · 10⁹ elements
    x[-1, :, -8:] = torch.randn(length, 8).to(x)
    taps = torch.randn(length, 2**16, device=device)
    expected = long_convolution_reference(x[-1:, :, -8:].double(), taps[:, -8:].double())
    found = packed_convolution(x, filter_spectrum(taps, length))
    assert relative_error(found[-1:, :, -8:], expected) < TOLERANCE[torch.float16]


ONE_FACTOR, TWO_FACTORS = Launch({"P": 16, "Q": 16, "C": 4}, warps=2), Launch({"P": 16, "Q": 8, "C": 4}, warps=4)


def convolution(x: torch.Tensor, taps: torch.Tensor, launch: Launch) -> torch.Tensor:
    return one_kernel_convolution(x, one_kernel_spectrum(taps, x.shape[1], launch), launch)


@pytest.mark.parametrize("launch", [ONE_FACTOR, TWO_FACTORS], ids=["Q", "Q, R"])
def test_it_rounds_as_a_float32_transform_does(launch: Launch, device: torch.device) -> None:
    torch.manual_seed(0)
    size = 256 if launch is ONE_FACTOR else 1024
    x, taps = torch.randn(2, size, 8, device=device), torch.randn(size, 8, device=device)
    exact = long_convolution_reference(x.double(), taps.double())
    torchs = relative_error(long_convolution_reference(x, taps), exact)
    assert relative_error(convolution(x, taps, launch), exact) < 1.5 * torchs


def test_what_wraps_around_stays_out(device: torch.device) -> None:
    # x has its only 1 at the last position, so that all of the filter but its first tap wraps around.
    x, taps = torch.zeros(1, 256, 4, device=device), torch.ones(256, 4, device=device)
    x[:, -1] = 1
    expected = torch.zeros(1, 256, 4, device=device)
    expected[:, -1] = 1
    torch.testing.assert_close(convolution(x, taps, ONE_FACTOR), expected, rtol=0, atol=2e-6)


def test_sequences_are_apart_and_runs_are_equal(device: torch.device) -> None:
    torch.manual_seed(1)
    x, taps = torch.randn(2, 200, 4, device=device), torch.randn(200, 4, device=device)
    found = convolution(x, taps, ONE_FACTOR)
    assert torch.equal(found, convolution(x, taps, ONE_FACTOR))
    x[1] *= 1024
    changed = convolution(x, taps, ONE_FACTOR)
    assert torch.equal(changed[0], found[0])
    assert torch.equal(changed[1], 1024 * found[1])  # a power of 2: the same roundings


def test_a_row_of_the_table_turns_it_on(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    x, taps = torch.randn(1, 250, 4, device=device), torch.randn(250, 4, device=device)
    monkeypatch.setattr(
        module, "LAUNCHES", LaunchTable("", {"any": {"256": ONE_FACTOR}, "hopper": {"256": ONE_FACTOR}})
    )
    spectrum = filter_spectrum(taps, 250)
    assert spectrum.shape == (2, 256, 4)
    assert torch.equal(packed_convolution(x, spectrum), convolution(x, taps, ONE_FACTOR))
    assert filter_spectrum(taps, 257).is_complex()


def test_sizes_are_powers_of_two() -> None:
    assert [one_kernel_size(length) for length in (1, 255, 256, 257, 2048, 2049)] == [256, 256, 256, 512, 2048, 4096]


@pytest.mark.gpu
@pytest.mark.alone
def test_offsets_of_one_kernel_beyond_32_bits(device: torch.device) -> None:
    x = torch.zeros(18, 2**11, 2**16, dtype=torch.float16, device=device)  # 2.4 · 10⁹ elements
    x[-1, :, -8:] = torch.randn(2**11, 8).to(x)
    taps = torch.randn(2**11, 2**16, device=device)
    expected = long_convolution_reference(x[-1:, :, -8:].double(), taps[:, -8:].double())
    found = convolution(x, taps, Launch({"P": 16, "Q": 16, "C": 4}, warps=16))
    assert relative_error(found[-1:, :, -8:], expected) < TOLERANCE[torch.float16]
