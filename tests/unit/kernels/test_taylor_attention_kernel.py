"""The kernels of Taylor attention against their reference in float64, and that against its definition."""

import pytest
import torch

from argap.kernels.recurrent import taylor_sums
from argap.kernels.recurrent.taylor_attention import taylor_attention, taylor_attention_reference, taylor_features
from argap.kernels.recurrent.taylor_sums import SEGMENT
from tests.unit.kernels.conftest import BFLOAT16, TOLERANCE, relative_error

pytestmark = pytest.mark.usefixtures("kernels_run")

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


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
    y, after = taylor_attention(q, k, v, state=before, normalize=normalize)
    expected, last = taylor_attention_reference(
        q.double(), k.double(), v.double(), state=before.double(), normalize=normalize
    )
    assert y.dtype == dtype
    assert after is not None
    assert after.dtype == torch.float32
    assert relative_error(y, expected) < TOLERANCE[dtype]
    assert relative_error(after, last) < TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("length", "key", "value"), [(2, 8, 70), (63, 3, 5), (64, 24, 16), (500, 4, 8), (SEGMENT + 30, 4, 8)]
)
def test_other_sizes_without_a_state(length: int, key: int, value: int, device: torch.device) -> None:
    q, k, v = inputs(length, key, value, torch.float32, device, heads=1)
    y, after = taylor_attention(q, k, v)
    expected, last = taylor_attention_reference(q.double(), k.double(), v.double())
    assert relative_error(y, expected) < TOLERANCE[torch.float32]
    assert relative_error(after, last) < TOLERANCE[torch.float32]


def test_without_the_final_state_the_outputs_have_the_same_bits(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fewer keys are summed then."""
    monkeypatch.setattr(taylor_sums, "SEGMENT", 64)
    tensors = inputs(100, 4, 8, torch.float32, device, heads=1)
    assert torch.equal(taylor_attention(*tensors, keep_state=False)[0], taylor_attention(*tensors)[0])


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
