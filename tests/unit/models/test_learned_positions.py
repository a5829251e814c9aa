"""Positions that the embedding learns, for attention that has none of its own."""

from pathlib import Path

import pytest
import torch

from argap.errors import ArgapError
from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.cost import cost

LONGEST = 24


def config(**options: object) -> ArgapConfig:
    mixer = {"name": "attention", "heads": 1, "positions": "none"}
    size: dict = {"vocab_size": 48, "hidden_size": 32, "num_hidden_layers": 2, "max_position_embeddings": LONGEST}
    return ArgapConfig(**{**size, "mixers": [mixer], "learned_positions": True, **options})


def build(**options: object) -> ArgapForCausalLM:
    torch.manual_seed(0)
    model = ArgapForCausalLM(config(**options)).double().eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def some_ids() -> torch.Tensor:
    return torch.randint(48, (2, LONGEST), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_the_vector_of_a_position_is_added_to_its_token() -> None:
    model, ids = build(), some_ids()[:, :20]
    x = model.model.embed_tokens(ids) + model.model.embed_positions.weight[:20]
    for block in model.model.blocks:
        x = block(x, ids)
    torch.testing.assert_close(model(ids).logits, model.lm_head(model.model.norm(x)), rtol=0, atol=1e-12)


@torch.no_grad()
def test_they_alone_tell_the_order() -> None:
    ids = some_ids()
    turned = torch.cat([ids[:, :-1].flip(1), ids[:, -1:]], dim=1)
    without = build(learned_positions=False, num_hidden_layers=1)
    torch.testing.assert_close(without(turned).logits[:, -1], without(ids).logits[:, -1], rtol=0, atol=1e-12)
    model = build(num_hidden_layers=1)
    assert (model(turned).logits[:, -1] - model(ids).logits[:, -1]).abs().max() > 1e-2


@torch.no_grad()
def test_steps_and_a_saved_model_have_them(tmp_path: Path) -> None:
    model, ids = build(), some_ids()
    logits = model(ids).logits
    state = model.init_state(2)
    for t in range(LONGEST):
        stepped, state = model.step(ids[:, t], state)
        torch.testing.assert_close(stepped, logits[:, t], rtol=0, atol=1e-11)
    with pytest.raises(ArgapError, match=f"window of {LONGEST + 1} tokens"):
        model.step(ids[:, 0], state)
    model.save_pretrained(tmp_path)
    loaded = ArgapForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert torch.equal(loaded(ids).logits, logits)


def test_they_are_parameters_and_learn() -> None:
    model = build()
    model(some_ids(), labels=some_ids()).loss.backward()
    table = model.model.embed_positions.weight
    assert isinstance(table.grad, torch.Tensor)
    assert (table.grad[: LONGEST - 1].abs().amax(dim=1) > 0).all()
    assert cost(config(), 16).parameters - cost(config(learned_positions=False), 16).parameters == LONGEST * 32


def test_a_window_longer_than_the_table_is_refused() -> None:
    ids = torch.zeros(1, LONGEST + 1, dtype=torch.long)
    with pytest.raises(ArgapError, match=r"at most 24 \(its filters or positions end there\): use `seq_len=24`"):
        build()(ids)
    with pytest.raises(ArgapError, match="learned_positions: set max_position_embeddings"):
        config(max_position_embeddings=None)
