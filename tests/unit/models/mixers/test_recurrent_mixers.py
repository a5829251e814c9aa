"""DeltaNet, retention and Based against their recurrences and matrix forms, written from the papers in float64."""

import cmath
import math
from collections.abc import Callable

import pytest
import torch

from argap.errors import ArgapError
from argap.kernels.recurrent.delta_rule import delta_rule
from argap.models.mixers import convolution
from argap.models.mixers.based import BasedConv, ShortLongConv
from argap.models.mixers.convolution import ShortConvolution
from argap.models.mixers.delta_net import Activation, DeltaNet, KeyNorm
from argap.models.mixers.retnet import Norm, RetNet
from argap.models.presets import build_config
from argap.models.registry import build_mixer
from tests.builders.weights import redraw

WIDTH, HEADS, LENGTH = 8, 2, 13
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": lambda x: x / (1 + (-x).exp()),
    "elu": lambda x: torch.where(x > 0, x + 1, x.exp()),
    "relu": lambda x: x.clamp_min(0),
    "identity": lambda x: x,
}


@pytest.mark.parametrize("activation", ["silu", "elu", "relu", "identity"])
@pytest.mark.parametrize("norm", ["l2", "l1"])
@pytest.mark.parametrize("taps", [None, 4])
@torch.no_grad()
def test_delta_net_is_the_papers_recurrence(activation: Activation, norm: KeyNorm, taps: int | None) -> None:
    torch.manual_seed(1)
    mixer = DeltaNet(WIDTH, heads=HEADS, activation=activation, key_norm=norm, conv_size=taps, chunk_size=4).double()
    redraw(mixer)
    x = torch.randn(LENGTH, WIDTH, dtype=torch.float64)
    qkv = x @ mixer.qkv.weight.T
    if isinstance(mixer.conv, ShortConvolution):
        taps_of = mixer.conv.weight
        qkv = torch.stack([sum(taps_of[s] * qkv[t - s] for s in range(min(t + 1, 4))) for t in range(LENGTH)])  # pyright: ignore
    size = WIDTH // HEADS
    heads = torch.zeros(LENGTH, WIDTH, dtype=torch.float64)
    for h in range(HEADS):
        state = torch.zeros(size, size, dtype=torch.float64)  # the paper's S: values by keys
        for t in range(LENGTH):
            q, k, v = (qkv[t, part * WIDTH + h * size :][:size] for part in range(3))
            q, k = ACTIVATIONS[activation](q), ACTIVATIONS[activation](k)
            order = 2 if norm == "l2" else 1
            q, k = (a / max(float(a.abs().pow(order).sum() ** (1 / order)), 1e-6) for a in (q, k))
            v = v * v.sigmoid()
            beta = (mixer.beta.weight[h] @ x[t]).sigmoid()
            state = state @ (torch.eye(size, dtype=torch.float64) - beta * torch.outer(k, k))
            state = state + beta * torch.outer(v, k)
            o = state @ q
            heads[t, h * size : (h + 1) * size] = o / (o.square().mean() + 1e-5).sqrt() * mixer.norm.weight
    torch.testing.assert_close(mixer(x[None])[0], heads @ mixer.out.weight.T, rtol=0, atol=1e-10)


@pytest.mark.parametrize("taps", [None, 4, 9])
@torch.no_grad()
def test_norms_of_the_convolution_are_those_of_the_delta_rule(
    taps: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(2)
    mixer = redraw(DeltaNet(WIDTH, heads=HEADS, conv_size=taps).double())
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    expected, given = mixer(x), []
    monkeypatch.setattr(convolution, "runs_kernels", lambda *tensors: True)
    monkeypatch.setattr(
        mixer,
        "operator",
        lambda *x, normalize, **rest: given.append(normalize) or delta_rule(*x, **rest, normalize=normalize),
    )
    torch.testing.assert_close(mixer(x), expected, rtol=0, atol=1e-12)
    assert given == [taps != 4]  # more taps than rows are kept for, and none, leave them to the delta rule


def test_a_value_written_with_beta_one_is_read_back() -> None:
    """By hand: key e1 gets (1, 2), key e2 gets (5, 6), then e1 gets (3, 4), which replaces (1, 2). Adding,
    as linear attention does, would read (4, 6)."""
    k = torch.tensor([[1.0, 0], [0, 1], [1, 0]]).view(1, 1, 3, 2)
    v = torch.tensor([[1.0, 2], [5, 6], [3, 4]]).view(1, 1, 3, 2)
    y, state = delta_rule(k, k, v, torch.ones(1, 1, 3))
    torch.testing.assert_close(y, v)
    torch.testing.assert_close(state[0, 0], torch.tensor([[3.0, 4], [5, 6]]))


def test_the_state_carries_over_a_split_sequence() -> None:
    torch.manual_seed(2)
    q, k, v = (torch.randn(2, 2, 50, size, dtype=torch.float64) for size in (3, 3, 5))
    k = torch.nn.functional.normalize(k, dim=-1)
    beta = torch.rand(2, 2, 50, dtype=torch.float64)
    whole, last = delta_rule(q, k, v, beta, chunk=16)
    first, middle = delta_rule(q[:, :, :21], k[:, :, :21], v[:, :, :21], beta[:, :, :21], chunk=16)
    rest = (part[:, :, 21:] for part in (q, k, v, beta))
    second, end = delta_rule(*rest, chunk=8, state=middle)
    torch.testing.assert_close(torch.cat([first, second], dim=2), whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(end, last, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("expansion", "norm", "eps"), [(1, "layer", 1e-5), (2, "layer", 1e-5), (2, "rms", 0.1)])
@torch.no_grad()
def test_retention_is_the_papers_sum_over_pairs(expansion: int, norm: Norm, eps: float) -> None:
    torch.manual_seed(1)
    mixer = RetNet(
        WIDTH, heads=HEADS, value_expansion=expansion, norm=norm, norm_eps=eps, rope_theta=50.0, chunk_size=4
    ).double()
    redraw(mixer)
    x = torch.randn(LENGTH, WIDTH, dtype=torch.float64)
    q_all, k_all = (x @ weight.T for weight in mixer.qk.weight.chunk(2))
    v_all = x @ mixer.v.weight.T
    key, value = WIDTH // HEADS, expansion * WIDTH // HEADS
    heads = torch.zeros(LENGTH, HEADS * value, dtype=torch.float64)
    for h in range(HEADS):
        gamma = (31 / 32, 63 / 64)[h]  # 1 − 2^−5, 1 − 2^−6
        rows, columns = slice(h * key, (h + 1) * key), slice(h * value, (h + 1) * value)
        for n in range(LENGTH):
            total = torch.zeros(value, dtype=torch.float64)
            for m in range(n + 1):
                # Eq. 5 in complex numbers: the pair (i, i + K/2) of Q is turned by n·θ_i, of K back by m·θ_i.
                dot = sum(
                    complex(q_all[n, rows][i], q_all[n, rows][i + key // 2])
                    * complex(k_all[m, rows][i], k_all[m, rows][i + key // 2]).conjugate()
                    * cmath.exp(1j * (n - m) * 50.0 ** (-2 * i / key))
                    for i in range(key // 2)
                ).real
                total += gamma ** (n - m) * dot / math.sqrt(key) * v_all[m, columns]
            centred = total - total.mean() if norm == "layer" else total
            weight = 1 if norm == "layer" else mixer.norm.weight
            heads[n, columns] = centred / (centred.square().mean() + eps).sqrt() * weight
    gate = x @ mixer.gate.weight.T
    expected = (gate * gate.sigmoid() * heads) @ mixer.out.weight.T
    torch.testing.assert_close(mixer(x[None])[0], expected, rtol=0, atol=1e-11)


def test_heads_have_several_rates_at_any_width() -> None:
    """The paper's head size of 256 from a width of 1,024 on; four heads below."""
    assert [RetNet(width).heads for width in (64, 256, 1024, 2048)] == [4, 4, 4, 8]


@torch.no_grad()
def test_without_recall_across_chunks_every_chunk_is_a_sequence_of_its_own() -> None:
    torch.manual_seed(2)
    whole = RetNet(WIDTH, heads=HEADS, chunk_size=4).double()
    chunked = RetNet(WIDTH, heads=HEADS, chunk_size=4, cross_chunk=False).double()
    chunked.load_state_dict(whole.state_dict())
    for length in (3, 4, 8, 13):
        x = torch.randn(2, length, WIDTH, dtype=torch.float64)
        # Rotary positions are relative, so that a chunk is what the layer makes of it alone.
        expected = torch.cat([whole(part) for part in x.split(4, dim=1)], dim=1)
        torch.testing.assert_close(chunked(x), expected, rtol=0, atol=1e-12)
    assert (chunked(x) - whole(x)).abs()[:, 4:].max() > 1e-3


@torch.no_grad()
def test_without_recall_across_chunks_a_step_leaves_no_infinity_to_the_next_chunk() -> None:
    torch.manual_seed(3)
    mixer = RetNet(WIDTH, heads=HEADS, chunk_size=4, cross_chunk=False).double()
    x = torch.randn(2, 8, WIDTH, dtype=torch.float64)
    expected = mixer(x)[:, 4:]
    x[:, 1] = torch.inf
    state, found = mixer.init_state(2, x.dtype, x.device), []
    for t in range(8):
        y, state = mixer.step(x[:, t], state)
        found.append(y)
    assert not found[3].isfinite().any()
    torch.testing.assert_close(torch.stack(found[4:], dim=1), expected, rtol=0, atol=1e-12)


@torch.no_grad()
def test_the_gated_convolution_is_its_formula() -> None:
    torch.manual_seed(1)
    mixer = BasedConv(WIDTH, kernel_size=3, expand=2).double()
    redraw(mixer)
    x = torch.randn(LENGTH, WIDTH, dtype=torch.float64)
    w1, w2 = mixer.projections.weight.split(16)
    b1, b2 = mixer.projections.bias.split(16)
    for t in range(LENGTH):
        mixed = torch.zeros(16, dtype=torch.float64)
        for s in range(min(t + 1, 3)):
            mixed += mixer.conv.weight[s] * (w1 @ x[t - s] + b1)
        expected = mixer.out.weight @ (mixed * mixed.sigmoid() * (w2 @ x[t] + b2)) + mixer.out.bias
        torch.testing.assert_close(mixer(x[None])[0, t], expected, rtol=0, atol=1e-11)


def test_layers_are_those_of_the_authors_360m() -> None:
    """Of 27 layers, counted from 0, Taylor linear attention in 1, 6, 11, 16, 21 and windows in 2, 7, 12, 17, 22."""
    config = build_config("based", hidden_size=1024, num_hidden_layers=27, vocab_size=64, seq_len=2048)
    names = [mixer["name"] for mixer in config.mixers]
    assert [i for i, name in enumerate(names) if name == "linear_attention"] == [1, 6, 11, 16, 21]
    assert [i for i, name in enumerate(names) if name == "attention"] == [2, 7, 12, 17, 22]
    assert names.count("based_conv") == 17
    assert config.mixers[1] == {"name": "linear_attention", "feature_map": "taylor", "feature_dim": 16}
    assert config.mixers[2] == {"name": "attention", "window": 128}


@pytest.mark.parametrize("long", [4, 40])  # directly and by FFT
@torch.no_grad()
def test_the_posts_convolution_is_its_formula(long: int) -> None:
    torch.manual_seed(2)
    mixer, length = ShortLongConv(WIDTH, short_kernel=3, long_kernel=long).double(), 50
    redraw(mixer)
    x = torch.randn(length, WIDTH, dtype=torch.float64)
    near = []
    for t in range(length):
        mixed = mixer.short.bias + sum(mixer.short.weight[s] * x[t - s] for s in range(min(t + 1, 3)))
        near.append(mixed * mixed.sigmoid())
        far = mixer.long.bias + sum(mixer.long.weight[s] * near[t - s] for s in range(min(t + 1, long)))
        gate = mixer.gate.weight @ x[t] + mixer.gate.bias
        torch.testing.assert_close(mixer(x[None])[0, t], gate * gate.sigmoid() * far, rtol=0, atol=1e-10)


def test_the_post_has_convolutions_and_linear_attention_alone() -> None:
    config = build_config("based_post", hidden_size=64, num_hidden_layers=4, vocab_size=64, seq_len=200)
    linear = {"name": "linear_attention", "feature_map": "taylor", "feature_dim": 16}
    assert config.mixers == [{"name": "short_long_conv"}, linear] * 2
    assert config.max_position_embeddings is None
    mixer = ShortLongConv(64)
    # D·D and a bias of the gate, 3 and 128 taps and a bias of the filters.
    assert sum(p.numel() for p in mixer.parameters()) == 64 * 64 + 64 + 64 * 4 + 64 * 129
    assert mixer(torch.zeros(2, 150, 64)).shape == (2, 150, 64)
    with pytest.raises(ArgapError, match="short_long_conv: long_kernel 0; expected at least 1"):
        build_mixer({"name": "short_long_conv", "long_kernel": 0}, 64, None)
