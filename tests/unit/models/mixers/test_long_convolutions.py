"""Hyena, H3, multi-head Hyena, the ungated long convolution and Liquid-S4 against their equations as loops; costs."""

import cmath
import math
from typing import Any

import pytest
import torch

from argap.kernels.convolution.trained_convolution import trained_convolution
from argap.models.mixers import convolution, hyena
from argap.models.mixers.diagonal_ssm import DiagonalSSM
from argap.models.mixers.h3 import H3
from argap.models.mixers.hyena import Hyena, HyenaFilter
from argap.models.mixers.liquid_s4 import LiquidS4
from argap.models.mixers.long_conv import DecayingFilter, LongConv
from argap.models.mixers.multihead_hyena import MultiheadHyena
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


@pytest.mark.parametrize("size", [1, 2])
@torch.no_grad()
def test_h3_is_the_papers_recurrence(size: int) -> None:
    torch.manual_seed(0)
    width, length, shifts = 4, 40, 3
    mixer = H3(width, head_size=size, shift_states=shifts, states=4).double()
    redraw(mixer, 0.6)
    u = torch.randn(length, width, dtype=torch.float64)
    wq, wk, wv = mixer.qkv.weight.chunk(3)
    shift_matrix = torch.eye(shifts, dtype=torch.float64).roll(1, dims=0)  # row i takes state i − 1 …
    shift_matrix[0] = 0  # … and the first the input
    shifted = torch.zeros(shifts, width, dtype=torch.float64)
    ssm = mixer.ssm
    states = [[[0j, 0j] for _ in range(size * size)] for _ in range(width // size)]
    expected = torch.zeros(length, width, dtype=torch.float64)
    for t in range(length):
        q, k, v = wq @ u[t], wk @ u[t], wv @ u[t]
        shifted = shift_matrix @ shifted
        shifted[0] += k
        k = (mixer.shift.weight * shifted).sum(dim=0) + mixer.shift_skip * k
        read = [0.0] * width
        for h in range(width // size):
            for i in range(size):
                for j in range(size):
                    z = float(k[h * size + i] * v[h * size + j])
                    state = states[h][i * size + j]
                    y = float(mixer.ssm_skip[h]) * z
                    for n in range(2):
                        a = complex(-math.exp(ssm.log_decay[h, n]), ssm.frequency[h, n])
                        grown = cmath.exp(math.exp(ssm.log_step[h]) * a)
                        state[n] = grown * state[n] + (grown - 1) / a * z
                        y += 2 * (complex(*ssm.readout[h, n].tolist()) * state[n]).real
                    read[h * size + j] += float(q[h * size + i]) * y
        expected[t] = mixer.out.weight @ torch.tensor(read, dtype=torch.float64)
    torch.testing.assert_close(mixer(u[None])[0], expected, rtol=1e-11, atol=1e-11)


@torch.no_grad()
def test_a_diagonal_model_starts_as_s4d_lin() -> None:
    torch.manual_seed(1)
    ssm = DiagonalSSM(500, 8)
    ssm.initialize(0.02, 0.01)
    exponent, _, readout = ssm.discrete()
    step = ssm.log_step.exp()
    assert step.min() >= 0.001
    assert step.max() <= 0.1
    expected = torch.tensor([complex(-0.5, math.pi * n) for n in range(4)])
    torch.testing.assert_close(exponent, step[:, None] * expected)
    assert abs(float(readout.abs().square().mean()) - 1) < 0.1


def test_states_may_be_as_many_as_positions() -> None:
    """The authors' figure 2: ``d_state: input_seq_len``."""
    mixer = H3(8, 10, head_size=2, shift_states=None, states=None)
    assert len(mixer.shift.weight) == 10
    assert mixer.ssm.frequency.shape == (4, 5)  # conjugate pairs


@pytest.mark.parametrize(("heads", "length"), [(1, 9), (2, 12), (4, 40)])  # 40 taps by FFT
@torch.no_grad()
def test_each_key_is_compared_with_the_query(heads: int, length: int) -> None:
    torch.manual_seed(0)
    width = 4
    mixer = MultiheadHyena(width, length, heads=heads).double()
    redraw(mixer, 0.7)
    u = torch.randn(length, width, dtype=torch.float64)
    assert mixer.short.bias is not None
    short = []
    for t in range(length):
        taps = min(3, t + 1)
        short.append(sum(mixer.short.weight[s] * (mixer.projection.weight @ u[t - s]) for s in range(taps)))
        short[-1] = short[-1] + mixer.short.bias
    q, k, v = torch.stack(short).chunk(3, dim=1)
    filters, size = mixer.filter(length), width // heads
    for t in range(length):
        y = torch.zeros(width, dtype=torch.float64)
        for head in range(heads):
            own = slice(head * size, (head + 1) * size)
            for s in range(t + 1):
                weight = filters[s, head] + (mixer.skip[head] if s == 0 else 0)
                y[own] += weight * (q[t, own] @ k[t - s, own]) * v[t - s, own]
        torch.testing.assert_close(mixer(u[None])[0, t], mixer.out.weight @ y, rtol=0, atol=1e-10)


@torch.no_grad()
def test_a_key_of_one_distance_is_recalled_by_hand() -> None:
    """One head, unit keys e₁ and e₂, a filter of ones: the query e₁ reads the values of all keys e₁."""
    mixer = MultiheadHyena(2, 4, heads=1, short_kernel=1).double()
    mixer.filter.forward = lambda taps: torch.ones(taps, 1, dtype=torch.float64)  # type: ignore[method-assign]
    torch.nn.init.zeros_(mixer.skip)
    torch.nn.init.ones_(mixer.short.weight)
    assert mixer.short.bias is not None
    torch.nn.init.zeros_(mixer.short.bias)
    mixer.projection.weight.copy_(torch.eye(2).repeat(3, 1))
    mixer.out.weight.copy_(torch.eye(2))
    x = torch.tensor([[[1.0, 0.0], [0.0, 3.0], [2.0, 0.0]]], dtype=torch.float64)
    # Position 2: keys and values (1, 0), (0, 3), (2, 0), query (2, 0): 2·1·(1, 0) + 0 + 2·2·(2, 0).
    assert mixer(x)[0].tolist() == [[1.0, 0.0], [0.0, 27.0], [10.0, 0.0]]


@torch.no_grad()
def test_long_conv_is_the_papers_loop() -> None:
    torch.manual_seed(0)
    width, length, squash = 3, 40, 0.2
    mixer = LongConv(width, 50, squash=squash).double()
    redraw(mixer)
    u = torch.randn(length, width, dtype=torch.float64)
    h = mixer.filter.weight
    expected = torch.zeros(length, width, dtype=torch.float64)
    for t in range(length):
        mixed = [0.0] * width
        for c in range(width):
            for s in range(t + 1):
                tap = float(h[s, c])
                mixed[c] += math.copysign(max(abs(tap) - squash, 0.0), tap) * float(u[t - s, c])
            z = mixed[c] + float(mixer.skip[c] * u[t, c])
            mixed[c] = z * 0.5 * (1 + math.erf(z / math.sqrt(2)))
        expected[t] = mixer.out.weight @ torch.tensor(mixed, dtype=torch.float64)
    torch.testing.assert_close(mixer(u[None])[0], expected, rtol=0, atol=1e-11)


@torch.no_grad()
def test_a_filter_starts_with_a_decay_of_its_own_for_each_channel() -> None:
    torch.manual_seed(0)
    made = DecayingFilter(64, 4096, 0.0)
    made.initialize(0.02, 0.01)
    # Channel 32 of 64 decays as e^{−(s/N)·√32}: from the first eighth to the second by e^{−√32/8}.
    first, second = (made.weight[part, 32].square().mean().sqrt() for part in (slice(512), slice(512, 1024)))
    assert abs(float(second / first) - math.exp(-math.sqrt(32) / 8)) < 0.05
    gains = made.weight.norm(dim=0)
    assert gains.min() > 0.5
    assert gains.max() < 0.9


def discrete(mixer: LiquidS4, channel: int) -> list[tuple[complex, complex, complex]]:
    """Ā, B̄ and C of each state of a channel, by the formulas of zero-order hold."""
    ssm = mixer.ssm
    assert ssm.input is not None
    found = []
    for n in range(ssm.frequency.shape[1]):
        a = complex(-math.exp(ssm.log_decay[channel, n]), ssm.frequency[channel, n])
        grown = cmath.exp(math.exp(ssm.log_step[channel]) * a)
        b = complex(*ssm.input[channel, n].tolist())
        found.append((grown, (grown - 1) / a * b, complex(*ssm.readout[channel, n].tolist())))
    return found


def finished(mixer: LiquidS4, y: list[list[float]], u: torch.Tensor) -> torch.Tensor:
    """Skip, GELU and projection of a state space model's output ``[T, D]``."""
    z = torch.tensor(y, dtype=torch.float64) + mixer.skip * u
    return (z * 0.5 * (1 + torch.erf(z / math.sqrt(2)))) @ mixer.out.weight.T


@pytest.mark.parametrize("kernel", ["pb", "kb"])
@torch.no_grad()
def test_liquid_s4_is_the_papers_sum(kernel: Any) -> None:
    torch.manual_seed(0)
    width, length, degree = 3, 36, 3
    mixer = redraw(LiquidS4(width, kernel=kernel, degree=degree, states=4).double(), 0.7)
    u = torch.randn(length, width, dtype=torch.float64)
    y = [[0.0] * width for _ in range(length)]
    for c in range(width):
        for t in range(length):
            for s in range(t + 1):  # all that entered s steps ago
                product = 1.0
                for p in range(1, min(degree, t - s + 1) + 1):
                    product *= float(u[t - s - p + 1, c])
                    if kernel == "kb" or p == 1 or s == 0:
                        tap = sum(2 * (out * grown**s * into**p).real for grown, into, out in discrete(mixer, c))
                        y[t][c] += tap * product
    torch.testing.assert_close(mixer(u[None])[0], finished(mixer, y, u), rtol=1e-11, atol=1e-11)


@torch.no_grad()
def test_kb_is_the_liquid_recurrence_where_it_ends_with_the_second_input() -> None:
    """With two inputs the only product is that of consecutive ones: nothing of the recurrence is left out."""
    torch.manual_seed(1)
    width = 3
    mixer = redraw(LiquidS4(width, kernel="kb", states=4).double(), 0.7)
    u = torch.randn(2, width, dtype=torch.float64)
    y = [[0.0] * width for _ in range(2)]
    for c in range(width):
        for grown, into, out in discrete(mixer, c):
            x = 0j
            for t in range(2):
                x = (grown + into * float(u[t, c])) * x + into * float(u[t, c])
                y[t][c] += 2 * (out * x).real
    torch.testing.assert_close(mixer(u[None])[0], finished(mixer, y, u), rtol=1e-11, atol=1e-11)
