"""DeltaNet against its recurrence with a full transition matrix, written from the paper in float64."""

from collections.abc import Callable

import pytest
import torch

from argap.kernels.recurrent.delta_rule import delta_rule
from argap.models.mixers import convolution
from argap.models.mixers.convolution import ShortConvolution
from argap.models.mixers.delta_net import Activation, DeltaNet, KeyNorm
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
