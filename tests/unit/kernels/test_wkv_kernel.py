"""The kernels of WKV against their reference in float64, and that against sums that are not rescaled."""

import pytest
import torch

from argap.kernels.recurrent import wkv as module
from argap.kernels.recurrent.wkv import Sums, wkv, wkv_reference
from tests.unit.kernels.conftest import BFLOAT16, TOLERANCE, relative_error

pytestmark = pytest.mark.usefixtures("kernels_run")


def inputs(length: int, width: int, dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
    """k, v, r as parts of a wider row; decays from e^−5 to e^3 a step; boni."""
    generator = torch.Generator().manual_seed(length)
    k, v, r = (3 * torch.randn(2, length, 3 * width, generator=generator)).to(device, dtype).chunk(3, dim=-1)
    decay = torch.linspace(-5, 3, width, device=device).exp()
    return [k, v, r, decay, torch.randn(width, generator=generator).to(device)]


def before(width: int, device: torch.device) -> Sums:
    return (
        torch.randn(2, width, device=device),
        torch.rand(2, width, device=device) + 1,
        3 * torch.randn(2, width, device=device),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT16])
@pytest.mark.parametrize(
    ("length", "width", "segment"),
    [(1, 5, 64), (2, 32, 64), (63, 40, 64), (64, 33, 64), (65, 40, 64), (127, 8, 32), (260, 4, 128)],
)
def test_it_is_the_reference(
    length: int, width: int, segment: int, dtype: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEGMENT", segment)
    k, v, r, decay, bonus = inputs(length, width, dtype, device)
    state = before(width, device)
    y, after = wkv(k, v, decay, bonus, receptance=r, state=state)
    k, v, r, decay, bonus = (x.double() for x in (k, v, r, decay, bonus))
    values, weights, top = (x.double() for x in state)
    expected, expected_after = wkv_reference(k, v, decay, bonus, receptance=r, state=(values, weights, top))
    assert y.dtype == dtype
    assert relative_error(y, expected) < TOLERANCE[dtype]
    for found, sums in zip(after, expected_after, strict=True):
        assert found.dtype == torch.float32
        assert relative_error(found, sums) < 4 * TOLERANCE[torch.float32]


def test_the_reference_is_the_definition() -> None:
    k, v, r, decay, bonus = (x.double() for x in inputs(20, 5, torch.float32, torch.device("cpu")))
    values, weights, top = (x.double() for x in before(5, torch.device("cpu")))
    y, _ = wkv(k, v, decay, bonus, receptance=r, state=(values, weights, top))
    values, weights = values * top.exp(), weights * top.exp()
    for t in range(20):
        own = torch.exp(bonus + k[:, t])
        expected = (values + own * v[:, t]) / (weights + own) * r[:, t].sigmoid()
        torch.testing.assert_close(y[:, t], expected, rtol=1e-12, atol=1e-12)
        values = (-decay).exp() * values + k[:, t].exp() * v[:, t]
        weights = (-decay).exp() * weights + k[:, t].exp()


def test_large_keys_do_not_overflow(device: torch.device) -> None:
    """By hand, with w = log 2, u = 0 and keys 500, −500, 500: at 0 the token itself; at 1 the one before,
    since e^1000 times its own weight; at 2 the first, of half its weight, and itself."""
    k = torch.tensor([500.0, -500, 500], device=device).view(1, 3, 1)
    v = torch.tensor([3.0, 100, 9], device=device).view(1, 3, 1)
    decay, bonus = torch.tensor([2.0], device=device).log(), torch.zeros(1, device=device)
    y, _ = wkv(k, v, decay, bonus)
    # At 2: (3/2 + 9) / (1/2 + 1).
    torch.testing.assert_close(y.flatten().cpu(), torch.tensor([3.0, 3, 7]))


def test_a_longer_sequence_begins_with_the_same_bits(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEGMENT", 32)
    k, v, r, decay, bonus = inputs(70, 5, torch.float32, device)
    y, after = wkv(k, v, decay, bonus, receptance=r)
    assert torch.equal(wkv(k, v, decay, bonus, receptance=r)[0], y)
    for length in (5, 60):
        shorter, middle = wkv(k[1:, :length], v[1:, :length], decay, bonus, receptance=r[1:, :length])
        assert torch.equal(shorter, y[1:, :length])
    rest, end = wkv(k[1:, 60:], v[1:, 60:], decay, bonus, receptance=r[1:, 60:], state=middle)
    assert relative_error(rest, y[1:, 60:].double()) < TOLERANCE[torch.float32]
    assert relative_error(end[0], after[0][1:].double()) < TOLERANCE[torch.float32]


@pytest.mark.gpu
def test_offsets_beyond_32_bits(device: torch.device) -> None:
    k = torch.zeros(2, 2**20 + 8, 1024, dtype=torch.bfloat16, device=device)
    k[1, -8:] = torch.randn(8, 1024).to(k)
    decay, bonus = torch.full((1024,), 30.0, device=device), torch.zeros(1024, device=device)  # only the last count
    y, _ = wkv(k, k, decay, bonus)
    wide = k[1:, -8:].double()
    assert relative_error(y[1:, -7:], wkv_reference(wide, wide, decay, bonus)[0][:, 1:]) < TOLERANCE[torch.bfloat16]
