"""Retention against its matrix form, one head and one pair at a time, in float64."""

import cmath
import math

import pytest
import torch

from argap.models.mixers.retnet import Norm, RetNet
from tests.builders.weights import redraw

WIDTH, HEADS, LENGTH = 8, 2, 13


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
