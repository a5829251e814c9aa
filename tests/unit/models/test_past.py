"""The values of past positions against their concatenation."""

from collections.abc import Callable

import pytest
import torch

from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.past import ROOM, Past

LENGTH = 5 * ROOM


def new(position: int, sign: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    return sign * torch.full((2, 1, 1, 4), position + 0.25), sign * torch.full((2, 2, 1, 4), position + 0.5)


def empty() -> Past:
    return Past(torch.empty(2, 3, 0, 4))


@pytest.mark.parametrize("window", [0, 1, 7, ROOM, LENGTH])
def test_the_last_positions_are_those_appended(window: int) -> None:
    past, everything = empty(), torch.empty(2, 3, 0, 4)
    for position in range(LENGTH):
        everything = torch.cat([everything, torch.cat(new(position), dim=1)], dim=2)
        past = past.append(*new(position))
        seen = min(position, window)
        assert torch.equal(past.values, everything[:, :, position - seen :])
        past = past.last(min(position + 1, window))
        assert torch.equal(past.values, everything[:, :, position + 1 - min(position + 1, window) :])


def test_a_single_part_of_a_single_sequence_is_written() -> None:
    """As multi-head latent attention appends it: torch 2.13 cats one tensor to a contiguous ``out`` without writing."""
    past = Past(torch.empty(1, 1, 0, 4))
    for position in range(3):
        past = past.append(new(position)[0][:1])
    assert past.values[0, 0, :, 0].tolist() == [0.25, 1.25, 2.25]


def test_a_past_that_was_continued_stays_as_it_is() -> None:
    past = empty().append(*new(0)).append(*new(1))
    one = past.append(*new(2))
    other = past.append(*new(2, -1.0))
    again = one.append(*new(3))
    assert past.values[0, 0, :, 0].tolist() == [0.25, 1.25]
    assert one.values[0, 0, :, 0].tolist() == [0.25, 1.25, 2.25]
    assert other.values[0, 0, :, 0].tolist() == [0.25, 1.25, -2.25]
    assert again.values[0, 0, :, 0].tolist() == [0.25, 1.25, 2.25, 3.25]


def storages(window: int, length: int) -> list[int]:
    """The address of the storage after each position."""
    past, addresses = empty(), []
    for position in range(length):
        past = past.append(*new(position)).last(min(position + 1, window))
        assert past.storage is not None
        addresses.append(past.storage.tensor.data_ptr())
    return addresses


def test_storage_is_new_once_it_is_full() -> None:
    """Full attention: capacities of 64, 128, 192, 256 and 320 positions; a window of 8: each time for 64 more."""
    changes = [
        [k for k, (a, b) in enumerate(zip([0, *at], at, strict=False)) if a != b]
        for at in (storages(LENGTH, 320), storages(8, 200))
    ]
    assert changes == [[0, 64, 128, 192, 256], [0, 64, 128, 192]]


def test_a_gradient_and_another_dtype_copy() -> None:
    x = torch.ones(2, 3, 1, 4, requires_grad=True)
    past = empty()
    for factor in (1.0, 2.0, 3.0):
        past = past.append(factor * x)
    past.values.square().sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full_like(x, 2 * (1 + 4 + 9)))
    assert empty().append(*new(0)).append(*(part.double() for part in new(1))).values.dtype == torch.float64
    with torch.inference_mode():
        inside = empty().append(*new(0))
    assert inside.append(*new(1)).values[0, 0, :, 0].tolist() == [0.25, 1.25]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_model_steps_alike_in_every_mode(mode: Callable[[], torch.no_grad]) -> None:
    """Tables of a step's angles that inference mode left are not in the way of a gradient."""
    torch.manual_seed(0)
    model = ArgapForCausalLM(ArgapConfig(vocab_size=8, hidden_size=16, mixers=["attention"], num_hidden_layers=2))
    model, ids = model.double(), torch.arange(12)[None] % 8
    expected = model(ids).logits
    with torch.inference_mode():
        _, state = model.prefill(ids[:, :8])
    with mode():
        state = state if mode is torch.inference_mode else model.prefill(ids[:, :8])[1]
        logits = []
        for t in range(8, 12):
            y, state = model.step(ids[:, t], state)
            logits.append(y)
    found = torch.stack(logits, dim=1)
    torch.testing.assert_close(found, expected[:, 8:], rtol=0, atol=1e-12, check_device=False)
    if mode is torch.enable_grad:
        found.sum().backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
