"""The selective scan's kernel against its reference in float64, and that against a loop."""

import pytest
import torch
import torch.nn.functional as F

from argap.kernels.scan import selective_scan as module
from argap.kernels.scan.selective_scan import selective_scan, selective_scan_reference
from tests.unit.kernels.conftest import BFLOAT16, TOLERANCE, relative_error

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]

pytestmark = pytest.mark.usefixtures("kernels_run")


def inputs(length: int, width: int, states: int, dtype: torch.dtype, device: torch.device) -> Inputs:
    """Steps from 10⁻⁶ to 30, B and C as parts of a wider row."""
    generator = torch.Generator().manual_seed(length)
    u = torch.randn(2, length, width, generator=generator)
    step = torch.empty(2, length, width).uniform_(-14, 3, generator=generator)
    step[:, ::7, 0] = 30
    A = -5 * torch.rand(width, states, generator=generator)
    both = torch.randn(2, length, 3 + 2 * states, generator=generator).to(device, dtype)
    B, C = both[..., 3:].chunk(2, dim=-1)
    return u.to(device, dtype), step.to(device, dtype), A.to(device), B, C


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, BFLOAT16])
@pytest.mark.parametrize(
    ("length", "width", "states"),
    [(1, 5, 3), (2, 32, 16), (63, 40, 4), (64, 33, 5), (65, 64, 16), (127, 8, 2), (200, 4, 3)],
)
def test_it_is_the_reference(length: int, width: int, states: int, dtype: torch.dtype, device: torch.device) -> None:
    u, step, A, B, C = inputs(length, width, states, dtype, device)
    skip, gate = torch.randn(width, device=device), torch.randn(2, length, width).to(device, dtype)
    before = torch.randn(2, width, states, device=device)
    y, after = selective_scan(u, step, A, B, C, skip=skip, gate=gate, state=before)
    wide = (x.double() for x in (u, step, A, B, C))
    extras = {"skip": skip.double(), "gate": gate.double(), "state": before.double()}
    expected, expected_after = selective_scan_reference(*wide, **extras)
    assert y.dtype == dtype
    assert after.dtype == torch.float32
    assert relative_error(y, expected) < TOLERANCE[dtype]
    assert relative_error(after, expected_after) < TOLERANCE[torch.float32]


@pytest.mark.parametrize("chunk", [7, 256])
def test_the_reference_is_the_recurrence(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    u, step, A, B, C = (x.double() for x in inputs(30, 4, 3, torch.float32, torch.device("cpu")))
    skip, gate = torch.randn(4, dtype=torch.float64), torch.randn(2, 30, 4, dtype=torch.float64)
    before = h = torch.randn(2, 4, 3, dtype=torch.float64)
    y, after = selective_scan(u, step, A, B, C, skip=skip, gate=gate, state=before)
    for t in range(30):
        size = F.softplus(step[:, t])[..., None]
        h = torch.exp(size * A) * h + size * u[:, t, :, None] * B[:, t, None]
        expected = ((h * C[:, t, None]).sum(-1) + skip * u[:, t]) * F.silu(gate[:, t])
        torch.testing.assert_close(y[:, t], expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(after, h, rtol=0, atol=1e-12)


def test_a_sequence_goes_on_from_its_state_bit_for_bit(device: torch.device) -> None:
    u, step, A, B, C = inputs(30, 33, 4, torch.float32, device)
    y, after = selective_scan(u, step, A, B, C)
    parts, state = [], None
    for cut in (slice(0, 13), slice(13, 30)):
        part, state = selective_scan(u[:, cut], step[:, cut], A, B[:, cut], C[:, cut], state=state)
        parts.append(part)
    assert state is not None
    assert torch.equal(torch.cat(parts, dim=1), y)
    assert torch.equal(state, after)


def test_two_runs_and_any_strides_give_the_same_bits(device: torch.device) -> None:
    given = inputs(18, 33, 4, torch.float32, device)
    apart, same = torch.randn(66, device=device)[::2], torch.randn(1, device=device).expand(33)
    for skip in (apart, same):
        y, after = selective_scan(*given, skip=skip)
        again, after_again = selective_scan(*given, skip=skip.clone(memory_format=torch.contiguous_format))
        assert torch.equal(again, y)
        assert torch.equal(after_again, after)


def test_small_steps_are_exact(device: torch.device) -> None:
    """softplus(−20) = 2.06e−9, where 1 + e^x rounds to 1."""
    ones = torch.ones(1, 1, 1, device=device)
    for raw in (-20.0, -17.0, -15.9, -12.0, -3.0, 0.0, 19.9, 20.1, 80.0):
        _, after = selective_scan(ones, raw * ones, -ones[0], ones, ones)
        expected = float(F.softplus(torch.tensor(raw, dtype=torch.float64)))
        assert abs(float(after) - expected) < 2e-6 * expected


@pytest.mark.gpu
def test_offsets_beyond_32_bits(device: torch.device) -> None:
    u = torch.zeros(2, 2**20 + 8, 1024, dtype=torch.bfloat16, device=device)
    u[1, -8:] = torch.randn(8, 1024).to(u)
    b = torch.randn(2, u.shape[1], 2, device=device)
    decay = -torch.rand(1024, 2, device=device)
    y, _ = selective_scan(u, u, decay, b, b)
    wide = (x.double() for x in (u[1:, -8:], u[1:, -8:], decay, b[1:, -8:], b[1:, -8:]))
    assert relative_error(y[1:, -8:], selective_scan_reference(*wide)[0]) < TOLERANCE[torch.bfloat16]
