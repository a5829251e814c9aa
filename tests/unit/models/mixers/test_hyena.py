"""Hyena against its recurrence written as loops, its filter tap by tap, its cost."""

import math
from typing import Any

import pytest
import torch

from argap.kernels.convolution.trained_convolution import trained_convolution
from argap.models.mixers import convolution, hyena
from argap.models.mixers.hyena import Hyena, HyenaFilter
from tests.builders.weights import redraw


@pytest.mark.parametrize(("order", "heads"), [(2, 1), (3, 2)])
@torch.no_grad()
def test_hyena_is_the_papers_loop(order: int, heads: int) -> None:
    torch.manual_seed(0)
    width, length = 4, 12
    mixer = Hyena(width, 20, order=order, heads=heads, short_kernel=3).double()
    redraw(mixer, 0.7)
    u = torch.randn(length, width, dtype=torch.float64)
    maps = mixer.projection.weight.chunk(order + 1)  # v, x^1, x^2, …
    shorts = mixer.short.weight.chunk(order + 1, dim=1)
    assert mixer.short.bias is not None
    biases = mixer.short.bias.chunk(order + 1)
    projected = []
    for w, h, b in zip(maps, shorts, biases, strict=True):
        row = [w @ u[t] for t in range(length)]
        projected.append([sum(h[s] * row[t - s] for s in range(min(3, t + 1))) + b for t in range(length)])
    z, *gates = projected
    filters = mixer.filter(20)
    size = width // heads
    for n, gate in enumerate(gates):
        h = filters[:, n * size : (n + 1) * size].repeat(1, heads)  # a head's channels after another's
        convolved = [sum(h[s] * z[t - s] for s in range(t + 1)) for t in range(length)]
        z = [gate[t] * (convolved[t] + mixer.skip[n] * z[t]) for t in range(length)]
    expected = torch.stack([mixer.out.weight @ row for row in z])
    torch.testing.assert_close(mixer(u[None])[0], expected, rtol=1e-12, atol=1e-12)


@torch.no_grad()
def test_the_filter_is_a_windowed_mlp_with_sines() -> None:
    torch.manual_seed(1)
    taps, bands = 5, 2
    made = HyenaFilter(3, taps, bands, 4, 3, 2.0).double()
    redraw(made)
    for s in range(taps):
        angles = [2 * math.pi * s / taps * f for f in (1e-4, 1.0)]
        z = torch.tensor([s / 4, *map(math.cos, angles), *(-math.sin(a) for a in angles)], dtype=torch.float64)
        for layer, frequency in zip(made.inner, made.frequency, strict=True):
            z = torch.sin(frequency * (layer.get_parameter("weight") @ z + layer.get_parameter("bias")))
        z = made.outer.weight @ z
        # The slowest channel is at 1% at 1.5 of the sequence, the fastest at 0.3, the middle one between.
        rates = [math.log(100) / 1.5, math.log(100) * (1 / 1.5 + 1 / 0.3) / 2, math.log(100) / 0.3]
        window = torch.tensor([math.exp(-rate * s / 4) + 0.05 for rate in rates], dtype=torch.float64)
        torch.testing.assert_close(made(taps)[s], z * window / math.sqrt(taps), rtol=0, atol=1e-12)
    torch.testing.assert_close(made(2), made(taps)[:2], rtol=0, atol=1e-12)


def test_training_kernels_have_the_gradients_of_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """In training on a GPU all three convolutions of a short sequence go through `trained_convolution`."""
    torch.manual_seed(4)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    mixer = redraw(Hyena(8, max_positions=40)).to(device)
    x, dy = torch.randn(2, 3, 40, 8, device=device)
    calls: list[int] = []

    def counted(x: torch.Tensor, taps: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        calls.append(len(taps))
        return trained_convolution(x, taps, *rest, **named)

    results = []
    for trains in (False, True):
        for module in (convolution, hyena):
            monkeypatch.setattr(module, "trains_products", lambda *tensors, trains=trains: trains)
        monkeypatch.setattr(convolution, "trained_convolution", counted)
        given = x.clone().requires_grad_()
        y = mixer(given)
        results.append([y.detach(), *torch.autograd.grad(y, [given, *mixer.parameters()], dy)])
    assert calls == [3, 40, 40]
    for found, expected in zip(*results, strict=True):
        assert (found - expected).norm() < 1e-5 * expected.norm()
