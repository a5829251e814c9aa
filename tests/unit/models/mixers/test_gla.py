"""Gated linear attention against its recurrence, written from the paper in float64."""

import math

import pytest
import torch

from argap.models.mixers.convolution import ShortConvolution
from argap.models.mixers.gla import GLA
from tests.builders.weights import redraw

WIDTH, HEADS, LENGTH = 8, 2, 37


@pytest.mark.parametrize("taps", [None, 3])
@torch.no_grad()
def test_gla_is_the_papers_recurrence(taps: int | None) -> None:
    torch.manual_seed(1)
    mixer = GLA(WIDTH, heads=HEADS, gate_rank=3, gate_temperature=2.0, conv_size=taps).double()
    redraw(mixer)
    x = torch.randn(LENGTH, WIDTH, dtype=torch.float64)
    qkv = x @ mixer.qkv.weight.T
    if isinstance(mixer.conv, ShortConvolution):
        convolved = torch.zeros_like(qkv)
        for t in range(LENGTH):
            for s in range(min(t + 1, len(mixer.conv.weight))):
                convolved[t] += mixer.conv.weight[s] * qkv[t - s]
        qkv = convolved * convolved.sigmoid()
    logits = x @ mixer.decay_down.weight.T @ mixer.decay_up.weight.T + mixer.decay_up.bias
    alpha = logits.sigmoid() ** (1 / 2.0)
    gate = x @ mixer.gate.weight.T + mixer.gate.bias
    key, value = 2, 4  # K: half of the width, over 2 heads
    heads = torch.zeros(LENGTH, WIDTH, dtype=torch.float64)
    for h in range(HEADS):
        state = torch.zeros(key, value, dtype=torch.float64)
        rows, columns = slice(h * key, (h + 1) * key), slice(h * value, (h + 1) * value)
        for t in range(LENGTH):
            q, k, v = qkv[t, :4][rows], qkv[t, 4:8][rows], qkv[t, 8:][columns]
            state = alpha[t, rows].diag() @ state + torch.outer(k, v)
            o = q @ state / math.sqrt(key)
            heads[t, columns] = o / (o.square().mean() + 1e-5).sqrt() * mixer.norm.weight
    expected = (gate * gate.sigmoid() * heads) @ mixer.out.weight.T
    torch.testing.assert_close(mixer(x[None])[0], expected, rtol=0, atol=1e-11)


@torch.no_grad()
def test_a_shut_gate_forgets_all_without_overflow() -> None:
    """α = e^−1000 in float32: what is left is the position itself, q·k v / √K."""
    mixer = GLA(WIDTH, heads=1, gate_temperature=1.0)
    torch.manual_seed(2)
    redraw(mixer)
    torch.nn.init.constant_(mixer.decay_up.bias, -1000.0)
    x = torch.randn(1, 40, WIDTH)
    alone = torch.cat([mixer(x[:, t : t + 1]) for t in range(40)], dim=1)
    torch.testing.assert_close(mixer(x), alone, rtol=1e-4, atol=1e-4)
