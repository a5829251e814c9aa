"""The kernel of linear attention and retention against its reference in float64, and that against a loop."""

import pytest
import torch

from argap.kernels.recurrent.linear_attention import SMALLEST_SUM, linear_attention, linear_attention_reference
from tests.unit.kernels.conftest import BFLOAT16, TOLERANCE, relative_error

BATCH, HEADS = 2, 3
DECAYS = ["none", "of a head", "of a position"]
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


pytestmark = pytest.mark.usefixtures("kernels_run")


def inputs(length: int, key: int, value: int, dtype: torch.dtype, device: torch.device) -> Inputs:
    """Positive q and k, so that their sums are far from 0."""
    generator = torch.Generator().manual_seed(length)
    q, k = (torch.rand(BATCH, HEADS, length, key, generator=generator) for _ in range(2))
    v = torch.randn(BATCH, HEADS, length, value, generator=generator)
    return q.to(device, dtype), k.to(device, dtype), v.to(device, dtype)


def decay(kind: str, length: int, device: torch.device) -> torch.Tensor | None:
    """Decays from 1 down to e^−50, for which a quotient of two products of decays overflows."""
    if kind == "of a head":
        return torch.tensor([0.0, -0.02, -50.0], device=device)
    if kind == "of a position":
        generator = torch.Generator().manual_seed(length)
        return -50 * torch.rand(BATCH, HEADS, length, generator=generator).to(device) ** 8
    return None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT16])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kind", DECAYS)
@pytest.mark.parametrize(("length", "key", "value"), [(1, 16, 16), (65, 20, 40), (127, 64, 64)])
def test_it_is_the_reference(
    length: int, key: int, value: int, kind: str, normalize: bool, dtype: torch.dtype, device: torch.device
) -> None:
    q, k, v = inputs(length, key, value, dtype, device)
    log_decay = decay(kind, length, device)
    before = torch.rand(BATCH, HEADS, key, value + normalize, device=device)
    y, after = linear_attention(q, k, v, log_decay=log_decay, state=before, normalize=normalize)
    wide = None if log_decay is None else log_decay.double()
    expected, last = linear_attention_reference(
        q.double(), k.double(), v.double(), log_decay=wide, state=before.double(), normalize=normalize
    )
    assert y.dtype == dtype
    assert after is not None
    assert after.dtype == torch.float32
    assert relative_error(y, expected) < TOLERANCE[dtype]
    assert relative_error(after, last) < TOLERANCE[dtype]


@pytest.mark.parametrize(("length", "key", "value"), [(2, 16, 70), (63, 7, 5), (64, 128, 33), (500, 32, 16)])
def test_other_sizes_without_a_state(length: int, key: int, value: int, device: torch.device) -> None:
    q, k, v = inputs(length, key, value, torch.float32, device)
    rates = decay("of a head", length, device)
    y, after = linear_attention(q, k, v, log_decay=rates)
    expected, last = linear_attention_reference(q.double(), k.double(), v.double(), log_decay=rates)
    assert relative_error(y, expected) < TOLERANCE[torch.float32]
    assert relative_error(after, last) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("key", [200, 300])
def test_wide_keys(key: int, device: torch.device) -> None:
    q, k, v = inputs(40, key, 20, torch.float32, device)
    y, _ = linear_attention(q, k, v)
    expected, _ = linear_attention_reference(q.double(), k.double(), v.double())
    assert relative_error(y, expected) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("kind", DECAYS)
def test_the_reference_is_the_recurrence(kind: str) -> None:
    q, k, v = (x.double() for x in inputs(70, 3, 5, torch.float32, torch.device("cpu")))
    log_decay = decay(kind, 70, torch.device("cpu"))
    y, after = linear_attention_reference(q, k, v, log_decay=log_decay, normalize=True, chunk=16)
    state, keys = torch.zeros(BATCH, HEADS, 3, 5, dtype=torch.float64), torch.zeros(BATCH, HEADS, 3)
    for t in range(70):
        a = torch.ones(()) if log_decay is None else log_decay[..., t] if kind == "of a position" else log_decay
        a = a.double().exp() if log_decay is not None else a
        state = a[..., None, None] * state + k[:, :, t, :, None] * v[:, :, t, None]
        keys = a[..., None] * keys + k[:, :, t]
        expected = torch.einsum("bhk,bhkv->bhv", q[:, :, t], state) / (q[:, :, t] * keys).sum(-1, keepdim=True)
        torch.testing.assert_close(y[:, :, t], expected, rtol=1e-10, atol=0)
    torch.testing.assert_close(after, torch.cat([state, keys[..., None]], dim=-1), rtol=1e-10, atol=0)


def test_a_sum_of_weights_has_a_lower_bound(device: torch.device) -> None:
    zero, v = torch.zeros(1, 1, 3, 16, device=device), torch.ones(1, 1, 3, 16, device=device)
    assert torch.equal(linear_attention(zero, zero, v, normalize=True)[0], torch.zeros_like(v))
    # A weight of 1e-8 each: the first sum, 1e-8, is less than 1e-6.
    q = torch.zeros(1, 1, 3, 16, device=device)
    q[..., 0] = 1e-4
    y, _ = linear_attention(q, q, v, normalize=True)
    assert y[0, 0, 0, 0].item() == pytest.approx(1e-8 / SMALLEST_SUM, rel=1e-4)


def test_strides_of_decays_and_one_query_for_all_heads(device: torch.device) -> None:
    q, k, v = inputs(33, 20, 40, torch.float32, device)
    rates = decay("of a head", 33, device)
    assert rates is not None
    for given in (torch.stack([rates, rates], dim=-1)[:, 0], rates[1:2].expand(HEADS)):
        same = linear_attention(q, k, v, log_decay=given.contiguous())[0]
        assert torch.equal(linear_attention(q, k, v, log_decay=given)[0], same)
    one = q[:, :1].expand(-1, HEADS, -1, -1)
    assert torch.equal(linear_attention(one, k, v)[0], linear_attention(one.contiguous(), k, v)[0])


def test_where_a_gradient_is_asked_for_the_reference_runs(device: torch.device) -> None:
    q, k, v = inputs(5, 16, 16, torch.float32, device)
    q.requires_grad_()
    y, state = linear_attention(q, k, v, keep_state=False)
    assert state is None
    y.sum().backward()
    assert q.grad is not None
    torch.testing.assert_close(q.grad, _gradient_of_sum(k, v), rtol=1e-4, atol=1e-5)


def _gradient_of_sum(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """∂ Σ y / ∂ q_t = Σ_{s≤t} k_s Σ v_s."""
    return (k * v.sum(dim=-1, keepdim=True)).cumsum(dim=2)
