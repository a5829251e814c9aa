"""``argap score`` where tokenizers differ, against a brute-force computation of segments and their log-probs."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from argap.bigram_index.build import build_index
from argap.cells import read_cells
from argap.comparison import compare_runs, label_result
from argap.errors import ArgapError, MismatchError
from argap.labels import read_labels
from argap.pipeline import score_models
from argap.records import EvaluationSpec, read_gap
from argap.result import open_result
from argap.runs import open_run, read_logprobs
from argap.tokenizer import Tokenizer, load_tokenizer
from tests.segments.conftest import byte_fallback, byte_level, word_piece

SEQ_LEN = 40


def save_model(folder: Path, config, tokenizer: Tokenizer, seed: int) -> Path:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(20 + seed)
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return folder


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
    of_gpt2, of_llama, words = byte_level(0, 40), byte_fallback(2, 30), word_piece(1, 100)
    save_model(place / "gpt2", gpt2(of_gpt2.vocab_size), of_gpt2, 0)
    save_model(place / "gpt2-b", gpt2(of_gpt2.vocab_size), of_gpt2, 3)
    save_model(place / "llama", llama(of_llama.vocab_size), of_llama, 1)
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
    build_index(
        of_gpt2.encode(["the cat sat on the mat " * 3, "hello world"]),
        place / "index",
        vocab_size=of_gpt2.vocab_size,
        tokenizer="gpt2",
        tokenizer_fingerprint=of_gpt2.fingerprint,
        sources=["train"],
    )
    return place


def spec(place: Path, **changed) -> EvaluationSpec:
    return EvaluationSpec(**{"data": (str(place / "text"),), "seq_len": SEQ_LEN, "packing": "packed", **changed})


@pytest.fixture(scope="module")
def scored(place, tmp_path_factory):
    out = tmp_path_factory.mktemp("scored")
    gap = score_models(
        [str(place / "llama")], str(place / "gpt2"), out, spec=spec(place), index=str(place / "index"), threshold=2
    )
    return out, gap


def ends_of(text: str, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids and byte ends of byte-level BPE or byte fallback, from the bytes that each token spells."""
    (ids,) = tokenizer.encode([text])
    spelled = [tokenizer.piece_bytes[token] for token in ids.tolist()]
    added = len(b"".join(spelled)) - len(text.encode())
    ends = np.maximum(np.cumsum([len(piece) for piece in spelled]) - added, 0)
    return ids.tolist(), ends.tolist()


def logprobs_of(folder: Path, ids: list[int]) -> list[float]:
    """The log-prob of each token but the first, by transformers, in float64."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    return [math.nan, *(float(logits[k - 1, token]) for k, token in enumerate(ids) if k)]


def brute_force(place: Path, names: list[str], counts: dict, tau: float) -> list[dict]:
    """Every scored segment of the packed text: bytes, log-prob by model, whether one of its tokens is an AR hit.

    From the definition, byte by byte: a stream of symbols (bytes, and one symbol for each EOS).
    """
    tokenizers = [load_tokenizer(place / name) for name in names]
    files = sorted((place / "text").rglob("*.txt"))
    streams: list[list[tuple[int, int]]] = [[] for _ in names]  # (id, end in the stream)
    eos_at, at = set(), 0
    for file in files:
        text = file.read_text()
        for stream, tokenizer in zip(streams, tokenizers, strict=True):
            ids, ends = ends_of(text, tokenizer)
            stream += [(token, at + end) for token, end in zip(ids, ends, strict=True)]
            stream.append((tokenizer.eos, at + len(text.encode()) + 1))
        at += len(text.encode()) + 1
        eos_at.add(at)
    common = [end for end in range(1, at + 1) if all(end in {e for _, e in stream} for stream in streams)]
    cuts = [[[e for _, e in stream].index(end) + 1 for end in common] for stream in streams]
    segments, first = [], 0  # number of the first segment of the window
    while first < len(common):
        last = first
        while last + 1 < len(common) and all(
            cut[last + 1] - (cut[first - 1] if first else 0) <= SEQ_LEN for cut in cuts
        ):
            last += 1
        begin = [cut[first - 1] if first else 0 for cut in cuts]
        windows = [[t for t, _ in stream[b : cut[last]]] for stream, b, cut in zip(streams, begin, cuts, strict=True)]
        scores = [logprobs_of(place / name, ids) for name, ids in zip(names, windows, strict=True)]
        ids, hits = windows[0], []
        for k in range(1, len(ids)):
            pair = (ids[k - 1], ids[k])
            again = tokenizers[0].eos not in pair and any((ids[j - 1], ids[j]) == pair for j in range(1, k))
            hits.append(again and counts.get(pair, 0) <= tau)
        hits = [False, *hits]
        for s in range(first + 1, last + 1):
            if common[s] in eos_at:
                continue
            spans = [slice(cut[s - 1] - b, cut[s] - b) for cut, b in zip(cuts, begin, strict=True)]
            segments.append(
                {
                    "bytes": common[s] - common[s - 1],
                    "hit": any(hits[spans[0]]),
                    **{name: sum(lp[span]) for name, lp, span in zip(names, scores, spans, strict=True)},
                }
            )
        first = last + 1
    return segments


def index_counts(place: Path) -> dict:
    import duckdb

    rows = duckdb.sql(f"SELECT first, second, count FROM '{place}/index/*.parquet'").fetchall()
    return {(a, b): n for a, b, n in rows}


def test_the_gap_is_that_of_brute_force(place, scored):
    _, gap = scored
    segments = brute_force(place, ["gpt2", "llama"], index_counts(place), tau=2)
    assert any(each["bytes"] > 1 for each in segments)
    whole, hits = segments, [each for each in segments if each["hit"]]
    other = [each for each in segments if not each["hit"]]
    assert hits
    assert other
    assert gap.unit == "byte"
    for row in gap.rows:
        for part, of in ((row.overall, whole), (row.ar_hits, hits), (row.other, other)):
            assert part.n == sum(each["bytes"] for each in of)
            assert part.nll == pytest.approx(-sum(each[row.model] for each in of) / part.n, abs=1e-5)
    lost = {id(each): each["gpt2"] - each["llama"] for each in whole}
    total = sum(lost.values())
    due = gap.row("llama").gap_due_to_ar
    assert due is not None
    assert due.raw == pytest.approx(sum(lost[id(each)] for each in hits) / total, abs=1e-4)
    assert gap.evaluation.scored == sum(each["bytes"] for each in whole)
    for parts in (gap.breakdowns.frequency, gap.breakdowns.distance, gap.breakdowns.position, gap.breakdowns.domain):
        assert sum(part.contribution["llama"] for part in parts) == pytest.approx(gap.deltas["llama"], abs=1e-12)
        assert sum(part.n for part in parts) == gap.row("llama").overall.n
