"""Each mixer against a loop written from its equations in float64, and against its own recurrent form."""

import cmath
import math
from typing import Any

import pytest
import torch

from argap.errors import ArgapError
from argap.models.attention import Attention, WindowKind
from argap.models.base_conv import BaseConv
from argap.models.convolution import long_convolution, short_convolution
from argap.models.filters import ImplicitFilter
from argap.models.mixer import Mixer
from argap.models.registry import build_mixer

WIDTH, LONGEST = 8, 200
SPECS: dict[str, dict[str, Any]] = {
    "attention, one head": {"name": "attention"},
    "attention, two heads": {"name": "attention", "heads": 2, "rope_theta": 100.0},
    "sliding window": {"name": "attention", "heads": 2, "window": 64},
    "sliding window of 1": {"name": "attention", "window": 1},
    "blocked window": {"name": "attention", "heads": 2, "window": 32, "window_kind": "blocked"},
    "short explicit": {"name": "base_conv"},
    "40 taps": {"name": "base_conv", "kernel_size": 40},  # by FFT where T > 32
    "40 implicit taps": {"name": "base_conv", "kernel_size": 40, "filter": "implicit"},
    "long explicit": {"name": "base_conv", "kernel_size": None},
    "long implicit": {"name": "base_conv", "kernel_size": None, "filter": "implicit"},
    "based_conv": {"name": "based_conv", "kernel_size": 4, "expand": 3},
    "definition": {"name": "base_conv", "kernel_size": None, "filter": "implicit", "bias": "definition"},
}


@pytest.fixture(params=SPECS.values(), ids=list(SPECS))
def mixer(request: pytest.FixtureRequest) -> Mixer:
    """A mixer with random parameters, biases too, in float64."""
    torch.manual_seed(0)
    mixer = build_mixer(request.param, WIDTH, LONGEST).double()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return mixer


def inputs(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(length))


@torch.no_grad()
def test_a_change_at_t_changes_nothing_before_t(mixer: Mixer) -> None:
    x = inputs(2, 70)
    y = mixer(x)
    for t in (1, 35, 69):
        changed = x.clone()
        changed[:, t] += 1
        difference = (mixer(changed) - y).abs().amax(dim=(0, 2))
        assert difference[:t].max() < 1e-13
        assert difference[t] > 1e-3


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, LONGEST])
@torch.no_grad()
def test_stepping_equals_the_parallel_form(mixer: Mixer, length: int) -> None:
    x = inputs(2, length)
    state = mixer.init_state(2, x.dtype, x.device)
    steps = []
    for t in range(length):
        y, state = mixer.step(x[:, t], state)
        steps.append(y)
    torch.testing.assert_close(torch.stack(steps, dim=1), mixer(x), rtol=0, atol=1e-11)
    parts = [state] if isinstance(state, torch.Tensor) else state
    kept = sum(part[0].numel() for part in parts if isinstance(part, torch.Tensor))
    assert kept == mixer.state_size(length)


def test_every_parameter_has_a_finite_gradient(mixer: Mixer) -> None:
    mixer(inputs(2, 65)).square().sum().backward()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


@torch.no_grad()
def test_bfloat16_stays_within_its_precision(mixer: Mixer) -> None:
    """8 bits of mantissa: a relative error of 2⁻⁹ each time that a value is stored; some ten in a row here."""
    mixer = mixer.to(torch.bfloat16)
    x = inputs(2, 65).bfloat16()
    low = mixer(x).double()
    high = mixer.double()(x.double())
    assert (low - high).norm() / high.norm() < 0.02


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize(
    ("window", "kind"), [(None, "sliding"), (1, "sliding"), (5, "sliding"), (12, "sliding"), (5, "blocked")]
)
@torch.no_grad()
def test_attention_is_the_papers_loop(heads: int, window: int | None, kind: WindowKind) -> None:
    torch.manual_seed(1)
    theta, length, size = 50.0, 12, WIDTH // heads
    mixer = Attention(WIDTH, heads=heads, rope_theta=theta, window=window, window_kind=kind).double()
    x = inputs(1, length)
    q_all, k_all, v_all = (weight @ x[0].T for weight in mixer.qkv.weight.chunk(3))  # each [D, T]

    def turned(vector: torch.Tensor, m: int) -> list[complex]:
        # RoPE's eq. 34 in complex form: the pair (i, i + K/2) is one number, turned by m·θ^(−2i/K).
        half = size // 2
        return [
            complex(vector[i], vector[i + half]) * cmath.exp(1j * m * theta ** (-2 * i / size)) for i in range(half)
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
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter)
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
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
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


@pytest.mark.parametrize("length", [1, 2, 31, 33, 64])
def test_both_ways_to_convolve_agree(length: int) -> None:
    torch.manual_seed(4)
    x = torch.randn(2, length, WIDTH, dtype=torch.float64)
    taps = torch.randn(min(length, 20), WIDTH, dtype=torch.float64)
    torch.testing.assert_close(short_convolution(x, taps), long_convolution(x, taps), rtol=0, atol=1e-12)


def test_a_convolution_by_hand() -> None:
    # h = (1, 10): y_t = x_t + 10 x_{t-1}
    x = torch.tensor([1.0, 2, 3, 4]).view(1, 4, 1)
    taps = torch.tensor([1.0, 10]).view(2, 1)
    for convolve in (short_convolution, long_convolution):
        torch.testing.assert_close(convolve(x, taps).flatten(), torch.tensor([1.0, 12, 23, 34]))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"name": "attention", "heads": 3}, "does not split into 3 heads"),
        ({"name": "attention", "heads": 0}, "does not split into 0 heads"),
        ({"name": "attention", "heads": 8}, "heads of even width"),  # one number a head cannot be turned
        ({"name": "attention", "window": 0}, "window 0; expected at least 1"),
        ({"name": "attention", "window": 4, "window_kind": "dilated"}, "expected sliding or blocked"),
        ({"name": "attention", "window_kind": "blocked"}, "'blocked' without a window"),
        ({"name": "base_conv", "filter": "hyena"}, "expected explicit or implicit"),
        ({"name": "base_conv", "bias": "none"}, "expected vector or definition"),
        ({"name": "base_conv", "kernel_size": 0}, "kernel_size 0; expected at least 1"),
        ({"name": "base_conv", "kernel_size": None}, "max_position_embeddings"),
        ({"name": "base_conv", "bias": "definition"}, "max_position_embeddings"),
    ],
)
def test_an_option_that_cannot_be_is_refused(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgapError, match=said):
        build_mixer(spec, WIDTH, None)
