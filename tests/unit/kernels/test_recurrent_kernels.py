"""References of the recurrent operators against loops in float64, and what is particular to one operator's kernels."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from argap.kernels.recurrent import taylor_sums
from argap.kernels.recurrent.gla import gla, gla_reference
from argap.kernels.recurrent.linear_attention import SMALLEST_SUM, linear_attention, linear_attention_reference
from argap.kernels.recurrent.taylor_attention import taylor_attention, taylor_attention_reference, taylor_features
from argap.kernels.recurrent.wkv import wkv, wkv_reference
from argap.kernels.scan import selective_scan as scan_module
from argap.kernels.scan.selective_scan import selective_scan, selective_scan_reference
from tests.unit.kernels.conftest import BFLOAT16, TOLERANCE, relative_error
from tests.unit.kernels.operators import DECAYS, OPERATORS, STRENGTHS, Draw, Given

pytestmark = pytest.mark.usefixtures("kernels_run")


def drawn(name: str, *size: int, dtype: torch.dtype = torch.float64, device: Any = "cpu", **options: Any) -> Given:
    """The inputs of an operator, in float64 whatever their own dtype, or as drawn in another."""
    given = OPERATORS[name].draw(Draw(size[0], dtype, torch.device(device)), *size, **options)
    wide = dtype == torch.float64
    return {key: x.double() if wide and isinstance(x, torch.Tensor) else x for key, x in given.items()}


@pytest.mark.parametrize("strength", STRENGTHS)
def test_gla_is_the_recurrence(strength: float) -> None:
    given = drawn("gla", 40, 3, 5, strength=strength)
    y, after = gla_reference(**given)
    q, k, v, log_decay, state = given.values()
    for t in range(40):
        state = log_decay[:, :, t].exp()[..., None] * state + k[:, :, t, :, None] * v[:, :, t, None]
        expected = torch.einsum("bhk,bhkv->bhv", q[:, :, t], state)
        torch.testing.assert_close(y[:, :, t], expected, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(after, state, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize("ssd", [False, True])
def test_linear_attention_is_the_recurrence(kind: str, ssd: bool) -> None:
    given = drawn("linear_attention", 70, 3, 5, decay=kind, normalize=True, ssd=ssd)
    y, after = linear_attention_reference(**given, chunk=16)
    q, k, v = (given[name].expand(2, 3, 70, -1) for name in "qkv")
    step, skip = (given["step"], given["skip"]) if ssd else (torch.ones(2, 3, 70), torch.zeros(3))
    log_decay, (state, keys) = given["log_decay"], given["state"].split([5, 1], dim=-1)
    for t in range(70):
        a = torch.ones(()) if log_decay is None else log_decay[..., t] if kind == "of a position" else log_decay
        a = a.double().exp()[..., None, None] if log_decay is not None else a
        written = step[:, :, t, None, None] * k[:, :, t, :, None]
        state = a * state + written * v[:, :, t, None]
        keys = a * keys + written
        expected = (q[:, :, t, None] @ state / (q[:, :, t, None] @ keys))[:, :, 0] + skip[:, None] * v[:, :, t]
        torch.testing.assert_close(y[:, :, t], expected, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(after, torch.cat([state, keys], dim=-1), rtol=1e-10, atol=0)


def test_taylor_attention_is_the_second_order_of_the_exponential() -> None:
    given = drawn("taylor_attention", 70, 4, 5, heads=1)
    y, after = taylor_attention_reference(**given, chunk=16)
    q, k, v = (given[name] for name in "qkv")
    s = q @ k.mT / 2  # √4
    weights = (1 + s + s**2 / 2).tril()
    torch.testing.assert_close(y, weights @ v / weights.sum(dim=-1, keepdim=True), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(taylor_features(q) @ taylor_features(k).mT, 1 + s + s**2 / 2, rtol=1e-10, atol=1e-12)
    assert after is not None
    torch.testing.assert_close(after[..., :-1], taylor_features(k).mT @ v, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(after[..., -1], taylor_features(k).sum(dim=2), rtol=1e-10, atol=1e-12)


def test_wkv_is_sums_that_are_not_rescaled() -> None:
    given = drawn("wkv", 20, 5)
    k, v, r, decay, bonus = (given[name] for name in ("k", "v", "receptance", "decay", "bonus"))
    values, weights, top = (x.double() for x in given["state"])
    y, _ = wkv(k, v, decay, bonus, receptance=r, state=(values, weights, top))
    values, weights = values * top.exp(), weights * top.exp()
    for t in range(20):
        own = torch.exp(bonus + k[:, t])
        expected = (values + own * v[:, t]) / (weights + own) * r[:, t].sigmoid()
        torch.testing.assert_close(y[:, t], expected, rtol=1e-12, atol=1e-12)
        values = (-decay).exp() * values + k[:, t].exp() * v[:, t]
        weights = (-decay).exp() * weights + k[:, t].exp()


@pytest.mark.parametrize("chunk", [7, 256])
def test_the_selective_scan_is_the_recurrence(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_module, "CHUNK", chunk)
    given = drawn("selective_scan", 30, 4, 3)
    y, after = selective_scan(**given)
    u, step, A, B, C, skip, gate, h = given.values()
    for t in range(30):
        size = F.softplus(step[:, t])[..., None]
        h = torch.exp(size * A) * h + size * u[:, t, :, None] * B[:, t, None]
        expected = ((h * C[:, t, None]).sum(-1) + skip * u[:, t]) * F.silu(gate[:, t])
        torch.testing.assert_close(y[:, t], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(after, h, rtol=0, atol=1e-12)


@pytest.mark.parametrize("strength", [1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT16])
def test_scale_and_decays_of_gla_from_logits(dtype: torch.dtype, strength: float, device: torch.device) -> None:
    """Logits of both signs; beyond ±88 exp would overflow in float32. With 1e4 the chunks are strong."""
    given = drawn("gla", 70, 20, 40, dtype=dtype, device=device, strength=1.0, state=False)
    given["log_decay"] = logits = (strength * (given["log_decay"] + 0.25)).to(dtype)
    y, after = gla(**given, scale=0.3, temperature=16.0)
    q, k, v = (given[name].double() for name in "qkv")
    expected, last = gla_reference(0.3 * q, k, v, F.logsigmoid(logits.double()) / 16)
    tolerance = max(TOLERANCE[dtype], 2e-4 if strength == 1e4 else 0)
    assert relative_error(y, expected) < tolerance
    assert relative_error(after, last) < tolerance
    by_options, _ = gla_reference(q, k, v, logits.double(), scale=0.3, temperature=16.0)
    assert relative_error(by_options, expected) < 1e-12


def test_one_strong_chunk_of_gla_between_mild_ones(device: torch.device) -> None:
    """Each chunk chooses for itself: only the second of three has a channel that is forgotten, at position 100."""
    given = drawn("gla", 150, 20, 40, dtype=torch.float32, device=device, state=False)
    given["log_decay"][:, :, 100, 7] = -1e4
    y, after = gla(**given)
    expected, last = gla_reference(*(given[name].double() for name in ("q", "k", "v", "log_decay")))
    assert relative_error(y, expected) < 2e-4
    assert relative_error(after, last) < 2e-4


def test_a_sum_of_weights_has_a_lower_bound(device: torch.device) -> None:
    zero, v = torch.zeros(1, 1, 3, 16, device=device), torch.ones(1, 1, 3, 16, device=device)
    assert torch.equal(linear_attention(zero, zero, v, normalize=True)[0], torch.zeros_like(v))
    # A weight of 1e-8 each: the first sum, 1e-8, is less than 1e-6.
    q = torch.zeros(1, 1, 3, 16, device=device)
    q[..., 0] = 1e-4
    y, _ = linear_attention(q, q, v, normalize=True)
    assert y[0, 0, 0, 0].item() == pytest.approx(1e-8 / SMALLEST_SUM, rel=1e-4)


def test_one_query_for_all_heads_and_one_decay(device: torch.device) -> None:
    given = drawn("linear_attention", 33, 20, 40, dtype=torch.float32, device=device, decay="of a head")
    given["q"], given["log_decay"] = given["q"][:, :1].expand(-1, 3, -1, -1), given["log_decay"][1:2].expand(3)
    apart = given | {name: given[name].contiguous() for name in ("q", "log_decay")}
    assert torch.equal(linear_attention(**given)[0], linear_attention(**apart)[0])


def test_taylor_attention_without_the_final_state_has_the_same_bits(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer keys are summed then."""
    monkeypatch.setattr(taylor_sums, "SEGMENT", 64)
    given = drawn("taylor_attention", 100, 4, 8, dtype=torch.float32, device=device, heads=1)
    assert torch.equal(taylor_attention(**given, keep_state=False)[0], taylor_attention(**given)[0])


def test_large_keys_of_wkv_do_not_overflow(device: torch.device) -> None:
    """By hand, with w = log 2, u = 0 and keys 500, −500, 500: at 0 the token itself; at 1 the one before,
    since e^1000 times its own weight; at 2 the first, of half its weight, and itself."""
    k = torch.tensor([500.0, -500, 500], device=device).view(1, 3, 1)
    v = torch.tensor([3.0, 100, 9], device=device).view(1, 3, 1)
    decay, bonus = torch.tensor([2.0], device=device).log(), torch.zeros(1, device=device)
    y, _ = wkv(k, v, decay, bonus)
    # At 2: (3/2 + 9) / (1/2 + 1).
    torch.testing.assert_close(y.flatten().cpu(), torch.tensor([3.0, 3, 7]))


def test_small_steps_of_the_scan_are_exact(device: torch.device) -> None:
    """softplus(−20) = 2.06e−9, where 1 + e^x rounds to 1."""
    ones = torch.ones(1, 1, 1, device=device)
    for raw in (-20.0, -17.0, -15.9, -12.0, -3.0, 0.0, 19.9, 20.1, 80.0):
        _, after = selective_scan(ones, raw * ones, -ones[0], ones, ones)
        expected = float(F.softplus(torch.tensor(raw, dtype=torch.float64)))
        assert abs(float(after) - expected) < 2e-6 * expected


@pytest.mark.gpu
def test_offsets_of_wkv_and_of_the_scan_beyond_32_bits(device: torch.device) -> None:
    x = torch.zeros(2, 2**20 + 8, 1024, dtype=torch.bfloat16, device=device)
    x[1, -8:] = torch.randn(8, 1024).to(x)
    wide = x[1:, -8:].double()
    decay, bonus = torch.full((1024,), 30.0, device=device), torch.zeros(1024, device=device)  # only the last count
    y, _ = wkv(x, x, decay, bonus)
    assert relative_error(y[1:, -7:], wkv_reference(wide, wide, decay, bonus)[0][:, 1:]) < TOLERANCE[torch.bfloat16]
    b, A = torch.randn(2, x.shape[1], 2, device=device), -torch.rand(1024, 2, device=device)
    y, _ = selective_scan(x, x, A, b, b)
    last = b[1:, -8:].double()
    assert relative_error(y[1:, -8:], selective_scan_reference(wide, wide, A.double(), last, last)[0]) < 2e-2
