"""Models with tokenizers of their own, and the result of comparing two of them."""

from pathlib import Path

import msgspec
import pytest
from transformers import GPT2Config, LlamaConfig

from argap.records import EvaluationSpec
from argap.results.pipeline import score_models
from argap.scoring.config import ScoreConfig
from tests.builders.tokenizers import byte_fallback, byte_level, word_piece
from tests.conftest import index_of, save_model

SEQ_LEN = 40


def llama(vocab: int, positions: int = 64) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=vocab,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=positions,
    )


def gpt2(vocab: int) -> GPT2Config:
    return GPT2Config(vocab_size=vocab, n_embd=16, n_layer=1, n_head=2, n_positions=64)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A GPT-2 and two Llamas with tokenizers of their own, text of several documents, an index in GPT-2's tokens."""
    place = tmp_path_factory.mktemp("place")
    of_gpt2, of_llama, words = byte_level(0, 40), byte_fallback(2, 45), word_piece(0, 100)
    save_model(place / "gpt2", gpt2(of_gpt2.vocab_size), of_gpt2, 0)
    save_model(place / "gpt2-b", gpt2(of_gpt2.vocab_size), of_gpt2, 3)
    save_model(place / "llama", llama(of_llama.vocab_size), of_llama, 12)
    save_model(place / "bert", llama(words.vocab_size, 24), words, 2)
    texts = [
        "the cat sat on the mat. hello wörld, 日本語 the cat sat on the hat \n",
        "return 12345; x = 1; the mat, the cat … naïve café the cat sat ",
        "hello world hello world 😀 hello world on the cat; on the mat",
    ]
    for domain in ("a", "b"):
        (place / "text" / domain).mkdir(parents=True)
    for k in range(8):
        (place / "text" / "ab"[k % 2] / f"{k}.txt").write_text(" ".join(texts[(k + j) % 3] for j in range(1 + k % 3)))
    index_of(of_gpt2.encode(["the cat sat on the mat " * 3, "hello world"]), place / "index", of_gpt2)
    return place


def spec(place: Path, **changed) -> EvaluationSpec:
    return EvaluationSpec(**{"data": (str(place / "text"),), "seq_len": SEQ_LEN, "packing": "packed", **changed})


@pytest.fixture(scope="module", autouse=True)
def _examples_of_random_weights(known):
    """For every test of the folder."""


@pytest.fixture(scope="module")
def scored(place, tmp_path_factory):
    out = tmp_path_factory.mktemp("scored")
    gap = score_models(
        [str(place / "llama")],
        str(place / "gpt2"),
        out,
        ScoreConfig(text=spec(place), index=str(place / "index"), threshold=2),
    )
    return out, gap


def numbers(gap) -> list:
    """All figures of a result, by model."""
    return [[msgspec.structs.astuple(each) for each in gap.estimates if each.model == model] for model in gap.models]
