"""The long convolution by products with a Toeplitz matrix against the reference in float64."""

from typing import Any

import pytest
import torch
from torch import nn

import argap.kernels.convolution.toeplitz_convolution as module
from argap.kernels.convolution.long_convolution import long_convolution_reference
from argap.kernels.convolution.toeplitz_convolution import shifted_taps, takes_products, toeplitz_convolution
from argap.kernels.launch import Launch, LaunchTable, new_by_channel
from argap.models.mixer import Mixer
from argap.models.mixers import convolution
from argap.models.mixers.convolution import by_channel
from argap.models.mixers.h3 import H3
from argap.models.mixers.hyena import Hyena
from tests.builders.weights import redraw
from tests.unit.kernels.conftest import BFLOAT16, TOLERANCE, relative_error

SQUARE, WIDE = Launch({"BM": 32, "BN": 64, "BK": 64}), Launch({"BM": 64, "BN": 128, "BK": 64})

pytestmark = pytest.mark.usefixtures("kernels_run")


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Launch:
    launch = getattr(request, "param", SQUARE)
    rows = {"any": launch}
    monkeypatch.setattr(module, "LAUNCHES", LaunchTable("", {"any": rows, "hopper": rows}))
    for used in (module, convolution):
        monkeypatch.setattr(used, "runs_kernels", lambda *tensors: not torch.is_grad_enabled())
    return launch


def drawn(*size: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """``[B, T, D]``, in memory ``[D, B, T]``."""
    x = torch.randn(size).to(device, dtype)
    return new_by_channel(x).copy_(x)


@pytest.mark.parametrize("dtype", [torch.float16, BFLOAT16])
@pytest.mark.parametrize("launch", [SQUARE, WIDE], ids=["square", "wide"], indirect=True)
@pytest.mark.parametrize(
    ("batch", "length", "taps"),
    [(1, 1, 1), (3, 63, 63), (1, 64, 1), (2, 65, 65), (8, 256, 100), (3, 272, 272), (1, 400, 129), (1, 384, 128)],
)
def test_it_is_the_reference(
    batch: int, length: int, taps: int, launch: Launch, dtype: torch.dtype, device: torch.device
) -> None:
    torch.manual_seed(length)
    x, gate = (drawn(batch, length, 3, dtype=dtype, device=device) for _ in range(2))
    filters, skip = torch.randn(taps, 3, device=device), torch.randn(3, device=device).to(dtype)
    convolved = long_convolution_reference(x.double(), filters.double())
    copies = shifted_taps(filters, length, dtype)
    assert copies.shape[2] < taps + 3 * 128  # the products end where the filter does
    found = toeplitz_convolution(x, copies)
    assert found.dtype == dtype
    assert found.stride() == new_by_channel(x).stride()
    assert relative_error(found, convolved) < TOLERANCE[dtype]
    expected = gate.double() * (convolved + skip.double() * x.double())
    found = toeplitz_convolution(x, copies, gate, skip)
    assert relative_error(found, expected) < TOLERANCE[dtype]
    assert torch.equal(found, toeplitz_convolution(x.contiguous(), copies, gate.contiguous(), skip))


@pytest.mark.parametrize(
    ("kind", "caches", "filters"), [(Hyena, ["spectra"], 2), (H3, ["shift_spectra", "spectra"], 1)]
)
def test_a_mixer_takes_it(
    kind: type[Mixer], caches: list[str], filters: int, launch: Launch, device: torch.device
) -> None:
    torch.manual_seed(2)
    mixer = kind(8, 512).half().to(device)
    redraw(mixer, 0.3)
    x = torch.randn(2, 512, 8).half().to(device)
    with torch.inference_mode():
        found = mixer(x)
        for cache in caches:
            kept: Any = getattr(mixer, cache)._kept
            assert [one.func for one in kept] == [toeplitz_convolution] * filters
        expected = mixer.double()(x.double())
    assert relative_error(found, expected) < TOLERANCE[torch.float16]


class Quantised(torch.Tensor):
    """As torchao's weights are: a subclass."""


def test_a_projection_is_laid_out_by_channel_unless_it_must_be_called(launch: Launch, device: torch.device) -> None:
    x = torch.randn(2, 512, 8, dtype=torch.float16, device=device)
    plain, hooked, offloaded, quantised = (nn.Linear(8, 24, bias=False).to(x) for _ in range(4))
    biased, widened = nn.Linear(8, 24).to(x), type("Widened", (nn.Linear,), {})(8, 24, bias=False).to(x)
    hooked.register_forward_hook(lambda *_: None)
    offloaded.__dict__["_hf_hook"] = None  # where accelerate keeps its hook
    quantised.weight = nn.Parameter(quantised.weight.data.as_subclass(Quantised), requires_grad=False)
    with torch.inference_mode():
        y = by_channel(plain, x)
        assert y.stride() == new_by_channel(y).stride()
        torch.testing.assert_close(y, plain(x))
        for projection in (hooked, offloaded, quantised, biased, widened):
            assert by_channel(projection, x).stride() == (512 * 24, 24, 1)


@pytest.mark.gpu  # the interpreter's products round by a row's position in its tile
def test_a_sequence_has_the_same_bits_alone_in_a_batch_and_cut_short(launch: Launch, device: torch.device) -> None:
    torch.manual_seed(1)
    x, taps = drawn(3, 272, 4, dtype=torch.float16, device=device), torch.randn(272, 4, device=device)
    found = toeplitz_convolution(x, shifted_taps(taps, 272, x.dtype))
    assert torch.equal(found[1:2], toeplitz_convolution(x[1:2], shifted_taps(taps, 272, x.dtype)))
    assert torch.equal(found[:, :100], toeplitz_convolution(x[:, :100], shifted_taps(taps, 100, x.dtype)))


@torch.no_grad()
def test_it_is_taken_for_16_bits_and_lengths_that_gain(launch: Launch) -> None:
    x = torch.zeros(1, 512, 4, dtype=torch.float16)
    assert takes_products(x)
    for other in (x.float(), x[:, :511], x[:, :496], x.repeat(1, 5, 1)):
        assert not takes_products(other)


def test_without_a_launch_it_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LAUNCHES", LaunchTable("", {"any": {}, "hopper": {}}))
    monkeypatch.setattr(module, "runs_kernels", lambda *tensors: True)
    assert not takes_products(torch.zeros(1, 512, 4, dtype=torch.float16))
