"""The generalized delta rule in chunks against its recurrence, position by position, in float64."""

import pytest
import torch

from argap.kernels.launch import LaunchTable
from argap.kernels.recurrent.chunk_transitions import has_transitions
from argap.kernels.recurrent.generalized_delta_rule import generalized_delta_rule
from argap.models.recurrence import generalized_delta_rule_step


def drawn(length: int, strength: float = 1.0) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """q, k, v, a, b, and log decays of about ``-strength``; a and b stay small, as states grow along them."""
    torch.manual_seed(length)
    q, k, a, b, g = torch.randn(5, 2, 3, length, 4, dtype=torch.float64).unbind()
    v = torch.randn(2, 3, length, 5, dtype=torch.float64)
    return (q, k, v, 0.5 * a, 0.5 * b), -strength * g.abs()


def stepped(given: tuple[torch.Tensor, ...], log_decay: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    state, outputs = torch.zeros(2, 3, 4, 5, dtype=torch.float64), []
    for t in range(log_decay.shape[2]):
        q, k, v, a, b = (x[:, :, t] for x in given)
        y, state = generalized_delta_rule_step(q, k, v, a, b, log_decay[:, :, t], state)
        outputs.append(y)
    return torch.stack(outputs, dim=2), state


@pytest.mark.parametrize("strength", [0.0, 1.0, 1000.0])
@pytest.mark.parametrize("length", [1, 15, 16, 37])
def test_chunks_give_what_steps_give(length: int, strength: float) -> None:
    given, log_decay = drawn(length, strength)
    expected = stepped(given, log_decay)
    for chunk in (1, 5, 16, None):
        found = generalized_delta_rule(*given, log_decay=log_decay, chunk=chunk)
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("length", [1, 15, 16, 37])
def test_bounded_decays_are_split_between_the_factors_of_a_pair(length: int) -> None:
    given, log_decay = drawn(length, 4.0)
    log_decay = log_decay.clamp(min=-5.0)  # 16 positions decay by e^-80 at most
    expected = stepped(given, log_decay)
    found = generalized_delta_rule(*given, log_decay=log_decay, least_log_decay=-5.0)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    least = torch.full_like(log_decay, -5.0, dtype=torch.float32)
    small = [x.float() for x in given]
    found, _ = generalized_delta_rule(*small, log_decay=least, least_log_decay=-5.0)
    torch.testing.assert_close(found, stepped(given, least.double())[0].float(), rtol=1e-4, atol=1e-5)


def test_the_state_carries_over_a_split_sequence() -> None:
    given, log_decay = drawn(37)
    whole, last = generalized_delta_rule(*given, log_decay=log_decay)
    first, middle = generalized_delta_rule(*(x[:, :, :21] for x in given), log_decay=log_decay[:, :, :21])
    rest = (x[:, :, 21:] for x in given)
    second, end = generalized_delta_rule(*rest, log_decay=log_decay[:, :, 21:], state=middle)
    torch.testing.assert_close(torch.cat([first, second], dim=2), whole, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(end, last, rtol=1e-9, atol=1e-9)


def test_by_hand() -> None:
    """One channel: S₁ = 3·2 = 6; S₂ = ½·6 + 10·(1·6) + 1·4 = 67, read by 2."""
    two = [torch.tensor(x, dtype=torch.float64).view(1, 1, 2, 1) for x in ([1, 2], [3, 1], [2, 4], [7, 1], [5, 10])]
    log_decay = torch.tensor([0.25, 0.5], dtype=torch.float64).log().view(1, 1, 2, 1)
    y, state = generalized_delta_rule(*two, log_decay=log_decay)
    torch.testing.assert_close(y.flatten(), torch.tensor([6.0, 134.0], dtype=torch.float64))
    assert state.item() == pytest.approx(67)


def test_transitions_take_what_their_range_and_their_measurements_cover(monkeypatch: pytest.MonkeyPatch) -> None:
    """RWKV-7's fastest decay over 64 positions is e^−38.8; C's terms may reach e^40."""
    assert not has_transitions(torch.empty(0, 64, dtype=torch.bfloat16), -0.6066)  # only Hopper was measured
    monkeypatch.setattr(LaunchTable, "rows", lambda table, device: table.by_device["hopper"])

    def taken(key: int, dtype: torch.dtype = torch.bfloat16, least: float = -0.6066) -> bool:
        return has_transitions(torch.empty(0, key, dtype=dtype), least)

    assert all(map(taken, (33, 64, 65, 128)))
    assert not any(map(taken, (16, 32, 129)))
    assert not any(taken(64, dtype) for dtype in (torch.float16, torch.float32))
    assert not taken(64, least=-0.63)
