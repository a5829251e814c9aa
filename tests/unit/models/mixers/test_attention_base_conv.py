"""Attention and BaseConv against loops written from their equations, in float64."""

import cmath
import math
from typing import Any

import pytest
import torch

from argap.kernels.convolution.long_convolution import long_convolution
from argap.kernels.convolution.short_convolution import short_convolution
from argap.models.mixers.attention import Attention, Positions, WindowKind
from argap.models.mixers.base_conv import BaseConv
from argap.models.mixers.filters import ExplicitFilter, ImplicitFilter, ListingFilter
from tests.builders.weights import redraw

WIDTH = 8


def inputs(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(length))


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(
    ("window", "kind"), [(None, "sliding"), (1, "sliding"), (5, "sliding"), (12, "sliding"), (5, "blocked")]
)
@pytest.mark.parametrize("positions", ["rope", "none"])
@torch.no_grad()
def test_attention_is_the_papers_loop(heads: int, window: int | None, kind: WindowKind, positions: Positions) -> None:
    torch.manual_seed(1)
    theta, length, size = 50.0, 12, WIDTH // heads
    mixer = Attention(
        WIDTH, heads=heads, positions=positions, rope_theta=theta, window=window, window_kind=kind
    ).double()
    x = inputs(1, length)
    q_all, k_all, v_all = (weight @ x[0].T for weight in mixer.qkv.weight.chunk(3))  # each [D, T]

    def turned(vector: torch.Tensor, m: int) -> list[complex]:
        # RoPE's eq. 34 in complex form: the pair (i, i + K/2) is one number, turned by m·θ^(−2i/K).
        half, turns = size // 2, m if positions == "rope" else 0
        return [
            complex(vector[i], vector[i + half]) * cmath.exp(1j * turns * theta ** (-2 * i / size)) for i in range(half)
        ]

    expected = torch.zeros(length, WIDTH, dtype=torch.float64)
    pairs = 0
    for t in range(length):
        first = 0
        if window is not None:  # sliding: the window itself ends at t; blocked: blocks 0–4, 5–9, 10–14
            first = max(0, t - window + 1) if kind == "sliding" else t // window * window
        pairs += t + 1 - first
        mixed = torch.zeros(WIDTH, dtype=torch.float64)
        for h in range(heads):
            rows = slice(h * size, (h + 1) * size)
            q = turned(q_all[rows, t], t)
            scores = []
            for s in range(first, t + 1):
                k = turned(k_all[rows, s], s)
                scores.append(sum((a * b.conjugate()).real for a, b in zip(q, k, strict=True)) / math.sqrt(size))
            total = sum(math.exp(score) for score in scores)
            for s, score in enumerate(scores, start=first):
                mixed[rows] += math.exp(score) / total * v_all[rows, s]
        expected[t] = mixer.out.weight @ mixed
    torch.testing.assert_close(mixer(x)[0], expected, rtol=0, atol=1e-12)
    assert mixer.flops(3, length) == 3 * (8 * length * WIDTH**2 + 4 * pairs * WIDTH)


@pytest.mark.parametrize("bias", ["vector", "definition"])
@pytest.mark.parametrize(("filter", "taps"), [("explicit", 3), ("explicit", None), ("implicit", None)])
@torch.no_grad()
def test_base_conv_is_definition_4_1(filter: Any, taps: int | None, bias: Any) -> None:
    torch.manual_seed(2)
    length, longest = 40, 50
    mixer = BaseConv(WIDTH, longest, filter=filter, kernel_size=taps, bias=bias).double()
    redraw(mixer)
    u = inputs(1, length)
    h = mixer.filter(longest)
    assert len(h) == (taps or longest)
    b1, b2 = (b.expand(longest, WIDTH) for b in (mixer.gate_bias, mixer.conv_bias))
    expected = torch.zeros(length, WIDTH, dtype=torch.float64)
    for t in range(length):
        convolved = sum(h[s] * u[0, t - s] for s in range(min(t + 1, len(h))))
        expected[t] = (mixer.projection.weight @ u[0, t] + b1[t]) * (convolved + b2[t])
    torch.testing.assert_close(mixer(u)[0], expected, rtol=0, atol=1e-11)


@torch.no_grad()
def test_the_implicit_filter_is_an_mlp_of_time() -> None:
    torch.manual_seed(3)
    taps, bands, hidden = 5, 2, 3
    made = ImplicitFilter(WIDTH, taps, bands, hidden).double()
    redraw(made)
    for s in range(taps):
        time = s / 4  # 0 at the first of the 5 taps, 1 at the last
        sines = [math.sin(math.pi * time), math.sin(2 * math.pi * time)]
        cosines = [math.cos(math.pi * time), math.cos(2 * math.pi * time)]
        features = torch.tensor([time, *sines, *cosines], dtype=torch.float64)
        inner = made.inner_weight @ features + made.inner_bias
        inner = torch.stack([z * 0.5 * (1 + math.erf(z / math.sqrt(2))) for z in inner])  # GELU
        expected = (made.outer_weight @ inner + made.outer_bias) / math.sqrt(taps)
        torch.testing.assert_close(made(taps)[s], expected, rtol=0, atol=1e-12)
    # A shorter window sees the first taps of the same filter, not a filter squeezed into it.
    torch.testing.assert_close(made(2), made(taps)[:2], rtol=0, atol=1e-12)


@torch.no_grad()
def test_the_listings_filter_is_the_printed_one() -> None:
    """Listing 2: three features, 16 hidden values, ReLU, no scale; y = (W u) ⊙ (h ∗ u) + u."""
    torch.manual_seed(5)
    taps = 6
    mixer = BaseConv(WIDTH, taps, filter="listing", kernel_size=None, skip=True).double()
    made = mixer.filter
    assert isinstance(made, ListingFilter)
    assert made.inner_weight.shape == (16, 3)
    redraw(mixer)
    h = made(taps)
    for s in range(taps):
        angle = 2 * math.pi * s / taps * 1e-4
        features = torch.tensor([s / 5, math.cos(angle), -math.sin(angle)], dtype=torch.float64)
        inner = (made.inner_weight @ features + made.inner_bias).clamp_min(0)
        torch.testing.assert_close(h[s], made.outer_weight @ inner + made.outer_bias, rtol=0, atol=1e-12)
    u = inputs(1, taps)
    for t in range(taps):
        convolved = sum(h[s] * u[0, t - s] for s in range(t + 1)) + mixer.conv_bias
        expected = (mixer.projection.weight @ u[0, t] + mixer.gate_bias) * convolved + u[0, t]
        torch.testing.assert_close(mixer(u)[0, t], expected, rtol=0, atol=1e-11)


@torch.no_grad()
def test_base_conv_starts_as_the_published_code_with_skip() -> None:
    torch.manual_seed(6)
    long = BaseConv(WIDTH, 50, filter="listing", kernel_size=None, skip=True)
    short = BaseConv(400, skip=True)
    assert isinstance(long.filter, ListingFilter)
    assert isinstance(short.filter, ExplicitFilter)
    for module in (long, long.filter, short, short.filter):
        module.initialize(0.02, 0.01)
    for zero in (long.gate_bias, long.conv_bias, short.gate_bias, long.filter.inner_bias):
        assert not zero.any()
    assert float(long.filter.inner_weight.std()) == pytest.approx(0.02, rel=0.4)
    bound = 1 / math.sqrt(3)  # torch's Conv1d with 3 taps and one channel a group
    for uniform in (short.filter.weight, short.conv_bias):
        assert bound * 0.9 < float(uniform.abs().max()) <= bound


def test_defaults_of_the_filters_are_ours_and_the_papers() -> None:
    ours, theirs = (BaseConv(4, 9, filter=filter, kernel_size=None).filter for filter in ("implicit", "listing"))
    assert [tuple(each.get_parameter("inner_weight").shape) for each in (ours, theirs)] == [(32, 17), (16, 3)]


@pytest.mark.parametrize("length", [1, 2, 31, 33, 64])
def test_both_ways_to_convolve_agree(length: int) -> None:
    torch.manual_seed(4)
    x = torch.randn(2, length, WIDTH, dtype=torch.float64)
    taps = torch.randn(min(length, 20), WIDTH, dtype=torch.float64)
    torch.testing.assert_close(short_convolution(x, taps)[0], long_convolution(x, taps), rtol=0, atol=1e-12)


def test_a_convolution_by_hand() -> None:
    # h = (1, 10): y_t = x_t + 10 x_{t-1}
    x = torch.tensor([1.0, 2, 3, 4]).view(1, 4, 1)
    taps = torch.tensor([1.0, 10]).view(2, 1)
    for y in (short_convolution(x, taps)[0], long_convolution(x, taps)):
        torch.testing.assert_close(y.flatten(), torch.tensor([1.0, 12, 23, 34]))
