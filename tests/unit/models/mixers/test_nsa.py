"""Native sparse attention against its equations written out, a case by hand, and flash-linear-attention's functions."""

import warnings
from itertools import product
from typing import Any

import pytest
import torch

from argap.errors import ArgapError
from argap.models.mixers import nsa
from argap.models.mixers.nsa import NSA, BlockMap

SIZES: dict[str, Any] = {"block": 4, "stride": 2, "selected_block": 8, "selected": 4, "window": 10}
LENGTH = 41


def drawn(**options: Any) -> NSA:
    torch.manual_seed(0)
    mixer = NSA(16, heads=4, kv_heads=2, **options).double().eval()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return mixer


@pytest.mark.parametrize(
    "options",
    [
        SIZES,
        {**SIZES, "positions": "none", "window": 1, "selected": 3},
        {**SIZES, "block": 8, "stride": 8, "rope_theta": 50.0},
        {**SIZES, "block": 3, "stride": 1, "selected_block": 5},
        {**SIZES, "window": 100, "selected": 16},
    ],
)
@torch.no_grad()
def test_it_is_its_equations(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where queries are taken in pieces."""
    mixer, x = drawn(**options), torch.randn(1, LENGTH, 16, dtype=torch.float64)
    expected = written_out(mixer, x[0])
    torch.testing.assert_close(mixer(x)[0], expected, rtol=0, atol=1e-10)
    monkeypatch.setattr(nsa, "QUERIES", 7)
    torch.testing.assert_close(mixer(x)[0], expected, rtol=0, atol=1e-10)


def written_out(mixer: NSA, x: torch.Tensor) -> torch.Tensor:
    """Equations 5 to 12, position by position and head by head; positions t from 0, blocks from 1 as in the paper."""
    size, groups, shared = mixer.size, mixer.groups, mixer.heads // mixer.groups
    kv = mixer.kv(x).view(LENGTH, 3, 2, groups, size)
    q = mixer.query(x).view(LENGTH, mixer.heads, size)
    l, d, long = mixer.block, mixer.stride, mixer.selected_block  # noqa: E741

    def turned(y: torch.Tensor, place: int) -> torch.Tensor:
        if not mixer.rotary:
            return y
        rates = mixer.rope_theta ** -(torch.arange(size // 2, dtype=y.dtype) * 2 / size)
        turn = torch.complex(*y.chunk(2, dim=-1)) * torch.polar(torch.ones_like(rates), place * rates)
        return torch.cat([turn.real, turn.imag], dim=-1)

    def attended(query: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]) -> Any:
        if not keys:
            return torch.zeros(size, dtype=x.dtype), torch.zeros(0, dtype=x.dtype)
        weights = (torch.stack(keys) @ query / size**0.5).softmax(0)
        return weights @ torch.stack(values), weights

    def phi(of: BlockMap, block: torch.Tensor) -> torch.Tensor:
        hidden = torch.stack([of.hidden.weight @ (y + place) for y, place in zip(block, of.places, strict=True)])
        return of.last.weight @ (hidden * hidden.sigmoid()).mean(0)

    outputs = []
    for t in range(LENGTH):
        y = torch.zeros(mixer.heads, size, dtype=x.dtype)
        gates = mixer.gates(x[t]).sigmoid().view(mixer.heads, 3)
        for group in range(groups):
            members = range(group * shared, (group + 1) * shared)
            queries = {h: turned(q[t, h], t) for h in members}
            starts = range(0, max(0, t + 2 - l), d)
            keys = [turned(phi(mixer.key_map, kv[s : s + l, 0, 0, group]), s) for s in starts]
            values = [phi(mixer.value_map, kv[s : s + l, 0, 1, group]) for s in starts]
            importance = dict.fromkeys(range(1, t // long + 2), 0.0)
            for h in members:
                found, weights = attended(queries[h], keys, values)
                y[h] += gates[h, 0] * found
                p = dict(enumerate(weights.tolist(), start=1))
                for j in importance:
                    pairs = product(range(long // d), range(l // d))
                    importance[j] += sum(p.get(long // d * j - m - n, 0) for m, n in pairs)
            own = t // long + 1
            ranked = sorted(importance, key=lambda j: (j not in (1, own - 1, own), -importance[j], j))
            chosen = [s for j in ranked[: mixer.selected] for s in range((j - 1) * long, j * long) if s <= t]
            for branch, places in ((1, chosen), (2, range(max(0, t + 1 - mixer.window), t + 1))):
                keys = [turned(kv[s, branch, 0, group], s) for s in places]
                values = [kv[s, branch, 1, group] for s in places]
                for h in members:
                    y[h] += gates[h, branch] * attended(queries[h], keys, values)[0]
        outputs.append(mixer.out(y.flatten()))
    return torch.stack(outputs)


@torch.no_grad()
def test_a_case_by_hand() -> None:
    """One head of one number, blocks of one, n = 4, w = 3, at inputs 0 0 0 1 0 1; the gates are ½.

    With a query ln 3 at inputs of 1 and 0 elsewhere, the last position weighs inputs of 1 three times as much as the
    others. Compressed: 6 of 10. Selected are 0, 4, 5 always, and 3 for its weight: 6 of 1 + 3 + 1 + 3. Window: 3 to 5,
    6 of 7. Position 4 weighs all alike: 1 of 5; of 0, 3, 4 and, first of two equals, 1: 1 of 4; of 2 to 4: 1 of 3.
    """
    mixer = NSA(1, heads=1, block=1, stride=1, selected_block=1, selected=4, window=3, positions="none").double()
    one = torch.nn.functional.silu(torch.ones(1, 1, dtype=torch.float64))
    for weight in mixer.parameters():
        torch.nn.init.ones_(weight)
    for module in (mixer.key_map, mixer.value_map):  # φ(k) = silu(k) / silu(1)
        torch.nn.init.zeros_(module.places)
        module.last.weight.copy_(1 / one)
    torch.nn.init.zeros_(mixer.gates.weight)
    mixer.query.weight.copy_(torch.tensor([[3.0]]).log())
    y = mixer(torch.tensor([0, 0, 0, 1, 0, 1], dtype=torch.float64)[None, :, None])[0, :, 0]
    assert y[5].item() == pytest.approx((6 / 10 + 6 / 8 + 6 / 7) / 2, abs=1e-6)
    assert y[4].item() == pytest.approx((1 / 5 + 1 / 4 + 1 / 3) / 2, abs=1e-6)


@torch.no_grad()
def test_compressed_and_selected_attention_are_flash_linear_attentions(fla_models) -> None:
    """Theirs has blocks of one size, and the same keys in both branches."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that flash-attn, which these functions do not need, is not installed
        from fla.ops.nsa.naive import naive_nsa_compression, naive_nsa_selection, naive_nsa_topk
    size, block, scale = 4, 8, 0.5
    mixer = drawn(**SIZES | {"block": block, "stride": block, "selected_block": block, "selected": 4}).float()
    q, k, v = (torch.randn(2, heads, 70, size) for heads in (4, 2, 2))
    k_block, v_block = (x[:, :, :64].unflatten(2, (8, 8)).mean(3) for x in (k, v))
    kv = torch.cat([k, v], dim=1)
    found = mixer._attend(q, 0, torch.cat([k_block, v_block], dim=1), kv, kv[:, :, -1:])
    theirs_q, theirs_k, theirs_v, theirs_block, values = (x.transpose(1, 2) for x in (q, k, v, k_block, v_block))
    compressed, _ = naive_nsa_compression(theirs_q, theirs_block, values, block, scale)
    torch.testing.assert_close(found[:, :, :, 0], compressed.transpose(1, 2), rtol=0, atol=1e-5)
    padded = torch.cat([theirs_block, theirs_block[:, :1]], dim=1)  # their own block, 64 to 69, which no query sees yet
    chosen = naive_nsa_topk(theirs_q, padded, 4, block, scale)
    selected = naive_nsa_selection(theirs_q, theirs_k, theirs_v, chosen, block, scale)
    torch.testing.assert_close(found[:, :, :, 1], selected.transpose(1, 2), rtol=0, atol=1e-5)


@torch.no_grad()
def test_operations_are_those_of_the_pairs_that_are_seen() -> None:
    """8 positions, l = 4, d = 2, l' = 8, w = 10: 0 0 0 1 1 2 2 3 compressed blocks, and 36 pairs in each other branch.

    Two groups of heads of 4: three blocks of φ for keys and values, 4·4·5·4 each; 4·16 for each pair.
    """
    maps = 2 * 8 * (16 * 16 + 16 * 3 * 2 * 8 + 16 * 12 + 16 * 16)
    assert drawn(**SIZES).flops(1, 8) == maps + 2 * 3 * 4 * 4 * 5 * 4 + 64 * (9 + 36 + 36)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kv_heads": 3}, "nsa: kv_heads 3; expected a divisor of the 4 heads"),
        ({"block": 5, "stride": 2}, "nsa: block 5, stride 2, selected_block 64; expected a stride that divides"),
        ({"selected_block": 24}, "nsa: block 32, stride 16, selected_block 24; expected"),
        ({"selected_block": 16}, "at least as long as the other"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgapError, match=said):
        NSA(16, heads=4, **options)
