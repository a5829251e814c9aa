"""``argap score`` where tokenizers differ, against a brute-force computation of segments and their log-probs."""

import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from argap.errors import ArgapError, MismatchError
from argap.records import EvaluationSpec, Examples, read_gap, read_record
from argap.reports.pages.write import write_report
from argap.result import open_result
from argap.results.compare import compare_runs, label_result
from argap.results.pipeline import score_models
from argap.scoring.config import ScoreConfig
from argap.scoring.per_model import PerModel
from argap.text.tokenizer import Tokenizer, load_tokenizer
from argap.tokens.copies import find_copies
from argap.tokens.labels import read_labels
from argap.tokens.runs import OWN, open_run, read_logprobs, read_token_ids, read_window_offsets
from tests.conftest import assert_close
from tests.pages.view.conftest import client_of
from tests.unit.segments.conftest import SEQ_LEN, numbers, spec


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
            assert tokenizer.eos is not None
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
    for part, of in ((gap.on_all, whole), (gap.on_hits, hits), (gap.on_other, other)):
        assert part.n == sum(each["bytes"] for each in of)
        for model in gap.models:
            assert part[model].nll == pytest.approx(-sum(each[model] for each in of) / part.n, abs=1e-5)
    lost = {id(each): each["gpt2"] - each["llama"] for each in whole}
    total = sum(lost.values())
    assert gap.on_hits["llama"].share == pytest.approx(sum(lost[id(each)] for each in hits) / total, abs=1e-4)
    assert gap.evaluation.scored == sum(each["bytes"] for each in whole)
    for by in ("frequency", "distance", "position", "domain", "copy", "induction"):
        parts = gap.parts(by)
        assert sum(part["llama"].contribution for part in parts) == pytest.approx(gap.deltas["llama"], abs=1e-12)
        assert sum(part.n for part in parts) == gap.on_all.n


def test_a_segment_can_copy_if_one_of_its_tokens_can(scored):
    out, gap = scored
    n = [part.n for part in gap.parts("copy")]
    assert len(n) > 3
    conditions = ["opportunity OR true", "opportunity", *(f"match_length >= {length}" for length in (1, 2, 3, 5))]
    found = open_result(out).slices({f"at least {k}": where for k, where in enumerate(conditions)})[2:]
    assert [part.n for part in found][: len(n)] == [sum(n[k:]) for k in range(len(n))]
    right = gap.parts("induction")[0]
    assert (right.bin, right.n) == ("right", open_result(out).slices({"predicted": "induction"})[2].n)


def test_a_rerun_resumes_and_finished_runs_give_the_same(place, scored, tmp_path):
    out, gap = scored
    before = {path: path.stat().st_mtime_ns for path in out.glob("own-tokens/*/tokens/*.parquet")}
    assert len(before) == 2
    again = score_models(
        [str(place / "llama")],
        str(place / "gpt2"),
        out,
        ScoreConfig(text=spec(place), index=str(place / "index"), threshold=2),
    )
    assert numbers(again) == numbers(gap)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    of_segments = compare_runs([str(out / "llama")], str(out / "gpt2"), tmp_path / "a", threshold=2)
    own = out / "own-tokens"
    of_tokens = compare_runs([str(own / "llama")], str(own / "gpt2"), tmp_path / "b", threshold=2)
    assert_close(numbers(of_segments), numbers(gap))
    assert_close(numbers(of_tokens), numbers(gap))


def test_the_most_likely_tokens_are_those_of_models_with_the_reference_s_tokenizer(scored):
    own, aligned = (read_logprobs(open_run(scored[0] / folder / "gpt2"))[1] for folder in (OWN, "."))
    np.testing.assert_array_equal(aligned, own[: len(aligned)])
    assert (aligned >= 0).any()
    assert (read_logprobs(open_run(scored[0] / "llama"))[1] == -1).all()


def test_a_page_keeps_tables_in_bytes(scored):
    client = client_of(scored[0])
    slices, parts = (
        client.get(f"/api/keep/{path}&model=llama&format=md").text
        for path in ("slices?where=repeated&name=again", "breakdown?by=distance")
    )
    assert slices.startswith("| Model | Slice | Bytes | % of bytes | bits/byte (NLL) |")
    assert parts.startswith("| Distance | Bytes | Share | llama: nats |")
    assert "Nats a byte: share" in parts


def test_copy_labels_are_those_of_the_references_tokens(place, scored):
    labels, run = read_labels(scored[0] / "labels"), open_run(scored[0] / "gpt2")
    eos = load_tokenizer(place / "gpt2").eos
    found = find_copies(read_token_ids(run), read_window_offsets(run), eos)
    for name, column in found._asdict().items():
        np.testing.assert_array_equal(getattr(labels, name), column)
    table = open_result(scored[0]).tokens("opportunity AND NOT repeated", columns=["segment_bytes"])
    assert len(table) == (found.opportunity & (found.match_length == 0) & labels.scored).sum() > 0


def test_counts_are_added_later(place, scored, tmp_path):
    _, gap = scored
    score_models([str(place / "llama")], str(place / "gpt2"), tmp_path, ScoreConfig(text=spec(place)))
    assert numbers(label_result(tmp_path, str(place / "index"), threshold=2)) == numbers(gap)
    assert read_gap(tmp_path).unit == "byte"


def test_a_slice_has_the_segments_with_one_of_its_tokens(scored, tmp_path):
    """By SQL, by a function, and the built-in hits, against the brute-force segments and a plain loop."""
    out, gap = scored
    result = open_result(out)
    slices = result.slices(
        {
            "hits": "repeated AND train_count <= 2",
            "has_t": lambda batch: np.array(["t" in piece for piece in batch["piece"].to_pylist()]),
            "hard": "nll.gpt2 > 5",
        }
    )
    of = {each.bin: each for each in slices}
    nll = {(each.bin, model): own.nll for each in slices for model, own in each.estimates.items()}
    for name in ("hits", "ar_hits"):
        assert of[name].n == gap.on_hits.n
        for model in gap.models:
            assert nll[name, model] == pytest.approx(gap.on_hits[model].nll, abs=1e-12)
    assert of["all"].n == gap.on_all.n
    tokens = result.tokens().to_pylist()
    hard = [row["segment"] for row in tokens if (row["nll"]["gpt2"] or 0) > 5]
    for name, chosen in (("has_t", {row["segment"] for row in tokens if "t" in row["piece"]}), ("hard", set(hard))):
        ends = [row for row in tokens if row["segment_bytes"] and row["segment"] in chosen]
        assert 0 < len(ends) < len({row["segment"] for row in tokens})
        assert of[name].n == sum(row["segment_bytes"] for row in ends)
        lost = sum(row["nll"]["llama"] for row in ends)
        assert nll[name, "llama"] == pytest.approx(lost / of[name].n, abs=1e-6)
        # Whatever is selected, a column's sum is the slice's.
        where = {"has_t": "contains(piece, 't')", "hard": "nll.gpt2 > 5"}[name]
        selected = result.tokens(where, models=["llama"], columns=["nll", "segment_bytes"]).to_pylist()
        assert len(selected) > len(chosen)
        assert sum(row["segment_bytes"] for row in selected) == of[name].n
        assert sum(row["nll"]["llama"] or 0 for row in selected) == pytest.approx(lost)
    everything = sum(row["nll"]["llama"] or 0 for row in tokens) / sum(row["segment_bytes"] for row in tokens)
    assert everything == pytest.approx(gap.on_all["llama"].nll)
    compare_runs([str(out / "gpt2")], str(out / "llama"), tmp_path, threshold=2)  # the other way there is a gap
    found = open_result(tmp_path).discover("gpt2", min_share=0.01)
    assert found["n"].iloc[0] < gap.evaluation.scored


def test_columns_and_limits_of_documents(place, tmp_path):
    rows = [
        {
            "text": "the cat sat on the mat " * 4 + "wörld",
            "topic": "cats",
            "spans": [{"start": 4, "end": 7, "label": "c"}],
        },
        {"text": "hello world, hello 日本語 " * 5, "topic": "greetings", "spans": []},
    ]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows * 3))
    chosen = spec(
        place,
        data=(str(tmp_path / "text.jsonl"),),
        keep=("topic", "spans"),
        limit_document_tokens=30,
        packing="document",
    )
    gap = score_models([str(place / "llama")], str(place / "gpt2"), tmp_path / "out", ScoreConfig(text=chosen))
    assert gap.evaluation.tokens <= 6 * 30
    slices = open_result(tmp_path / "out").slices({"cats": "topic = 'cats'", "c": "list_contains(spans, 'c')"})
    cats, labelled = slices[2:]
    tokens = open_result(tmp_path / "out").tokens().to_pylist()
    chosen = {row["segment"] for row in tokens if "c" in (row["spans"] or ())}
    assert labelled.n == sum(row["segment_bytes"] for row in tokens if row["segment"] in chosen) > 0
    assert labelled.n < cats.n < gap.evaluation.scored


def test_what_a_limit_leaves_out_is_not_counted_as_text(place, tmp_path, capsys):
    text = "the cat sat on the mat " * 40
    (tmp_path / "long.jsonl").write_text(json.dumps({"text": text}) + "\n")
    chosen = spec(place, data=(str(tmp_path / "long.jsonl"),), limit_document_tokens=30)
    score_models([str(place / "llama")], str(place / "gpt2"), tmp_path / "out", ScoreConfig(text=chosen))
    said = re.search(r"([\d,]+) of ([\d,]+) bytes; the others", capsys.readouterr().err)
    assert said
    scored, whole = (int(each.replace(",", "")) for each in said.groups())
    assert scored < whole < len(text) / 4


def test_outputs_say_bytes(scored, tmp_path):
    out, gap = scored
    write_report(out, out=tmp_path)
    page, table = ((tmp_path / name).read_text() for name in ("report.html", "table.md"))
    assert f"Bits per byte (NLL in nats per byte) on {gap.evaluation.scored:,} bytes" in table
    assert ">Bytes</th>" in page
    assert "per token" not in page
    assert "nats per byte" in (tmp_path / "figures" / "gap_by_distance.svg").read_text()
    examples = read_record(out / "examples.json", Examples)
    assert examples.windows
    for window in examples.windows:
        assert window.logprob["llama"][window.focus] < window.logprob["gpt2"][window.focus]


def test_models_of_one_tokenizer_are_compared_by_tokens(place, tmp_path):
    gap = score_models([str(place / "gpt2-b")], str(place / "gpt2"), tmp_path, ScoreConfig(text=spec(place)))
    assert gap.unit == "token"
    assert read_gap(tmp_path).unit == "token"
    assert not (tmp_path / "own-tokens").exists()


def test_three_models_of_two_tokenizers(place, scored, tmp_path):
    """A model with the reference's tokenizer changes nothing for the others."""
    _, gap = scored
    names = [str(place / "gpt2-b"), str(place / "llama")]
    three = score_models(
        names, str(place / "gpt2"), tmp_path, ScoreConfig(text=spec(place), index=str(place / "index"), threshold=2)
    )
    assert three.fingerprint == gap.fingerprint
    assert_close(numbers(three)[0], numbers(gap)[0])
    assert three.on_all["llama"].nll == pytest.approx(gap.on_all["llama"].nll)


def test_a_bos_takes_a_token_of_the_longest_window(place, tmp_path):
    """The model with room for 24 tokens: windows of at most 23 of them behind the BOS, in the same text."""
    models = [str(place / "bert")]
    score_models(models, str(place / "gpt2"), tmp_path / "without", ScoreConfig(text=spec(place)))
    score_models(
        models,
        str(place / "gpt2"),
        tmp_path / "with",
        ScoreConfig(text=spec(place), bos=PerModel(None, {"bert": "[UNK]"})),
    )
    longest = {}
    for name in ("without", "with"):
        run = open_run(tmp_path / name / OWN / "bert")
        longest[name] = int(np.diff(read_window_offsets(run)).max())
        assert (run.record.identity.bos is not None) == (name == "with")
        assert open_run(tmp_path / name / OWN / "gpt2").record.identity.bos is None
    assert longest == {"without": 24, "with": 23}
    bos = open_run(tmp_path / "with" / OWN / "bert").record.identity.bos  # an id of BERT's, not of the reference's
    assert f"before each window: nothing (gpt2); token {bos} (bert)" in read_gap(tmp_path / "with").warnings
    assert not any("before each window" in line for line in read_gap(tmp_path / "without").warnings)


def test_normalised_and_unknown_text(place, tmp_path):
    """WordPiece drops white space and case, has no 😀, and takes at most 24 tokens at once."""
    score_models([str(place / "bert")], str(place / "gpt2"), tmp_path, ScoreConfig(text=spec(place)))
    own = {name: open_run(tmp_path / "own-tokens" / name).record.evaluation for name in ("gpt2", "bert")}
    assert own["gpt2"].windows == own["bert"].windows
    assert (own["gpt2"].seq_len, own["bert"].seq_len) == (SEQ_LEN, 24)
    labels = read_labels(tmp_path / "labels")
    bytes_ = load_tokenizer(place / "gpt2").piece_bytes
    logprob, _ = read_logprobs(open_run(tmp_path / "bert"))
    tokens = read_token_ids(open_run(tmp_path / "bert"))
    assert labels.segment_bytes is not None
    scored = b"".join(bytes_[token] for token in tokens[labels.scored].tolist())
    assert len(scored) == labels.weight.clip(0).sum()
    assert "😀".encode() not in scored
    assert np.isfinite(logprob[labels.weight > 0]).all()
    assert np.isnan(logprob[labels.weight <= 0]).all()


def test_text_that_has_no_segments_is_refused(place, scored, tmp_path):
    out, _ = scored
    pair = [str(place / "llama")], str(place / "gpt2")
    with pytest.raises(ArgapError, match=r"gpt2: holds sums over the segments .*own-tokens/gpt2"):
        score_models([str(place / "bert")], str(out / "gpt2"), tmp_path / "o", ScoreConfig(text=spec(place)))
    shutil.copytree(out / "gpt2", tmp_path / "moved" / "gpt2")
    with pytest.raises(ArgapError, match=r"gpt2: holds sums over the segments .*own-tokens/gpt2"):
        compare_runs([], str(tmp_path / "moved" / "gpt2"), tmp_path / "o")
    (tmp_path / "ids.npy").parent.mkdir(exist_ok=True)
    np.save(tmp_path / "ids.npy", np.arange(40, dtype=np.uint16))
    with pytest.raises(ArgapError, match=r"ids\.npy: tokens of one tokenizer; expected text"):
        score_models(*pair, tmp_path / "o", ScoreConfig(text=EvaluationSpec(data=(str(tmp_path / "ids.npy"),))))
    (tmp_path / "odd.txt").write_text("☃☃☃ ☄☄☄")
    with pytest.raises(ArgapError, match=r"does not know bytes 0 to 9 of .*odd.txt \('☃☃☃'\)"):
        score_models(
            [str(place / "bert")],
            pair[1],
            tmp_path / "o",
            ScoreConfig(text=EvaluationSpec(data=(str(tmp_path / "odd.txt"),))),
        )
    score_models([], str(place / "llama"), tmp_path / "taken", ScoreConfig(text=spec(place)))
    with pytest.raises(MismatchError, match=r"taken/llama: holds a run with evaluation set"):
        score_models(*pair, tmp_path / "taken", ScoreConfig(text=spec(place)))
    assert not (tmp_path / "o").exists()
