"""The kernels of gated linear attention against their reference in float64, and that against a loop."""

import pytest
import torch

from argap.kernels import gla as module
from argap.kernels.gla import gla, gla_reference
from tests.kernels.conftest import TOLERANCE, relative_error

pytestmark = pytest.mark.usefixtures("outputs_start_as_nan")

BATCH, HEADS = 2, 3
BFLOAT16 = pytest.param(torch.bfloat16, marks=pytest.mark.gpu)
# Over a chunk of 64 positions a channel decays to about e^−3; e^−50, below float16's range; e^−6000.
STRENGTHS = [0.25, 4.0, 500.0]
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def kernel(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, log_decay: torch.Tensor, state: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    y, after = module._forward(q, k, v, log_decay, 1.0, None, state, True)
    assert after is not None
    return y, after


def inputs(length: int, key: int, value: int, strength: float, dtype: torch.dtype, device: torch.device) -> Inputs:
    """Decays in float32, near 1 at most positions."""
    generator = torch.Generator().manual_seed(length)
    q, k = (torch.randn(BATCH, HEADS, length, key, generator=generator) for _ in range(2))
    v = torch.randn(BATCH, HEADS, length, value, generator=generator)
    log_decay = -strength * torch.rand(BATCH, HEADS, length, key, generator=generator) ** 4
    return q.to(device, dtype), k.to(device, dtype), v.to(device, dtype), log_decay.to(device)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT16])
@pytest.mark.parametrize("strength", STRENGTHS)
@pytest.mark.parametrize(("length", "key", "value"), [(1, 16, 16), (65, 20, 40)])
def test_it_is_the_reference(
    length: int, key: int, value: int, strength: float, dtype: torch.dtype, device: torch.device
) -> None:
    q, k, v, log_decay = inputs(length, key, value, strength, dtype, device)
    before = torch.randn(BATCH, HEADS, key, value, device=device)
    y, after = kernel(q, k, v, log_decay, before)
    expected, last = gla_reference(q.double(), k.double(), v.double(), log_decay.double(), state=before.double())
    # Sums of log decays down to −6000 have rounding errors of 6000·2⁻²⁴.
    tolerance = max(TOLERANCE[dtype], 2e-4 if strength == 500 else 0)
    assert y.dtype == dtype
    assert after.dtype == torch.float32
    assert relative_error(y, expected) < tolerance
    assert relative_error(after, last) < tolerance


@pytest.mark.parametrize(
    ("length", "key", "value"), [(2, 16, 70), (63, 7, 5), (64, 128, 33), (65, 256, 40), (127, 64, 64), (500, 32, 16)]
)
def test_other_sizes_without_a_state(length: int, key: int, value: int, device: torch.device) -> None:
    q, k, v, log_decay = inputs(length, key, value, 0.25, torch.float32, device)
    y, after = kernel(q, k, v, log_decay)
    expected, last = gla_reference(q.double(), k.double(), v.double(), log_decay.double())
    assert relative_error(y, expected) < TOLERANCE[torch.float32]
    assert relative_error(after, last) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("strength", [1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT16])
def test_scale_and_decays_from_logits(dtype: torch.dtype, strength: float, device: torch.device) -> None:
    """Logits of both signs; beyond ±88 exp would overflow in float32. With 1e4 the chunks are strong."""
    q, k, v, uniform = inputs(70, 20, 40, 1.0, dtype, device)
    logits = (strength * (uniform + 0.25)).to(dtype)
    y, after = module._forward(q, k, v, logits, 0.3, 16.0, None, True)
    decay = torch.nn.functional.logsigmoid(logits.double()) / 16
    expected, last = gla_reference(0.3 * q.double(), k.double(), v.double(), decay)
    tolerance = max(TOLERANCE[dtype], 2e-4 if strength == 1e4 else 0)
    assert relative_error(y, expected) < tolerance
    assert relative_error(after, last) < tolerance
    by_options, _ = gla_reference(q.double(), k.double(), v.double(), logits.double(), scale=0.3, temperature=16.0)
    assert relative_error(by_options, expected) < 1e-12


def test_one_strong_chunk_between_mild_ones(device: torch.device) -> None:
    """Each chunk chooses for itself: only the second of three has a channel that is forgotten, at position 100."""
    q, k, v, log_decay = inputs(150, 20, 40, 0.25, torch.float32, device)
    log_decay[:, :, 100, 7] = -1e4
    y, after = kernel(q, k, v, log_decay)
    expected, last = gla_reference(q.double(), k.double(), v.double(), log_decay.double())
    assert relative_error(y, expected) < 2e-4
    assert relative_error(after, last) < 2e-4


@pytest.mark.parametrize("strength", STRENGTHS)
def test_the_reference_is_the_recurrence(strength: float) -> None:
    q, k, v, log_decay = (x.double() for x in inputs(40, 3, 5, strength, torch.float32, torch.device("cpu")))
    y, after = gla_reference(q, k, v, log_decay)
    state = torch.zeros(BATCH, HEADS, 3, 5, dtype=torch.float64)
    for t in range(40):
        state = log_decay[:, :, t].exp()[..., None] * state + k[:, :, t, :, None] * v[:, :, t, None]
        expected = torch.einsum("bhk,bhkv->bhv", q[:, :, t], state)
        torch.testing.assert_close(y[:, :, t], expected, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(after, state, rtol=1e-9, atol=1e-11)


def test_strides_of_any_kind_give_the_same_bits(device: torch.device) -> None:
    tensors = inputs(65, 20, 40, 0.25, torch.float32, device)
    expected = kernel(*tensors)[0]
    a, b, c, d = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors)
    assert torch.equal(kernel(a, b, c, d)[0], expected)
    a, b, c, d = (torch.stack([x, x + 1], dim=-1)[..., 0] for x in tensors)
    assert torch.equal(kernel(a, b, c, d)[0], expected)


@pytest.mark.parametrize("strength", [0.25, 500.0])
def test_the_same_bits_again_alone_and_cut_short(strength: float, device: torch.device) -> None:
    q, k, v, log_decay = inputs(70, 20, 40, strength, torch.float32, device)
    y, after = kernel(q, k, v, log_decay)
    again, after_again = kernel(q, k, v, log_decay)
    assert torch.equal(again, y)
    assert torch.equal(after_again, after)
    assert torch.equal(kernel(q[1:], k[1:], v[1:], log_decay[1:])[0], y[1:])
    # Cut at the end of a chunk: later positions of a chunk may decide how its scores are computed, and so the last bit.
    q, k, v, log_decay = (x[:, :, :64] for x in (q, k, v, log_decay))
    assert torch.equal(kernel(q, k, v, log_decay)[0], y[:, :, :64])


def test_the_state_carries_over_a_split_sequence(device: torch.device) -> None:
    tensors = inputs(127, 20, 40, 0.25, torch.float32, device)
    whole, last = kernel(*tensors)
    q, k, v, log_decay = (x[:, :, :70] for x in tensors)
    first, middle = kernel(q, k, v, log_decay)
    q, k, v, log_decay = (x[:, :, 70:] for x in tensors)
    second, end = kernel(q, k, v, log_decay, middle)
    torch.testing.assert_close(torch.cat([first, second], dim=2), whole, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(end, last, rtol=1e-4, atol=1e-4)


def test_where_a_gradient_is_asked_for_the_reference_runs(device: torch.device) -> None:
    q, k, v, log_decay = inputs(5, 16, 16, 0.25, torch.float32, device)
    log_decay.requires_grad_()
    y, state = gla(q, k, v, log_decay, keep_state=False)
    assert state is None
    y.sum().backward()
    assert log_decay.grad is not None
    assert log_decay.grad.abs().max() > 0


@pytest.mark.gpu
def test_on_a_gpu_the_kernels_run() -> None:
    tensors = inputs(65, 64, 64, 0.25, torch.bfloat16, torch.device("cuda"))
    assert torch.equal(gla(*tensors)[0], kernel(*tensors)[0])
    assert not torch.equal(gla(*tensors)[0], gla_reference(*tensors)[0])


@pytest.mark.gpu
def test_offsets_beyond_31_bits() -> None:
    q = torch.rand(66, 8192, 64, 64, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
    assert q.numel() > 2**31
    y, _ = gla(q, q, q, -q, keep_state=False)
    alone, _ = gla(q[-1:], q[-1:], q[-1:], -q[-1:], keep_state=False)
    assert torch.equal(y[-1:], alone)
