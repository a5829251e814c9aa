"""The whole pipeline against a plain recomputation with transformers and NumPy, and what a later run keeps of it."""

import itertools
import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from msgspec.structs import replace
from transformers import AutoModelForCausalLM

import argap
from argap.errors import ArgapError
from argap.files.atomic import read_json
from argap.records import as_json, read_gap
from argap.reports.pages.write import write_report
from argap.results.compare import compare_runs, label_result
from argap.results.pipeline import score_models
from argap.scoring.config import ScoreConfig
from argap.slices.cells import PREFIX, read_cells
from argap.tokens.labels import read_labels
from tests.builders.index import contents

SEQ_LEN, LIMIT, THRESHOLD = 48, 1500, 3


def recompute(place: Any, tokenizer) -> dict:
    """The same numbers without argap's code, except the tokenizer: loops, dicts, one window at a time."""
    stream, domains = [], []
    for path in sorted((place.folder / "text").rglob("*.py")):
        ids = [*tokenizer.encode([path.read_text()])[0].tolist(), tokenizer.eos]
        stream += ids
        domains += [path.parent.name] * len(ids)
    stream = stream[:LIMIT]
    windows = [stream[i : i + SEQ_LEN] for i in range(0, len(stream), SEQ_LEN)]
    counts = Counter()
    for path in sorted((place.folder / "train").iterdir()):
        ids = tokenizer.encode([path.read_text()])[0].tolist()
        counts.update(itertools.pairwise(ids))
    hits, logprobs = [], {"good": [], "bad": []}
    for window in windows:
        seen = set()
        for pair in itertools.pairwise(window):
            hits.append(pair in seen and tokenizer.eos not in pair and counts[pair] <= THRESHOLD)
            seen.add(pair)
    for name, found in logprobs.items():
        model = AutoModelForCausalLM.from_pretrained(place.folder / name, dtype=torch.float32).eval()
        for window in windows:
            with torch.no_grad():
                table = model(torch.tensor([window])).logits[0].double().log_softmax(-1)
            found += [table[i, token].item() for i, token in enumerate(window[1:])]
    hit = np.array(hits)
    mean = {
        (m, s): np.mean(np.array(v)[k]) for m, v in logprobs.items() for s, k in (("all", slice(None)), ("hit", hit))
    }
    raw = (mean["bad", "hit"] - mean["good", "hit"]) * hit.mean() / (mean["bad", "all"] - mean["good", "all"])
    return {"hits": int(hit.sum()), "n": len(hit), "raw": raw, "mean": mean, "logprobs": logprobs}


def test_agrees_with_a_plain_recomputation(place, scored, tokenizer):
    _, gap = scored
    expected = recompute(place, tokenizer)
    assert gap.models == ["good", "bad"]
    assert gap.reference == "good"
    assert gap.on_all.n == expected["n"]
    assert gap.on_hits.n == expected["hits"] > 20
    assert gap.on_hits.share_of_tokens == expected["hits"] / expected["n"]
    for model in gap.models:
        assert gap.on_all[model].nll == pytest.approx(-expected["mean"][model, "all"], abs=1e-5)
        assert gap.on_hits[model].nll == pytest.approx(-expected["mean"][model, "hit"], abs=1e-5)
    assert gap.on_hits["bad"].contribution / gap.deltas["bad"] == pytest.approx(expected["raw"], abs=1e-6)


def test_writes_every_file_of_the_contract(scored):
    out, gap = scored
    assert read_json(out / "gap.json") == json.loads(json.dumps(as_json(gap)))
    assert {p.name for p in out.iterdir()} == {
        "gap.json",
        "cells.parquet",
        "checksums.json",
        "examples.json",
        "labels",
        "good",
        "bad",
    }
    for model in ("good", "bad"):
        assert (out / model / "run.json").is_file()
        assert list((out / model / "tokens").glob("part-*.parquet"))


def test_a_rerun_gives_the_same_result_without_scoring(place, scored, monkeypatch):
    out, gap = scored
    monkeypatch.setattr(
        "argap.scoring.local.load_model", lambda *a, **k: pytest.fail("a finished run was scored again")
    )
    again = place.score(out, threshold=THRESHOLD)
    assert (again.rows, again.estimates) == (gap.rows, gap.estimates)


def test_slices_are_checked_before_any_model_runs(place, tmp_path, monkeypatch):
    monkeypatch.setattr("argap.scoring.local.load_model", lambda *a, **k: pytest.fail("a model ran"))
    for name, where, message in [
        ("bad", "frequency > 3", 'slice bad: condition "frequency > 3": Referenced column'),
        ("bad", "nll.nobody > 3", 'Could not find key "nobody"'),
        ("bad", "pos", "gives integer; expected a boolean"),
        ("other", "pos > 3", "slice other: the name is built in"),
    ]:
        with pytest.raises(ArgapError, match=message):
            score_models([place.bad], place.good, tmp_path, ScoreConfig(**place.on(), slices={name: where}))
    assert not list(tmp_path.glob("*"))


def test_a_rerun_and_new_labels_keep_the_slices(place, tmp_path, capsys):
    models = [place.bad, place.good]
    settings = {**place.on(), "threshold": THRESHOLD}
    index = settings.pop("index")
    slices = tmp_path / "slices.yaml"
    late = "{name: late, where: pos > 24, title: Late, note: A note.}"
    slices.write_text(f"slices:\n- {late}\n- {{name: hard, where: nll.bad > 9}}\n")
    first = score_models(models[:1], models[1], tmp_path, ScoreConfig(**settings, slices=str(slices)))
    assert [part.bin for part in first.named] == ["ar_hits", "late", "hard"]
    assert score_models(models[:1], models[1], tmp_path, ScoreConfig(**settings)).named == first.named
    labelled = label_result(tmp_path, index, threshold=0)
    assert labelled == read_gap(tmp_path)
    (now, *again), (before, *earlier) = labelled.named, first.named
    for part, other in zip(again, earlier, strict=True):
        assert replace(part.about, ar_hits=None) == replace(other.about, ar_hits=None)
        assert part.estimates == other.estimates
    assert now.n < before.n  # the hits are now the repeated bigrams never seen in training
    other = score_models([], models[1], tmp_path, ScoreConfig(**settings))
    assert [part.bin for part in other.named] == ["ar_hits", "late"]
    assert 'a slice of the earlier result is left out: slice hard: condition "nll.bad > 9"' in capsys.readouterr().err
    assert score_models(models[:1], models[1], tmp_path, ScoreConfig(**settings, slices={})).slices == ()
    (tmp_path / "gap.json").write_text("{}")
    capsys.readouterr()
    score_models(models[:1], models[1], tmp_path, ScoreConfig(**settings))
    said = capsys.readouterr().err
    assert f"{tmp_path}: slices of the earlier result are left out: {tmp_path / 'gap.json'}: " in said


def test_a_run_is_compared_under_another_name(place, scored, tmp_path, run_command):
    """Even with itself; what reads the tokens of the result knows the name as well."""
    out, gap = scored
    result = argap.compare(
        {"worse": out / "bad", "best": out / "good"}, f"first={out / 'good'}", out=tmp_path, base=out / "bad"
    )
    assert result.models == ["first", "worse", "best"]
    # Three models in one array here, two there: the roundings may differ.
    assert result.record.on_all["worse"].delta == pytest.approx(gap.on_all["bad"].delta, rel=1e-12)
    assert result.record.on_all["best"].delta == 0
    assert {row.closed.base for row in result.record.rows if row.closed} == {"worse"}
    assert set(result.tokens(limit=3)["nll"].type.names) == {"first", "worse", "best"}
    score_models([place.bad], f"first={out / 'good'}", tmp_path / "scored", ScoreConfig(threshold=THRESHOLD))
    assert label_result(tmp_path / "scored", place.index).models == ["first", "bad"]
    code, _, said = run_command(
        "compare", str(out / "good"), f"best={out / 'bad'}", "--ref", f"best={out / 'good'}", "--out", str(tmp_path)
    )
    assert (code, said.partition(" are both named best; ")[2]) == (1, "give one of them as NAME=RUN\n")


def test_compare_gives_the_same_result_without_checkpoints(place, scored, tmp_path):
    out, gap = scored
    twice = [str(out / "bad"), f"{out}/../{out.name}/bad/"]  # one run
    again = compare_runs(twice, str(out / "good"), tmp_path, threshold=THRESHOLD)
    assert [replace(row, run="") for row in again.rows] == [replace(row, run="") for row in gap.rows]
    other = compare_runs([str(out / "bad")], str(out / "good"), tmp_path, threshold=0, base=str(out / "bad"))
    assert again.estimates == gap.estimates
    assert other.on_hits.n < gap.on_hits.n


def test_without_an_index_every_repeated_bigram_counts_and_counts_come_later(place, scored, tmp_path):
    """`label_result` gives what scoring with the index gives, and touches no run."""
    counted, _ = scored
    settings = {**place.on()}
    index = settings.pop("index")
    gap = score_models([place.bad], place.good, tmp_path, ScoreConfig(**settings))
    labels = read_labels(tmp_path / "labels")
    assert labels.train_count is None
    assert gap.on_hits.n == (labels.repeated & labels.scored).sum()
    assert gap.hits == "repeated bigrams"
    assert "frequency" not in read_cells(tmp_path / "cells.parquet")
    with pytest.raises(ArgapError, match=r"`threshold` scaled: .* give `index=DIR`"):
        score_models([place.bad], place.good, tmp_path, ScoreConfig(**settings, threshold="scaled"))
    page = write_report(tmp_path).read_text()
    assert "A <strong>repeated bigram</strong> is" in page
    assert "By training frequency" not in page
    assert "no index: every repeated bigram counts" in (tmp_path / "table.md").read_text()
    before = {path: path.read_bytes() for path in tmp_path.glob("*/run.json")}
    assert len(before) == 2
    later = label_result(tmp_path, index, threshold=THRESHOLD)
    assert {path: path.read_bytes() for path in before} == before
    expected = read_gap(counted)
    assert later.estimates == expected.estimates
    assert (later.index, later.threshold) == (expected.index, expected.threshold)
    assert not (tmp_path / "report.html").exists()
    assert read_gap(tmp_path) == later
    compare_runs([str(tmp_path / "bad")], str(tmp_path / "good"), tmp_path / "compared")
    with pytest.raises(ArgapError, match="no labels there; label the folder of `argap score`"):
        label_result(tmp_path / "compared", index)


def test_the_order_of_documents_does_not_change_the_means(place, tmp_path):
    flipped = tmp_path / "text"
    for name, source in (("a", "encode/encoder.py"), ("b", "decode/decoder.py")):
        (flipped / name).mkdir(parents=True)
        shutil.copy(place.folder / "text" / source, flipped / name)
    both = []
    for text in (place.folder / "text", flipped):
        chosen = place.on(data=(str(text),), packing="document", limit_tokens=None)
        both.append(
            score_models(
                [place.bad],
                place.good,
                tmp_path / text.parent.name,
                ScoreConfig(**chosen),
            )
        )
    a, b = both
    for model in a.models:
        assert a.on_all[model].nll == pytest.approx(b.on_all[model].nll, abs=1e-6)
    assert a.on_hits.n == b.on_hits.n


def test_only_log_probs_depend_on_batches_and_threads_and_only_in_their_last_bits(place, scored, tmp_path):
    before = torch.get_num_threads()
    for name, options, threads in (("again", {}, before), ("other", {"batch_size": 2}, 3 - before)):
        torch.set_num_threads(threads)
        try:
            place.score(tmp_path / name, threshold=3, **options)
        finally:
            torch.set_num_threads(before)
    files = [path.relative_to(scored[0]) for path in sorted(scored[0].rglob("*.parquet"))]

    def same(name: str) -> list[Path]:
        return [file for file in files if (tmp_path / name / file).read_bytes() == (scored[0] / file).read_bytes()]

    assert same("again") == files
    assert set(same("other")) >= {file for file in files if file.parent.name == "labels"}
    cells, others = (pq.read_table(out / "cells.parquet") for out in (scored[0], tmp_path / "other"))
    for name, column in zip(cells.column_names, cells.columns, strict=True):
        if name.startswith(PREFIX):  # sums over the tokens of up to a window
            np.testing.assert_allclose(others[name].to_numpy(), column.to_numpy(), atol=1e-3)
        else:
            assert others[name].equals(column)


def test_an_interrupted_result_leaves_the_earlier_one(scored, tmp_path, monkeypatch):
    runs = str(scored[0] / "bad"), str(scored[0] / "good")
    compare_runs(runs[:1], runs[1], tmp_path)
    before = contents(tmp_path)

    def killed(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("argap.results.compare.summarize", killed)
    with pytest.raises(KeyboardInterrupt):
        compare_runs(runs[:1], runs[1], tmp_path, threshold=7)
    assert contents(tmp_path) == before
