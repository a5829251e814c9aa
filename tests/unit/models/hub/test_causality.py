"""Models that see the future are refused: by their configuration before any work, or by a probe."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.roformer import modeling_roformer

import argap
from argap.checkpoints import causality
from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.load import check_loadable, load_model
from argap.errors import ArgapError
from tests.unit.models.hub.families import tiny, tiny_config

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    **{name: ({}, rf"model type {name} is an encoder \(`is_decoder` is false\)") for name in causality.ENCODERS},
    "xlnet": ({}, r"model type xlnet attends in both directions \(`attn_type` is not 'uni'\)"),
    "xlm": ({}, r"model type xlm attends in both directions \(`causal` is not True\)"),
    "gemma3_text": ({"use_bidirectional_attention": True}, "`use_bidirectional_attention` True, attention in both"),
    "gemma4_text": ({"use_bidirectional_attention": "all"}, "`use_bidirectional_attention` 'all', attention in both"),
    "llama": ({"is_causal": False}, "`is_causal` False, attention in both"),
    "t5": ({"is_encoder_decoder": True}, "model type t5 is an encoder-decoder; expected a causal language model"),
}
SEEN_BY_PROBE = ["bert", "big_bird", "cpmant", "electra", "roformer", "xlm", "xlm-roberta-xl"]


@pytest.mark.parametrize("model_type", sorted(REFUSED))
def test_a_known_encoder_is_refused_by_its_configuration(tmp_path, model_type: str) -> None:
    options, said = REFUSED[model_type]
    for config in ({"model_type": model_type, **options}, {"text_config": {"model_type": model_type, **options}}):
        with pytest.raises(ArgapError, match=f"m: .*{said}"):
            causality.check_says_causal("m", config)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bert", "is_decoder": True},
        {"model_type": "xlnet", "attn_type": "uni"},
        {"model_type": "gpt_neox", "is_decoder": False},
        {"model_type": "gemma3_text", "use_bidirectional_attention": False},
        {"model_type": "gemma4_text", "use_bidirectional_attention": "vision"},
        {"model_type": "bart", "is_decoder": True, "is_encoder_decoder": False},
    ],
)
def test_decoders_pass(config: dict[str, Any]) -> None:
    causality.check_says_causal("m", config)


def test_nothing_is_done_for_an_encoder(tmp_path, tokenizer) -> None:
    folder = saved("bert", tmp_path, tokenizer)
    with pytest.raises(
        ArgapError, match=r"bert is an encoder .* sees the token that it should predict; expected a causal"
    ):
        argap.score(folder, folder, data="stdlib:heldout", out=tmp_path / "out", device="cpu")
    assert not (tmp_path / "out" / "bert").exists()
    with pytest.raises(ArgapError, match="bert is an encoder"):
        check_loadable(find_checkpoint(folder))


@pytest.mark.parametrize("family", SEEN_BY_PROBE)
def test_the_probe_finds_those_that_no_list_knows(tmp_path, tokenizer, monkeypatch, family: str) -> None:
    monkeypatch.setattr(causality, "ENCODERS", frozenset())
    monkeypatch.setattr(causality, "CAUSAL_IF", {})
    folder = saved(family, tmp_path, tokenizer)
    with pytest.raises(ArgapError, match=r"the logits of \w+ change with later tokens, so it sees"):
        load_model(find_checkpoint(folder), dtype=torch.float32, device="cpu")


def test_a_decoder_that_its_library_gives_the_wrong_mask_is_refused(monkeypatch) -> None:
    """huggingface/transformers#48745: four families attend to later tokens in 5.9 to 5.18, with is_decoder true."""
    model = tiny("roformer", is_decoder=True)
    causality.check_says_causal("m", model.config.to_dict())
    causality.check_sees_no_future("m", model)
    monkeypatch.setattr(modeling_roformer, "create_causal_mask", vars(modeling_roformer)["create_bidirectional_mask"])
    with pytest.raises(ArgapError, match="the logits of RoFormerForCausalLM change with later tokens"):
        causality.check_sees_no_future("m", model)


def test_the_probe_sees_attention_in_both_directions_in_any_library(monkeypatch) -> None:
    """A causal family whose later versions might read the key otherwise."""
    with pytest.raises(ArgapError, match="the logits of Gemma3ForCausalLM change with later tokens"):
        causality.check_sees_no_future("m", tiny("gemma3_text", use_bidirectional_attention=True))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        causality.check_sees_no_future("m", tiny("gemma3_text").to(dtype))


def test_a_model_in_memory_is_probed(tmp_path, tokenizer) -> None:
    from transformers import PreTrainedTokenizerFast

    own = PreTrainedTokenizerFast(tokenizer_object=tokenizer._backend, eos_token=tokenizer.token_text(0))
    model = tiny("bert", vocab_size=tokenizer.vocab_size)
    with pytest.raises(ArgapError, match="the logits of BertLMHeadModel change with later tokens"):
        argap.score(model, model, tokenizer=own, data="stdlib:heldout", limit_tokens=99, seq_len=32, out=tmp_path / "o")


def saved(family: str, place: Path, tokenizer: Any) -> Path:
    folder = place / family
    tiny(family).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == tiny_config(family).model_type
    tokenizer.save(folder)
    return folder
