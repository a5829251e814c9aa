"""The kernels of gated linear attention against their reference in float64, and that against a loop."""

import pytest
import torch

from argap.kernels.recurrent.gla import gla, gla_reference
from tests.unit.kernels.conftest import BFLOAT16, TOLERANCE, relative_error

pytestmark = pytest.mark.usefixtures("kernels_run")

BATCH, HEADS = 2, 3
# Over a chunk of 64 positions a channel decays to about e^−3; e^−50, below float16's range; e^−6000.
STRENGTHS = [0.25, 4.0, 500.0]
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


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
    y, after = gla(q, k, v, log_decay, state=before)
    expected, last = gla_reference(q.double(), k.double(), v.double(), log_decay.double(), state=before.double())
    # Sums of log decays down to −6000 have rounding errors of 6000·2⁻²⁴.
    tolerance = max(TOLERANCE[dtype], 2e-4 if strength == 500 else 0)
    assert y.dtype == dtype
    assert after is not None
    assert after.dtype == torch.float32
    assert relative_error(y, expected) < tolerance
    assert relative_error(after, last) < tolerance


@pytest.mark.parametrize(
    ("length", "key", "value"), [(2, 16, 70), (63, 7, 5), (64, 128, 33), (65, 256, 40), (127, 64, 64), (500, 32, 16)]
)
def test_other_sizes_without_a_state(length: int, key: int, value: int, device: torch.device) -> None:
    q, k, v, log_decay = inputs(length, key, value, 0.25, torch.float32, device)
    y, after = gla(q, k, v, log_decay)
    expected, last = gla_reference(q.double(), k.double(), v.double(), log_decay.double())
    assert relative_error(y, expected) < TOLERANCE[torch.float32]
    assert relative_error(after, last) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("strength", [1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT16])
def test_scale_and_decays_from_logits(dtype: torch.dtype, strength: float, device: torch.device) -> None:
    """Logits of both signs; beyond ±88 exp would overflow in float32. With 1e4 the chunks are strong."""
    q, k, v, uniform = inputs(70, 20, 40, 1.0, dtype, device)
    logits = (strength * (uniform + 0.25)).to(dtype)
    y, after = gla(q, k, v, logits, scale=0.3, temperature=16.0)
    decay = torch.nn.functional.logsigmoid(logits.double()) / 16
    expected, last = gla_reference(0.3 * q.double(), k.double(), v.double(), decay)
    tolerance = max(TOLERANCE[dtype], 2e-4 if strength == 1e4 else 0)
    assert relative_error(y, expected) < tolerance
    assert relative_error(after, last) < tolerance
    by_options, _ = gla_reference(q.double(), k.double(), v.double(), logits.double(), scale=0.3, temperature=16.0)
    assert relative_error(by_options, expected) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT16])
@pytest.mark.parametrize("key", [128, 130, 256])
def test_keys_of_more_than_one_block(key: int, dtype: torch.dtype, device: torch.device) -> None:
    """On a GPU the second block of a key was once computed wrongly."""
    q, k, v, log_decay = inputs(70, key, 16, 0.25, dtype, device)
    before = torch.randn(BATCH, HEADS, key, 16, device=device)
    y, after = gla(q, k, v, log_decay, state=before)
    expected, last = gla_reference(q.double(), k.double(), v.double(), log_decay.double(), state=before.double())
    assert relative_error(y, expected) < TOLERANCE[dtype]
    assert relative_error(after, last) < TOLERANCE[dtype]


def test_one_strong_chunk_between_mild_ones(device: torch.device) -> None:
    """Each chunk chooses for itself: only the second of three has a channel that is forgotten, at position 100."""
    q, k, v, log_decay = inputs(150, 20, 40, 0.25, torch.float32, device)
    log_decay[:, :, 100, 7] = -1e4
    y, after = gla(q, k, v, log_decay)
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
