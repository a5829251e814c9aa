"""How long a window a model takes: what its configuration says, in one place, and `max_length` in place of that."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import GPT2Config, GPT2LMHeadModel

import argap
from argap.checkpoints.lengths import max_positions
from argap.errors import ArgapError
from argap.recall.lm_eval_model import ArgapLM
from argap.scoring.config import ScoreConfig
from argap.scoring.find import find_source
from argap.tokens.runs import open_run
from tests.builders.gguf_files import small_llama

LLAMA = {"model_type": "llama", "max_position_embeddings": 100}


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        (LLAMA, 100),
        ({"model_type": "gpt2", "n_positions": 64}, 64),
        ({"model_type": "mamba2"}, None),
        ({"text_config": LLAMA}, 100),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}}, 400),
        (LLAMA | {"rope_scaling": {"rope_type": "dynamic", "factor": 2}}, 200),
        (LLAMA | {"rope_parameters": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 100}}, 400),
        # Extended lengths that the configuration states, as DeepSeek's, Llama 3.1's, Phi-3's and Gemma 3's do.
        (LLAMA | {"rope_scaling": {"type": "yarn", "factor": 5, "original_max_position_embeddings": 20}}, 100),
        (LLAMA | {"rope_scaling": {"rope_type": "llama3", "factor": 8}}, 100),
        (LLAMA | {"rope_scaling": {"rope_type": "longrope", "factor": 8}}, 100),
        (LLAMA | {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8}}}, 100),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": None}}, 100),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": True}}, 100),
        (LLAMA | {"max_position_embeddings": True}, None),
        # Nothing depends on it.
        ({"model_type": "nemotron_h", "max_position_embeddings": 100}, None),
        ({"model_type": "jamba", "max_position_embeddings": 100}, None),
        (LLAMA | {"model_type": "granitemoehybrid", "position_embedding_type": "nope"}, None),
        (LLAMA | {"model_type": "gla"}, None),
        (LLAMA | {"model_type": "rwkv7"}, None),
        ({"model_type": "argap", "max_position_embeddings": 100}, 100),
    ],
)
def test_the_rule(config: dict[str, Any], longest: int | None) -> None:
    assert max_positions(config) == longest


@pytest.fixture(scope="module")
def place(tmp_path_factory, tokenizer) -> Path:
    """``rotary``, a Llama of 128 positions, and ``learned``, a GPT-2 of 128."""
    folder = tmp_path_factory.mktemp("lengths")
    small_llama().save_pretrained(folder / "rotary")
    config = GPT2Config(vocab_size=tokenizer.vocab_size, n_positions=128, n_embd=16, n_layer=1, n_head=2)
    GPT2LMHeadModel(config).save_pretrained(folder / "learned")
    for name in ("rotary", "learned"):
        tokenizer.save(folder / name)
    (folder / "text.jsonl").write_text(json.dumps({"text": "the cat sat on the mat. " * 99}) + "\n")
    return folder


def score(place: Path, out: Path, model: str, **options: Any) -> Any:
    return argap.score((), place / model, data=place / "text.jsonl", out=out, device="cpu", **options)


def test_max_length_is_taken_at_its_word(place, tmp_path) -> None:
    with pytest.raises(ArgapError, match=r"at most 128 tokens, .* use `seq_len=128`, or `max_length=200` if it takes"):
        score(place, tmp_path, "rotary", seq_len=200)
    score(place, tmp_path, "rotary", seq_len=200, max_length=200)
    assert open_run(tmp_path / "rotary").record.evaluation.seq_len == 200
    with pytest.raises(ArgapError, match="at most 64 tokens"):
        score(place, tmp_path, "rotary", seq_len=100, max_length={"rotary": 64}, overwrite=True)
    with pytest.raises(ArgapError, match="no model other; expected rotary"):
        score(place, tmp_path, "rotary", max_length={"other": 64})
    for wrong in (0, "", "9" * 5000):
        with pytest.raises(ArgapError, match=f"`max_length` {wrong}: expected a positive whole number"):
            score(place, tmp_path, "rotary", max_length=wrong)


def test_learned_positions_end_where_they_end(place, tmp_path) -> None:
    said = r"learned: GPT2LMHeadModel of .* fails on 200 tokens in float32 on cpu \(IndexError: index out of range"
    with pytest.raises(ArgapError, match=said):
        score(place, tmp_path, "learned", seq_len=200, max_length=200)


@pytest.mark.parametrize(("bos", "longest"), [("none", 128), ("own", 127)])
def test_without_a_length_windows_are_as_long_as_every_model_takes(place, tmp_path, capsys, bos, longest) -> None:
    result = score(place, tmp_path, "rotary", bos=bos)
    assert result.record.evaluation.seq_len == longest
    assert f"windows of {longest} tokens, the longest that every model takes; --seq-len" in capsys.readouterr().err
    score(place, tmp_path, "rotary", bos=bos)  # the same windows
    argap.score(place / "rotary", tmp_path / "rotary", out=tmp_path / "again", bos=bos, device="cpu")


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"limit_document_tokens": 128}, 127),
        ({"limit_document_tokens": 100, "seq_len": 99}, 99),
        ({"limit_document_tokens": 100, "seq_len": 100}, 100),
        ({"limit_document_tokens": 101, "seq_len": 99}, 101),
    ],
)
def test_a_document_of_one_window_has_no_second_of_one_token(place, tmp_path, capsys, asked, given) -> None:
    """Where a BOS takes the place of a token; what is scored stays."""
    score(place, tmp_path, "rotary", bos="own", packing="document", **asked)
    run = open_run(tmp_path / "rotary").record
    assert run.source.limit_document_tokens == given
    assert run.evaluation.windows == (2 if given == 101 else 1)
    said = f"documents cut to {given} tokens, one window, not to {asked['limit_document_tokens']}: the last would be"
    assert (said in capsys.readouterr().err) == (given != asked["limit_document_tokens"])


def test_every_command_has_the_same_rule(place) -> None:
    config = ScoreConfig.of(max_length=["40", "rotary=50"])
    assert find_source(str(place / "rotary"), config).longest == 50
    assert find_source(str(place / "learned"), config).longest == 40
    lm = ArgapLM.of(find_source(str(place / "rotary"), config), config)
    assert lm.max_length == 50
