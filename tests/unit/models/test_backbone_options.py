"""The backbone's options for other families' checkpoints: the norm's kind, no MLP, a norm after the embedding."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from argap.errors import ArgapError
from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.cost import cost

SMALL: dict[str, Any] = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 2, "mixers": ["attention"]}


def build(**options: Any) -> ArgapForCausalLM:
    torch.manual_seed(0)
    return ArgapForCausalLM(ArgapConfig(**SMALL, **options)).double().eval()


def test_without_mlp_a_layer_is_its_mixer() -> None:
    model = build(mlp="none")
    block = model.model.blocks[0]
    x, ids = torch.randn(1, 5, 8, dtype=torch.float64), torch.zeros(1, 5, dtype=torch.long)
    torch.testing.assert_close(block(x, ids), x + block.mixer(block.mixer_norm(x)), rtol=1e-12, atol=1e-12)
    assert not [name for name in model.state_dict() if "mlp" in name]


def test_without_mlp_the_cost_is_the_mixers_and_the_heads() -> None:
    found = cost(ArgapConfig(**SMALL, mlp="none"), 3)
    # The embedding 88; a layer: its norm 8, mixer 4·64; the last norm 8.
    assert found.parameters == 88 + 2 * (8 + 256) + 8
    # A layer: projections 8·3·64, the 6 visible pairs 4·8 each; the head 2·3·88.
    assert found.flops == 2 * (1536 + 192) + 528


def test_layer_norm_stands_for_every_norm() -> None:
    model = build(norm="layer", embedding_norm=True, rms_norm_eps=1e-3)
    norms = [module for module in model.modules() if isinstance(module, (nn.LayerNorm, nn.RMSNorm))]
    assert len(norms) == 2 * 2 + 2  # of each layer two, the last, and the embedding's
    assert all(isinstance(norm, nn.LayerNorm) and norm.eps == 1e-3 for norm in norms)


def test_the_embedding_norm_comes_after_the_learned_positions() -> None:
    model = build(embedding_norm=True, learned_positions=True, max_position_embeddings=4).model
    first: list[torch.Tensor] = []
    ids = torch.tensor([[3, 1]])
    model.layers[0].register_forward_pre_hook(lambda _, inputs: first.append(inputs[0]))
    model(ids)
    expected = model.embed_norm(model.embed_tokens(ids) + model.embed_positions(torch.arange(2)))
    torch.testing.assert_close(first[0], expected, rtol=1e-12, atol=1e-12)


def test_steps_equal_the_forward_pass() -> None:
    model = build(norm="layer", mlp="none", embedding_norm=True)
    ids = torch.tensor([[1, 5, 2, 5, 7]])
    state, logits = model.init_state(1), []
    for token in ids[0]:
        now, state = model.step(token[None], state)
        logits.append(now)
    torch.testing.assert_close(torch.stack(logits, dim=1), model(ids).logits)


def test_the_options_survive_saving(tmp_path: Path) -> None:
    model = build(norm="layer", mlp="none", embedding_norm=True).float()
    model.save_pretrained(tmp_path)
    again = ArgapForCausalLM.from_pretrained(tmp_path)
    ids = torch.tensor([[1, 5, 2]])
    assert torch.equal(model(ids).logits, again(ids).logits)


@pytest.mark.parametrize(("option", "value"), [("norm", "batch"), ("mlp", "relu")])
def test_an_unknown_value_is_refused(option: str, value: str) -> None:
    wrong: dict[str, Any] = {option: value}
    with pytest.raises(ArgapError, match=f"{option} '{value}'; expected "):
        ArgapConfig(**SMALL, **wrong)
