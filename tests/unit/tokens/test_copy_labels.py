"""The columns of `argap.tokens.copies` in the labels of a result: as slices, in breakdowns, and in labels that lack
them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import argap
from argap.bigram_index.store import open_index
from argap.corpus import open_corpus
from argap.errors import ArgapError
from argap.evaluation.windows import build_evaluation_set
from argap.files.atomic import read_json
from argap.files.checksums import FILE
from argap.records import LabelsRecord, read_gap, read_record, write_record
from argap.records.columns import COPIED
from argap.reports.tables.result import recall_table
from argap.results.compare import label_result, write_gap
from argap.results.ladder import ladder
from argap.results.restated import thresholds_of
from argap.slices.conditions import COPIED_AS
from argap.text.tokenizer import load_tokenizer
from argap.tokens.copies import Copies, find_copies
from argap.tokens.labels import FORMAT, read_labels
from argap.tokens.runs import open_run, read_token_ids, read_window_offsets
from tests.conftest import copied_without_tokens, write_drawn_result


def copies_of(result: Path) -> Copies:
    """From the tokens of the run ``ref``, whose EOS is 0."""
    run = open_run(result / "ref")
    return find_copies(read_token_ids(run), read_window_offsets(run), 0)


def age(result: Path) -> None:
    """Make the labels those of format 1."""
    path = result / "labels" / "labels.parquet"
    pq.write_table(pq.read_table(path).drop_columns([*COPIED]), path)
    (path.parent / FILE).unlink()
    record = read_record(path.with_name("labels.json"), LabelsRecord)
    write_record(path.with_name("labels.json"), LabelsRecord(1, record.evaluation, record.index, record.sources))


@pytest.fixture
def old(token_result, tmp_path):
    """`token_result` from labels of format 1."""
    out = tmp_path / "out"
    shutil.copytree(token_result, out)
    gap = read_json(out / "gap.json")
    for row in gap["models"]:
        row["run"] = ""  # its own, beside the labels
    (out / "gap.json").write_text(json.dumps(gap))
    age(out)
    runs = [open_run(out / name) for name in ("ref", "m-1", "m2")]
    write_gap(runs, out / "labels", load_tokenizer(out / "labels"), out, threshold=2, base=None)
    return out


def test_the_columns_are_those_of_the_tokens(result, token_result):
    found, labels = copies_of(token_result), read_labels(token_result / "labels")
    for name in COPIED:
        np.testing.assert_array_equal(getattr(labels, name), getattr(found, name), strict=True)
    table, scored = result.tokens(columns=list(COPIED)), labels.scored
    assert table["opportunity"].to_pylist() == found.opportunity[scored].tolist()
    assert table["match_length"].to_pylist() == found.match_length[scored].tolist()
    assert table["induction"].is_null().to_pylist() == (~found.opportunity[scored]).tolist()
    assert table["induction"].fill_null(False).to_pylist() == found.induction[scored].tolist()


def test_conditions_select_hits_misses_and_new_keys(result, token_result):
    found = copies_of(token_result)
    scored = read_labels(token_result / "labels").scored
    repeated = found.match_length > 0
    conditions = {
        "misses": ("opportunity AND NOT repeated", found.opportunity & ~repeated),
        "new keys": ("NOT opportunity", ~found.opportunity),
        "long": ("match_length >= 2", found.match_length >= 2),
        "wrong": ("NOT induction", found.opportunity & ~found.induction),  # null without an opportunity
        "by DuckDB": ("coalesce(induction, false)", found.induction),
    }
    table = result.gap({name: where for name, (where, _) in conditions.items()})
    for name, (_, mask) in conditions.items():
        n = int((mask & scored).sum())
        assert n > 0
        assert set(table.loc[table["slice"] == name, "n"]) == {n}, name


def test_the_standard_partition_is_that_of_the_tokens(result, token_result):
    """By the cells, by the labels, and by the condition that stands for each bin; the parts add up to the gap."""
    found = copies_of(token_result)
    scored = read_labels(token_result / "labels").scored
    length, some, right = found.match_length, found.opportunity, found.induction
    masks = {
        "copy": [~some, some & (length == 0), *(length == n for n in (1, 2)), (length + 1) // 2 == 2, length > 4],
        "induction": [right, some & ~right, ~some],
    }
    for by, bins in COPIED_AS.items():
        parts = result.parts(by)
        assert [part.bin for part in parts] == list(bins)
        assert [part.n for part in parts] == [(mask & scored).sum() for mask in masks[by]]
        assert min(part.n for part in parts) > 0
        named = dict(zip(map(str, range(len(bins))), bins.values(), strict=True))
        for part, own in zip(parts, result.slices(named)[2:], strict=True):
            for model in result.models[1:]:
                assert part[model].contribution == pytest.approx(own[model].contribution, abs=1e-12)
                assert part[model].contribution_ci95 == pytest.approx(own[model].contribution_ci95, abs=1e-12)
        for model in result.models[1:]:
            total = sum(part[model].contribution for part in parts)
            assert total == pytest.approx(result.record.deltas[model], abs=1e-12)
        assert list(dict.fromkeys(result.breakdown(by)["bin"])) == list(bins)


def test_the_ladder_and_the_partitions_are_printed(token_result, run_command, tmp_path, monkeypatch):
    """The index is so small that the scaled τ is 0."""
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it for its workers; tables would be narrower
    runs = [str(token_result / name) for name in ("m-1", "ref")]
    compare = ["compare", runs[0], "--ref", runs[1], "--out", str(tmp_path / "out"), "--threshold", "2"]
    code, printed, _ = run_command(*compare, "--json")
    assert code == 0
    found, labels = json.loads(printed), read_labels(token_result / "labels")
    of_name = {each["name"]: each["n"] for each in found["slices"]}
    expected = {f"ar_hits at {tau}": tau for tau in (0, 2, 1250)} | {"repeated": None}
    for name, tau in expected.items():
        assert of_name[name] == (labels.ar_hit(tau) & labels.scored).sum(), name
    shown = {by: {each["name"]: each["where"] for each in of} for by, of in found["partitions"].items()}
    assert shown == COPIED_AS
    _, printed, _ = run_command(*compare)
    rungs = ["AR hits, τ = 0 (scaled)", "AR hits, τ = 2", "AR hits, τ = 1,250", "repeated (τ = ∞)"]
    names = ["all", *rungs, "misses", "new keys", "predicted by induction"]
    for line, name in zip([line for line in printed.splitlines() if line.startswith(" m-1 ")][-8:], names, strict=True):
        assert line.split("m-1")[1].lstrip().startswith(name)


@pytest.mark.parametrize("tokens", [True, False])
def test_discovery_splits_by_what_can_be_copied(token_result, tokenizer, tmp_path, tokens):
    """A model that loses 3 nats wherever a copier of the longest context is right."""
    text = token_result.parent / "text"
    data = build_evaluation_set(open_corpus(text), tokenizer, seq_len=48)
    easy = np.random.default_rng(0).gamma(2.0, 1.0, len(data.tokens))
    lost = easy + 3 * find_copies(data.tokens, data.offsets, data.eos).induction
    index = open_index(token_result.parent / "index")
    out = write_drawn_result(
        tmp_path / "out", data, tokenizer, index, source=text, models=["ref", "m"], loss=[easy, lost]
    )
    if not tokens:
        copied_without_tokens(out, tmp_path / "cells")
    found = argap.open_result(out if tokens else tmp_path / "cells").discover("m", leaves=2)
    assert found["where"].tolist()[1:] == ["induction IS TRUE", "induction IS NOT TRUE"]
    assert found["share"].tolist()[1:] == pytest.approx([1, 0], abs=1e-6)


def test_a_condition_on_labels_of_format_1_names_the_command(old):
    result = argap.open_result(old)
    expected = (
        r'^condition "opportunity AND NOT repeated": .*; its labels are of an earlier argap, `argap label RESULT` add'
    )
    with pytest.raises(ArgapError, match=expected) as error:
        result.gap({"misses": "opportunity AND NOT repeated"})
    assert "\n" not in str(error.value)
    for by in COPIED_AS:
        assert by not in result.cells
        with pytest.raises(ArgapError, match=f"`by` {by}: .* has no labels of what can be copied; .* `argap label`"):
            result.breakdown(by)
    table = recall_table(result.record)
    rungs = ["AR hits, τ = 0 (scaled)", "AR hits, τ = 2", "AR hits, τ = 1,250", "repeated (τ = ∞)"]
    assert [row[1] for row in table.rows] == 2 * ["all", *rungs]
    assert table.notes[0].startswith("No misses, new keys or induction: this result has no labels")
    names = set(result.gap()["slice"])
    assert "content_words" in names
    assert not {"misses", "match_1", "induction_right"} & names
    assert len(result.tokens("repeated")) > 0
    assert not set(COPIED) & set(result.tokens().column_names)
    assert read_labels(old / "labels").opportunity is None


def test_labels_of_format_1_are_extended_without_a_model_or_an_index(old, token_result, run_command):
    before = read_gap(old)
    code, printed, _ = run_command("label", str(old), "--json")
    assert code == 0
    assert f'"threshold": {before.threshold}' in printed
    for name in ("labels.parquet", "labels.json"):
        assert (old / "labels" / name).read_bytes() == (token_result / "labels" / name).read_bytes(), name
    after = read_gap(old)
    assert (after.index, after.threshold) == (before.index, before.threshold)
    assert set(before.estimates) < set(after.estimates)
    for by in COPIED_AS:
        assert not before.parts(by)
        assert after.parts(by) == read_gap(token_result).parts(by) != []
    assert len(argap.open_result(old).gap({"misses": "opportunity AND NOT repeated"}))


def test_counts_of_an_index_extend_labels_of_format_1(old, token_result, tmp_path):
    """Training read the text so often that the scaled τ is 7, the upper bound of no other bin."""
    index = Path(shutil.copytree(token_result.parent / "index", tmp_path / "index"))
    described = read_json(index / "index.json")  # without its checksum
    described |= {"passes": 7.5 * 10**10 / 1250 / described["tokens"]}
    (index / "index.json").write_text(json.dumps(described))
    gap = label_result(old, str(index), threshold=3)
    assert {3, 7} <= {*thresholds_of(gap)}
    assert [*ladder(gap)] == [0, 3, 7, 1250, None]
    labels, expected = read_labels(old / "labels"), copies_of(token_result)
    assert labels.record.format == FORMAT
    for name in COPIED:
        np.testing.assert_array_equal(getattr(labels, name), getattr(expected, name))


@pytest.mark.parametrize("packing", ["packed", "document"])
def test_older_labels_of_many_documents_a_window_are_extended(packing, tokenizer, tmp_path):
    """With `packed` each EOS is a token of its own, which the labels do not say, but their tokenizer does."""
    for k in range(12):
        (tmp_path / f"{k:02d}.txt").write_text("one two\n" * (1 + k % 3))
    data = build_evaluation_set(open_corpus(tmp_path), tokenizer, seq_len=32, packing=packing)
    out = write_drawn_result(tmp_path / "out", data, tokenizer, None, source=tmp_path)
    written = read_labels(out / "labels")
    age(out)
    label_result(out)
    extended = read_labels(out / "labels")
    blind = find_copies(data.tokens, data.offsets)
    for name in COPIED:
        np.testing.assert_array_equal(getattr(extended, name), getattr(written, name))
        assert np.array_equal(getattr(extended, name), getattr(blind, name)) == (packing == "document")
