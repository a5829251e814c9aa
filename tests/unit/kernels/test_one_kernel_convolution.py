"""The long convolution in one kernel against the reference in float64."""

import pytest
import torch

import argap.kernels.convolution.one_kernel_convolution as module
from argap.kernels.convolution.long_convolution import (
    filter_spectrum,
    long_convolution_reference,
    packed_convolution,
)
from argap.kernels.convolution.one_kernel_convolution import (
    one_kernel_convolution,
    one_kernel_size,
    one_kernel_spectrum,
)
from argap.kernels.launch import Launch, LaunchTable
from tests.unit.kernels.conftest import TOLERANCE, relative_error

ONE_FACTOR, TWO_FACTORS = Launch({"P": 16, "Q": 16, "C": 4}, warps=2), Launch({"P": 16, "Q": 8, "C": 4}, warps=4)

pytestmark = pytest.mark.usefixtures("kernels_run")


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
def test_offsets_beyond_32_bits(device: torch.device) -> None:
    x = torch.zeros(18, 2**11, 2**16, dtype=torch.float16, device=device)  # 2.4 · 10⁹ elements
    x[-1, :, -8:] = torch.randn(2**11, 8).to(x)
    taps = torch.randn(2**11, 2**16, device=device)
    expected = long_convolution_reference(x[-1:, :, -8:].double(), taps[:, -8:].double())
    found = convolution(x, taps, Launch({"P": 16, "Q": 16, "C": 4}, warps=16))
    assert relative_error(found[-1:, :, -8:], expected) < TOLERANCE[torch.float16]
