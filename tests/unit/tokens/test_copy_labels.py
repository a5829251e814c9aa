"""The columns of `argap.tokens.copies` in the labels of a result: as slices, in breakdowns, and in labels that lack
them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import argap
from argap.corpus import open_corpus
from argap.errors import ArgapError
from argap.evaluation.windows import build_evaluation_set
from argap.files.atomic import read_json
from argap.files.checksums import FILE
from argap.records import LabelsRecord, read_gap, read_record, write_record
from argap.records.columns import COPIED
from argap.results.compare import label_result
from argap.tokens.copies import Copies, find_copies
from argap.tokens.labels import FORMAT, read_labels
from argap.tokens.runs import open_run, read_token_ids, read_window_offsets
from tests.conftest import write_drawn_result


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
    """`token_result` with labels of format 1."""
    out = tmp_path / "out"
    shutil.copytree(token_result, out)
    gap = read_json(out / "gap.json")
    for row in gap["models"]:
        row["run"] = ""  # its own, beside the labels
    (out / "gap.json").write_text(json.dumps(gap))
    age(out)
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
    parts = {part.bin: part for part in result.parts("induction")}
    assert list(parts) == ["false", "true", "none"]
    assert sum(part.share_of_tokens for part in parts.values()) == pytest.approx(1)


def test_a_condition_on_labels_of_format_1_names_the_command(old):
    result = argap.open_result(old)
    expected = (
        r'^condition "opportunity AND NOT repeated": .*; its labels are of an earlier argap, `argap label RESULT` add'
    )
    with pytest.raises(ArgapError, match=expected) as error:
        result.gap({"misses": "opportunity AND NOT repeated"})
    assert "\n" not in str(error.value)
    with pytest.raises(ArgapError, match=r"`by` induction: expected (?!.*induction)"):
        result.breakdown("induction")
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
    assert (after.index, after.threshold, after.estimates) == (before.index, before.threshold, before.estimates)
    assert len(argap.open_result(old).gap({"misses": "opportunity AND NOT repeated"}))


def test_counts_of_an_index_extend_labels_of_format_1(old, token_result):
    label_result(old, str(token_result.parent / "index"), threshold=3)
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
