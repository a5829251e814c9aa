"""Slices by conditions against a plain recomputation with pandas."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import argap
from argap.errors import ArgapError
from argap.files.atomic import read_json
from argap.files.checksums import FILE
from argap.records import read_gap
from argap.reports.pages.write import write_report
from argap.results.compare import compare_runs, label_result
from argap.slices.figures import WHOLE, slices_of_cells
from argap.slices.library import LIBRARY, SliceSpec, library, read_slices
from argap.slices.of_tokens import Slice, checked, score_slices
from argap.slices.partitions import HITS, hits_and_others
from argap.slices.queries import looked_up
from tests.conftest import assert_close, with_runs

pc: Any = pyarrow.compute
MODELS = ["ref", "m-1", "m2"]


@pytest.fixture(scope="module")
def plain(token_result, tokenizer) -> pd.DataFrame:
    """Every scored token as a row, put together by loops and pandas from the files."""
    frame = pd.read_parquet(token_result / "labels" / "labels.parquet")
    document = pd.read_parquet(token_result / "labels" / "windows.parquet")["document"].to_numpy()
    frame["document"] = document[frame["window"]]
    for model in MODELS:
        run = pd.concat([pd.read_parquet(p) for p in sorted((token_result / model / "tokens").iterdir())])
        frame[model] = -run["logprob"].to_numpy().astype(np.float64)
        frame["top1 " + model] = run["top1"].to_numpy()
        frame["token"] = run["token"].to_numpy()
    frame["piece"] = [tokenizer.decode([token]) for token in frame["token"]]
    frame["previous"] = frame["piece"].shift()
    return frame.loc[frame["pos"] > 0].reset_index(drop=True)


CONDITIONS = {
    "rare": ("repeated AND train_count < 3", lambda f: f["repeated"] & (f["train_count"] < 3)),
    "brackets": ("regexp_matches(piece, '[()]')", lambda f: f["piece"].str.contains("[()]")),
    "far": ("distance BETWEEN 5 AND 20", lambda f: f["distance"].between(5, 20)),
    "hard": ('nll."m-1" - nll.ref > 1', lambda f: f["m-1"] - f["ref"] > 1),
    "prose late": ("domain = 'prose' AND pos >= 24", lambda f: (f["domain"] == "prose") & (f["pos"] >= 24)),
    "wrong": ("top1.m2 <> token", lambda f: f["top1 m2"] != f["token"]),
    "after space": ("previous LIKE '% '", lambda f: f["previous"].str.endswith(" ")),
}


def t_of(rows) -> float:
    """Student's t for 2 (W − 1) degrees of freedom, W the effective number of the documents' squares."""
    squares = rows**2
    return float(stats.t.ppf(0.975, np.clip(2 * (squares.sum() ** 2 / (squares**2).sum() - 1), 1, len(rows) - 1)))


def recompute(frame, mask, model) -> dict:
    """The figures of one slice and model, from the tokens, with intervals from each document left out in turn."""
    n, share = int(mask.sum()), mask.mean()
    lost = (frame[model] - frame["ref"]).to_numpy()
    by = frame.assign(all=lost, part=lost * mask, one=1.0).groupby("document")[["all", "part", "one"]].sum()
    rest = by.sum() - by
    whole, part = (
        (by[name].sum() / by["one"].sum() - rest[name] / rest["one"]) * math.sqrt(1 - 1 / len(by))
        for name in ("all", "part")
    )
    delta, inside = lost.mean(), share * lost[mask].mean()
    half = t_of(part) * math.sqrt((part**2).sum())
    # Fieller: the ends are where the square of (inside − ρ delta) is t² of its variance.
    square = t_of(part - inside / delta * whole) ** 2
    found = np.roots(
        [
            delta**2 - square * (whole**2).sum(),
            -2 * (inside * delta - square * (whole * part).sum()),
            inside**2 - square * (part**2).sum(),
        ]
    )
    resolved = abs(delta) > t_of(whole) * math.sqrt((whole**2).sum())
    bounded = resolved and delta**2 > square * (whole**2).sum()
    shares = sorted(found.real) if bounded else (math.nan, math.nan)
    return {
        "n": n,
        "share_of_tokens": share,
        "nll": frame[model][mask].mean(),
        "ppl": math.exp(frame[model][mask].mean()),
        "delta": lost[mask].mean(),
        "contribution": share * lost[mask].mean(),
        "share": inside / delta if resolved else math.nan,
        "contribution_low": inside - half,
        "contribution_high": inside + half,
        "share_low": shares[0],
        "share_high": shares[1],
    }


def test_each_condition_agrees_with_pandas(result, plain):
    table = result.gap({name: sql for name, (sql, _) in CONDITIONS.items()}).set_index(["slice", "model"])
    assert list(table.index.levels[1]) == sorted(MODELS)
    hit = plain["repeated"] & (plain["train_count"] <= 2)
    for name, (_, function) in CONDITIONS.items():
        mask = function(plain)
        assert 10 < mask.sum() < len(plain) - 10
        for model in MODELS[1:]:
            got = table.loc[(name, model)]
            for key, value in recompute(plain, mask, model).items():
                assert got[key] == pytest.approx(value, rel=1e-6, abs=1e-12, nan_ok=True), (name, model, key)
            assert got["ar_hits"] == pytest.approx(hit[mask].mean(), rel=1e-12)
        assert table.loc[(name, "ref")]["nll"] == pytest.approx(plain["ref"][mask].mean(), rel=1e-9)
        assert math.isnan(table.loc[(name, "ref")]["delta"])


def test_the_ar_hits_as_a_condition_are_the_rows_of_the_result(result):
    same = result.gap({"same": "repeated AND train_count <= 2"}).set_index("slice")
    cells = result.table().set_index("slice")
    assert (same.loc["same", "n"].to_numpy() == cells.loc["ar_hits", "n"].to_numpy()).all()
    numbers = [name for name in cells.columns if name not in ("model", "reason", "n")]
    for name in ("ar_hits", "same"):
        assert np.allclose(same.loc[name, numbers].astype(float), cells.loc["ar_hits", numbers].astype(float),
                           rtol=1e-12, atol=1e-12, equal_nan=True)  # fmt: skip
        assert same.loc[name, "reason"].tolist() == cells.loc["ar_hits", "reason"].tolist()
    assert (same.loc["same", "ar_hits"] == 1).all()


def test_another_threshold_moves_the_hits(result, plain):
    hits = result.gap({}, threshold=0).set_index(["slice", "model"]).loc[("ar_hits", "m2")]
    assert hits["n"] == (plain["repeated"] & (plain["train_count"] <= 0)).sum()


OF_VOCABULARY = {
    "digits": "regexp_matches(piece, '[0-9]')",
    "long": "length(piece) > 3 AND token % 2 = 1",
    "unknown": "CASE WHEN length(piece) > 3 THEN NULL ELSE piece <> ' ' END",
    "after": "previous LIKE '%e'",
    "alone": "token > 300",
}


def test_conditions_on_the_vocabulary_are_looked_up(result, plain, monkeypatch):
    table = result.token_table
    made = {name: looked_up(table, checked(table, sql)) for name, sql in OF_VOCABULARY.items()}
    assert all(each is not None and 0 < each.values.sum() < len(each.values) for each in made.values())
    assert [name for name, each in made.items() if each is not None and each.previous] == ["after"]
    for other in ("piece = previous", "length(piece) > pos", "true", "word = 'e'"):
        assert looked_up(table, checked(table, other)) is None
    assert looked_up(table, checked(table, "length(piece) < 9 OR piece::INT = 1")) is None  # fails on an entry
    found = score_slices(table, [Slice(*each) for each in OF_VOCABULARY.items()], threshold=2)
    monkeypatch.setattr("argap.slices.sums.looked_up", lambda *_: None)
    again = score_slices(table, [Slice(*each) for each in OF_VOCABULARY.items()], threshold=2)
    assert_close(list(map(figures_of, again)), list(map(figures_of, found)))
    assert found[2].n == plain["piece"].str.contains("[0-9]").sum()


def test_beyond_the_limit_documents_are_drawn_in_groups(result, monkeypatch):
    """As `SliceScorer` groups them, whose sums are by document."""
    monkeypatch.setattr("argap.metric.documents.GROUPS", 7)
    cells = slices_of_cells(result.cells, hits_and_others(result.cells, 2, result.record.bins), "ref")
    for part, each in zip((cells[WHOLE], cells[HITS]), score_slices(result.token_table, [], threshold=2), strict=True):
        for model in result.models[1:]:
            row, own = part[model], each[model]
            assert own.contribution_ci95 == pytest.approx(row.contribution_ci95)
            assert own.share_ci95 == pytest.approx(row.share_ci95)


def figures_of(part):
    """The figures of every model."""
    return [[*msgspec.structs.astuple(each)][3:] for each in part.estimates.values()]


ATOMS = st.sampled_from(
    ["repeated", "train_count < 2", "piece LIKE '%e%'", "pos % 3 = 1", "word_start", "word = '='", "domain = 'code'"]
)


@settings(max_examples=15)
@given(a=ATOMS, b=ATOMS, join=st.sampled_from(["AND", "OR"]), negate=st.booleans())
def test_slice_and_complement_add_up_to_the_gap(result, a, b, join, negate):
    where = f"coalesce({'NOT' if negate else ''} ({a}) {join} {b}, false)"
    pair = Slice("in", where), Slice("out", f"NOT {where}")
    whole, _, inside, outside = score_slices(result.token_table, pair, threshold=2, empty=True)
    assert inside.n + outside.n == whole.n
    for model in result.models[1:]:
        assert inside[model].contribution + outside[model].contribution == pytest.approx(whole[model].delta, abs=1e-12)


def test_null_is_not_in_the_slice(result):
    whole, _, known, unknown = result.slices({"word": "word = word", "none": "word IS NULL"})
    assert known.n + unknown.n == whole.n
    assert unknown.n > 0


def test_shards_of_other_sizes_change_nothing(result, token_result, tmp_path):
    out = Path(shutil.copytree(token_result, tmp_path / "out"))
    with_runs(out, lambda model: "moved away")  # the copy's own runs are taken then
    parts = sorted((out / "ref" / "tokens").iterdir())
    whole = pa.concat_tables([pq.read_table(part) for part in parts])
    for part in parts:
        part.unlink()
    pq.write_table(whole, parts[0])
    (out / "ref" / FILE).unlink()
    slices = {name: sql for name, (sql, _) in CONDITIONS.items()}
    pd.testing.assert_frame_equal(argap.open_result(out).gap(slices), result.gap(slices), rtol=1e-12)


@pytest.mark.parametrize("threads", [1, 3])
def test_portions_of_any_size_and_number_of_threads_change_nothing(result, monkeypatch, threads):
    slices = {name: sql for name, (sql, _) in CONDITIONS.items()} | {f"late {k}": f"pos > {k}" for k in range(40)}
    expected, by = result.gap(slices), result.breakdown("source")
    monkeypatch.setattr("argap.slices.queries.ROWS", 1)
    monkeypatch.setattr("argap.metric.intervals.COLUMNS_AT_ONCE", 7)
    monkeypatch.setattr("argap.slices.queries.available_cores", lambda: threads)
    pd.testing.assert_frame_equal(result.gap(slices), expected, rtol=1e-12)
    pd.testing.assert_frame_equal(result.breakdown("source"), by, rtol=1e-12)


def test_combinations_are_the_same_numbered_and_hashed(result, monkeypatch):
    slices = {"late": "pos > 9", "rare": "repeated AND train_count < 2"}
    numbered, by = result.gap(slices), result.breakdown("source")
    monkeypatch.setattr("argap.slices.tally.DENSE", 0)
    pd.testing.assert_frame_equal(result.gap(slices), numbered, rtol=1e-12)
    pd.testing.assert_frame_equal(result.breakdown("source"), by, rtol=1e-12)


def test_conditions_never_see_the_first_token_of_a_window(result):
    fails = "CASE WHEN pos > {} THEN true ELSE CAST(piece || 'x' AS INT) > 0 END"
    table = result.gap({"scored": fails.format(0), "whole": "nll IS NOT NULL AND nll.m2 >= 0"}).set_index("slice")
    assert set(table.loc[["scored", "whole"], "n"]) == set(table.loc["overall", "n"])
    with pytest.raises(ArgapError, match=r"slice low: a condition fails on a token: .*Could not convert"):
        result.gap({"good": fails.format(0), "low": fails.format(1)})


def test_a_function_of_a_batch_is_a_slice(result, plain):
    made = {
        "numpy": lambda batch: batch["train_count"].to_numpy() < 2,
        "arrow": lambda batch: pc.match_substring_regex(batch["piece"].cast(pa.string()), "[0-9]"),
        "word": lambda batch: pc.equal(batch["word"].cast(pa.string()), "="),
        "pandas": lambda batch: batch.to_pandas()["word"] == "=",
        "sql": "word = '='",
    }
    _, _, numpy, arrow, word, pandas, sql = result.slices(made)
    assert numpy.n == (plain["train_count"] < 2).sum()
    assert arrow.n == plain["piece"].str.contains("[0-9]").sum()
    assert word.n == pandas.n == sql.n > 5
    assert_close(figures_of(word), figures_of(sql))
    assert sql.about.where == "word = '='"
    assert numpy.about.where == "Python: <lambda>"


def test_the_library_runs(result, plain):
    table = result.gap().set_index(["slice", "model"])
    known = {each.name for each in library() if "gain" not in each.where}  # these runs have no short context
    assert {name for name, _ in table.index} == {"overall", "ar_hits", *known}
    n = table["n"].xs("m2", level="model")
    assert n["digits"] == plain["piece"].str.contains("[0-9]").sum()
    assert n["reference_wrong"] == (plain["top1 ref"] != plain["token"]).sum()
    assert n["first_tenth"] == (plain["pos"] < 4.8).sum()
    assert n["last_tenth"] == (plain["pos"] >= 43.2).sum()
    assert n["never_seen"] == (plain["train_count"] == 0).sum()
    assert (n > 0).all()


def test_capitalised_words_and_identifiers_of_the_library(result):
    where = {each.name: each.where for each in library()}
    names = set(result.tokens(where["capitalised"], columns=["word"])["word"].to_pylist())
    assert {"Lovelace", "Charles", "Babbage;"} <= names
    assert {"Then", "The", "And", "JSON"} & names == set()
    words = set(result.tokens(where["identifiers"], columns=["word"])["word"].to_pylist())
    assert any("_" in word for word in words)
    assert not {"Lovelace", "—", "12"} & words


def test_the_command_prints_the_documented_json(token_result, run_command):
    wheres = ["--where", "repeated AND train_count < 2", "--name", "rare", "--where", "pos < 9", "--name", "early"]
    code, out, _ = run_command("slice", str(token_result), *wheres, "--json")
    assert code == 0
    slices = json.loads(out)["slices"]
    assert [each["name"] for each in slices] == ["all", "ar_hits", "rare", "early"]
    for each in slices:
        assert {"name", "where", "n", "share_of_tokens", "models"} == set(each)
        assert {"model", "nll", "delta_ci95", "contribution", "share", "reason"} < set(each["models"][1])


def test_conditions_without_names_are_numbered(token_result, run_command):
    wheres = ["--where", "repeated AND train_count < 2", "--where", "pos < 9"]
    code, out, _ = run_command("slice", str(token_result), *wheres, "--json")
    assert code == 0
    named = {each["name"]: each["where"] for each in json.loads(out)["slices"][2:]}
    assert named == {"slice 1": wheres[1], "slice 2": wheres[3]}


def test_the_command_prints_a_table(token_result, tmp_path, run_command):
    (tmp_path / "mine.yaml").write_text("slices:\n- {name: rare, where: repeated AND train_count < 2, title: Rare}\n")
    code, out, _ = run_command("slice", str(token_result), "--slices", str(tmp_path / "mine.yaml"))
    assert code == 0
    for text in ("rare", "ar_hits", "m-1", "m2", "unresolved", "Rare"):
        assert text in out


def test_the_command_lists_the_library(run_command):
    code, out, _ = run_command("slice", "--list")
    assert code == 0
    for each in read_slices(LIBRARY):
        assert each.name in out
        assert each.where in out
    code, out, _ = run_command("slice", "--list", "--json")
    assert [each["where"] for each in json.loads(out)["slices"]] == [each.where for each in library()]
    code, _, error = run_command("slice", "--list", "--where", "repeated")
    assert (code, "--where: has no effect with --list; leave it out" in error) == (1, True)


def test_slices_of_a_file_are_recorded_with_the_result(token_result, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(token_result, out)
    specs = [SliceSpec("rare", "repeated AND train_count < 3", "Rare bigrams"), SliceSpec("late", "pos > 40")]
    gap = compare_runs([str(out / "m-1"), str(out / "m2")], str(out / "ref"), out, threshold=2, slices=specs)
    assert gap == read_gap(out)
    assert [each.name for each in gap.slices] == ["rare", "late"]
    assert [part.bin for part in gap.named] == ["ar_hits", "rare", "late"]
    table = argap.open_result(out).table()
    assert list(dict.fromkeys(table["slice"])) == ["overall", "ar_hits", "other", "rare", "late"]


def test_recorded_slices_come_with_compare_and_stay_when_labelled(token_result, tmp_path, run_command):
    out, mine = tmp_path / "out", tmp_path / "mine.yaml"
    shutil.copytree(token_result, out)
    mine.write_text("slices:\n- {name: late, where: pos > 40, title: Late tokens}\n")
    runs = [str(out / name) for name in ("m-1", "m2", "ref")]
    arguments = [
        *runs[:2],
        "--ref",
        runs[2],
        "--threshold",
        "2",
        "--slices",
        str(mine),
        "--out",
        str(tmp_path / "again"),
    ]
    code, printed, _ = run_command("compare", *arguments)
    assert code == 0
    assert "late: Late tokens. pos > 40" in printed
    expected = read_gap(tmp_path / "again").named
    assert [part.bin for part in expected] == ["ar_hits", "late"]
    write_report(out)
    code, _, _ = run_command("slice", str(out), "--slices", str(mine), "--record")
    assert code == 0
    assert_close(figures_of(read_gap(out).named[1]), figures_of(expected[1]))
    assert not (out / "report.html").exists()
    index = token_result.parent / "index"
    labelled = label_result(out, str(index), threshold=3)
    hits, late = labelled.named
    assert (late.bin, late.about.title, late.n) == ("late", "Late tokens", expected[1].n)
    assert hits.n == labelled.on_hits.n != expected[0].n
    code, _, err = run_command("slice", str(out), "--slices", str(mine), "--record", "--threshold", "5")
    assert (code, "give it without --threshold" in err) == (1, True)


def test_without_training_counts_the_hits_are_the_repeated_bigrams(token_result, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(token_result, out)
    path = out / "labels" / "labels.parquet"
    labels = pq.read_table(path)
    index = labels.column_names.index("train_count")
    pq.write_table(labels.set_column(index, "train_count", pa.nulls(len(labels), pa.int64())), path)
    (path.parent / FILE).unlink()
    (path.parent / "labels.json").write_text(json.dumps(read_json(path.parent / "labels.json") | {"index": None}))
    record = read_json(out / "gap.json")
    record |= {"threshold": None, "index": None}
    counted = ("frequency", "threshold")
    record["estimates"] = [each for each in record["estimates"] if each["partition"] not in counted]
    for row in record["models"]:
        row["run"] = ""
    (out / "gap.json").write_text(json.dumps(record))
    result = argap.open_result(out)
    _, hits, repeated, counted = score_slices(
        result.token_table,
        [Slice("again", "repeated"), Slice("counted", "train_count >= 0")],
        threshold=None,
        empty=True,
    )
    assert hits.n == repeated.n > 100
    assert counted.n == 0
    assert all("train_count" not in where for where in result.discover("m2", min_share=0.02)["where"].dropna())
