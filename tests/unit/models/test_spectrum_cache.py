"""The spectra of long filters, kept from batch to batch where kernels run."""

import copy
from typing import Any

import pytest
import torch

import argap.models.mixers.convolution as module
from argap.models.mixer import Mixer
from argap.models.mixers.convolution import SHORT
from argap.models.mixers.h3 import H3
from argap.models.registry import build_mixer
from tests.builders.weights import redraw

WIDTH, LONGEST = 8, 80
LONG: list[dict[str, Any]] = [
    {"name": "long_conv"},
    {"name": "hyena"},
    {"name": "base_conv", "kernel_size": None, "filter": "implicit"},
    {"name": "h3"},
]


@pytest.fixture(params=LONG, ids=[spec["name"] for spec in LONG])
def mixer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Mixer:
    """In float32, with torch's transforms in the place of the packed ones, as if on a GPU."""
    torch.manual_seed(0)
    mixer = build_mixer(request.param, WIDTH, LONGEST)
    redraw(mixer, 0.3)
    monkeypatch.setattr(module, "packed_convolution", by_spectrum)
    monkeypatch.setattr(module, "runs_kernels", lambda *tensors: not torch.is_grad_enabled())
    return mixer


def maker(mixer: Mixer) -> torch.nn.Module:
    """The module whose parameters the filters are computed from."""
    return mixer.get_submodule("ssm" if isinstance(mixer, H3) else "filter")


def by_spectrum(
    x: torch.Tensor, spectrum: torch.Tensor, gate: torch.Tensor | float = 1.0, skip: torch.Tensor | float = 0.0
) -> torch.Tensor:
    size = spectrum.shape[1]
    transformed = torch.fft.fft(x.mT, n=size) * spectrum
    return gate * (torch.fft.ifft(transformed, n=size, norm="forward").real.mT[:, : x.shape[1]] + skip * x)


def test_a_kept_spectrum_is_the_filter_as_it_now_is(mixer: Mixer, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    make = module.filter_spectrum
    monkeypatch.setattr(module, "filter_spectrum", lambda *given: made.append(1) or make(*given))

    def check(length: int, more: bool) -> None:
        x = torch.randn(2, length, WIDTH)
        before = len(made)
        with torch.inference_mode():
            found = mixer(x)
        torch.testing.assert_close(found, mixer(x), rtol=1e-4, atol=1e-4)  # with gradients: nothing is kept
        assert (len(made) > before) == more

    check(70, more=True)
    check(70, more=False)
    check(LONGEST, more=True)
    check(SHORT, more=False)  # applied tap by tap
    check(LONGEST, more=False)
    with torch.no_grad():
        next(iter(maker(mixer).parameters())).mul_(1.5)
    check(LONGEST, more=True)
    mixer.load_state_dict({name: value + 0.1 for name, value in mixer.state_dict().items()})
    check(LONGEST, more=True)


def test_a_write_that_torch_does_not_count_is_seen_outside_inference_mode(mixer: Mixer) -> None:
    x = torch.randn(2, 70, WIDTH)
    with torch.no_grad():
        before = mixer(x)
        for parameter in maker(mixer).parameters():
            parameter.untyped_storage().copy_((1.5 * parameter).untyped_storage())  # as a CUDA graph's replay writes
        after = mixer(x)
    assert not torch.allclose(before, after, atol=1e-3)
    torch.testing.assert_close(after, mixer(x), rtol=1e-4, atol=1e-4)


def test_nothing_kept_is_copied(mixer: Mixer) -> None:
    with torch.inference_mode():
        mixer(torch.randn(2, 70, WIDTH))
    other = copy.deepcopy(mixer)
    assert mixer.spectra._kept  # pyright: ignore[reportAttributeAccessIssue]
    assert not other.spectra._kept  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("spec", [spec for spec in LONG if spec["name"] != "h3"] + [{"name": "multihead_hyena"}])
def test_steps_reuse_the_taps_until_a_parameter_changes(spec: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    mixer = build_mixer(spec, WIDTH, LONGEST).double()
    redraw(mixer, 0.3)
    x = torch.randn(2, LONGEST, WIDTH, dtype=torch.float64)
    made = []
    filters = type(maker(mixer))
    make = filters.forward
    monkeypatch.setattr(filters, "forward", lambda self, count: made.append(count) or make(self, count))

    def stepped() -> torch.Tensor:
        state, outputs = mixer.init_state(2, x.dtype, x.device), []
        for t in range(LONGEST):
            y, state = mixer.step(x[:, t], state)
            outputs.append(y)
        return torch.stack(outputs, dim=1)

    for changes in (False, True):
        with torch.inference_mode():
            found, again = stepped(), stepped()
        assert made == [2, 6, 14, 30, 62, 126]  # each time for twice the positions of the first step that needs more
        torch.testing.assert_close(found, mixer(x), rtol=0, atol=1e-10)
        torch.testing.assert_close(again, mixer(x), rtol=0, atol=1e-10)
        if not changes:
            with torch.no_grad():
                next(maker(mixer).parameters()).mul_(1.5)
        del made[:]
