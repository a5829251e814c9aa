"""The kernels of Taylor attention against their reference in float64, and that against its definition."""

import pytest
import torch

from argap.kernels import taylor_attention as module
from argap.kernels import taylor_sums
from argap.kernels.taylor_attention import taylor_attention, taylor_attention_reference, taylor_features
from argap.kernels.taylor_sums import SEGMENT
from tests.kernels.conftest import TOLERANCE, relative_error

pytestmark = pytest.mark.usefixtures("outputs_start_as_nan")

BFLOAT16 = pytest.param(torch.bfloat16, marks=pytest.mark.gpu)
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    state: torch.Tensor | None = None,
    normalize: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    y, after = module._forward(q, k, v, state, normalize, True)
    assert after is not None
    return y, after


def inputs(length: int, key: int, value: int, dtype: torch.dtype, device: torch.device, heads: int = 2) -> Inputs:
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(2, heads, length, size, generator=generator) for size in (key, key, value))
    return q.to(device, dtype), k.to(device, dtype), v.to(device, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT16])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("length", "key", "value"), [(1, 16, 64), (65, 5, 40), (127, 16, 20)])
def test_it_is_the_reference(
    length: int, key: int, value: int, normalize: bool, dtype: torch.dtype, device: torch.device
) -> None:
    q, k, v = inputs(length, key, value, dtype, device)
    _, before = taylor_attention_reference(*(x[:, :, :3].float() for x in (k, q, v)), normalize=normalize)
    assert before is not None
    y, after = kernel(q, k, v, before, normalize)
    expected, last = taylor_attention_reference(
        q.double(), k.double(), v.double(), state=before.double(), normalize=normalize
    )
    assert y.dtype == dtype
    assert after.dtype == torch.float32
    assert relative_error(y, expected) < TOLERANCE[dtype]
    assert relative_error(after, last) < TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("length", "key", "value"), [(2, 8, 70), (63, 3, 5), (64, 24, 16), (500, 4, 8), (SEGMENT + 30, 4, 8)]
)
def test_other_sizes_without_a_state(length: int, key: int, value: int, device: torch.device) -> None:
    q, k, v = inputs(length, key, value, torch.float32, device, heads=1)
    y, after = kernel(q, k, v)
    expected, last = taylor_attention_reference(q.double(), k.double(), v.double())
    assert relative_error(y, expected) < TOLERANCE[torch.float32]
    assert relative_error(after, last) < TOLERANCE[torch.float32]


def test_the_reference_is_the_second_order_of_the_exponential() -> None:
    q, k, v = (x.double() for x in inputs(70, 4, 5, torch.float32, torch.device("cpu")))
    y, after = taylor_attention_reference(q, k, v, chunk=16)
    s = q @ k.mT / 2  # √4
    weights = (1 + s + s**2 / 2).tril()
    torch.testing.assert_close(y, weights @ v / weights.sum(dim=-1, keepdim=True), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(taylor_features(q) @ taylor_features(k).mT, 1 + s + s**2 / 2, rtol=1e-10, atol=1e-12)
    assert after is not None
    torch.testing.assert_close(after[..., :-1], taylor_features(k).mT @ v, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(after[..., -1], taylor_features(k).sum(dim=2), rtol=1e-10, atol=1e-12)


def test_strides_of_any_kind_give_the_same_bits(device: torch.device) -> None:
    tensors = inputs(65, 8, 20, torch.float32, device)
    expected = kernel(*tensors)[0]
    a, b, c = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors)
    assert torch.equal(kernel(a, b, c)[0], expected)
    a, b, c = (torch.stack([x, x + 1], dim=-1)[..., 0] for x in tensors)
    assert torch.equal(kernel(a, b, c)[0], expected)


def test_the_same_bits_again_alone_and_cut_short(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taylor_sums, "SEGMENT", 64)
    q, k, v = inputs(100, 4, 8, torch.float32, device, heads=1)
    y, after = kernel(q, k, v)
    again, after_again = kernel(q, k, v)
    assert torch.equal(again, y)
    assert torch.equal(after_again, after)
    assert torch.equal(kernel(q[1:], k[1:], v[1:])[0], y[1:])
    for length in (40, 70):
        assert torch.equal(kernel(q[:, :, :length], k[:, :, :length], v[:, :, :length])[0], y[:, :, :length])
    # Without the final state fewer keys are summed; the outputs are the same.
    assert torch.equal(module._forward(q, k, v, None, True, False)[0], y)


def test_the_state_carries_over_a_split_sequence(device: torch.device) -> None:
    q, k, v = inputs(127, 8, 20, torch.float32, device)
    whole, last = kernel(q, k, v)
    first, middle = kernel(q[:, :, :70], k[:, :, :70], v[:, :, :70])
    second, end = kernel(q[:, :, 70:], k[:, :, 70:], v[:, :, 70:], middle)
    torch.testing.assert_close(torch.cat([first, second], dim=2), whole, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(end, last, rtol=1e-4, atol=1e-4)


def test_where_a_gradient_is_asked_for_the_reference_runs(device: torch.device) -> None:
    q, k, v = inputs(5, 4, 16, torch.float32, device)
    q.requires_grad_()
    y, state = taylor_attention(q, k, v, keep_state=False)
    assert state is None
    y.square().sum().backward()
    assert q.grad is not None
    assert q.grad.abs().max() > 0


@pytest.mark.gpu
def test_on_a_gpu_the_kernels_run() -> None:
    tensors = inputs(SEGMENT + 65, 16, 64, torch.bfloat16, torch.device("cuda"))
    assert torch.equal(taylor_attention(*tensors)[0], kernel(*tensors)[0])
    assert not torch.equal(taylor_attention(*tensors)[0], taylor_attention_reference(*tensors)[0])


@pytest.mark.gpu
def test_offsets_beyond_31_bits() -> None:
    v = torch.rand(66, 8192, 64, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    q = v[..., :16]
    assert v.numel() > 2**31
    y, _ = taylor_attention(q, q, v, keep_state=False)
    alone, _ = taylor_attention(q[-1:], q[-1:], v[-1:], keep_state=False)
    assert torch.equal(y[-1:], alone)
