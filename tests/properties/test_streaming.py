"""What is read some windows at a time equals what is computed from everything at once."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import argap.slices.cells
from argap.errors import FormatError
from argap.files.parquet import ParquetPortions, read_portions
from argap.metric.bins import bins_of
from argap.records import as_json, read_gap
from argap.results.example_windows import Candidate, ExampleChooser, choose_examples
from argap.results.summary import summarize
from argap.slices.cells import KEYS, CellFile, build_cells, read_cells, write_cells
from argap.tokens.labels import read_labels
from argap.tokens.runs import open_run, read_logprobs, read_token_ids
from tests.conftest import assert_close

MODELS = ["ref", "m-1", "m2"]


@pytest.fixture(scope="module")
def whole(token_result):
    """Labels, token ids and scores of all windows."""
    runs = [open_run(token_result / name) for name in MODELS]
    return read_labels(token_result / "labels"), read_token_ids(runs[0]), {r.model: read_logprobs(r) for r in runs}


def test_cells_of_shards_are_those_of_all_windows(token_result, whole):
    (labels, _, scores), bins = whole, read_gap(token_result).bins
    expected = build_cells(labels, {name: logprob for name, (logprob, _) in scores.items()}, bins)
    pd.testing.assert_frame_equal(read_cells(token_result / "cells.parquet"), expected)


def test_cells_add_up_the_log_probs_of_each_combination(whole, token_result):
    labels, _, scores = whole
    cells = build_cells(labels, {"ref": scores["ref"][0]}, read_gap(token_result).bins)
    assert cells["n"].sum() == labels.scored.sum()
    assert len(cells[KEYS].drop_duplicates()) == len(cells)
    plain = pd.DataFrame({"window": labels.window, "x": scores["ref"][0].astype(np.float64)})[labels.scored]
    sums: Any = cells.groupby("window")["logprob/ref"].sum()
    expected: Any = plain.groupby("window")["x"].sum()
    np.testing.assert_allclose(sums, expected, rtol=1e-12)


def test_a_summary_of_portions_is_that_of_all_cells(token_result, monkeypatch):
    cells, gap = read_cells(token_result / "cells.parquet"), read_gap(token_result)
    options = {"reference": "ref", "threshold": 2, "evaluation": gap.evaluation, "index": gap.index, "base": "m2"}
    expected = as_json(summarize(cells, **options))
    sizes = []

    def small(path, columns):
        for table in read_portions(path, columns, rows=97):
            sizes.append(len(table))
            yield table

    monkeypatch.setattr(argap.slices.cells, "read_portions", small)
    found = as_json(summarize(CellFile(token_result / "cells.parquet"), **options))
    assert len(sizes) > 10
    for each in (found, expected):
        each.pop("date")
    assert_close(found, expected)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [1, 3, 100])
def test_examples_chosen_window_by_window_are_those_of_all_at_once(whole, tokenizer, seed, count):
    labels, tokens, scores = whole
    generator = np.random.default_rng(seed)  # losses of few values, so that there are ties
    scores = {m: (-generator.integers(1, 6, len(tokens)).astype(np.float32), t) for m, (_, t) in scores.items()}
    options = {"reference": "ref", "threshold": 2, "count": count}
    expected = choose_examples(tokens, labels, scores, tokenizer, **options)
    chooser = ExampleChooser(MODELS, tokenizer, **options)
    bounds = np.flatnonzero(np.diff(labels.window, prepend=-1, append=-1))
    for first, last in zip(bounds[:-1:2], [*bounds[2:-1:2], bounds[-1]], strict=True):
        rows = slice(first, last)
        some = {"window", "position", "repeated", "distance", "occurrences", "train_count", "domain"}
        part = {name: getattr(labels, name)[rows] for name in some}
        some_scores = {model: (logprob[rows], top1[rows]) for model, (logprob, top1) in scores.items()}
        chooser.add(tokens[rows], replace(labels, **part), some_scores)
    assert len(expected.windows) >= min(count, 3)
    assert chooser.examples() == expected


def test_no_candidate_is_forgotten_that_would_be_picked(tokenizer):
    """Few strata and documents that block each other, in every order."""
    generator = np.random.default_rng(0)
    forgotten = 0
    for _ in range(400):
        count, size = int(generator.integers(1, 4)), 24
        columns = [generator.integers(0, high, size).tolist() for high in (6, 4, 5)]
        hits = [
            Candidate(loss, row, 0, ("", band), document, None)
            for row, (loss, band, document) in enumerate(zip(*columns, strict=True))
        ]
        chooser = ExampleChooser(["ref", "m"], tokenizer, reference="ref", threshold=2, count=count)
        kept = []
        for first in range(0, size, 4):
            kept = chooser.shortened(sorted([*kept, *hits[first : first + 4]], key=lambda each: each.order))
        expected = chooser.picks(sorted(hits, key=lambda each: each.order), count)
        assert chooser.picks(kept, count) == expected
        forgotten += size - len(kept)
    assert forgotten > 4000


def test_portions_may_fill_the_last_group_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("argap.files.parquet.ROWS", 4)
    with ParquetPortions(tmp_path / "full.parquet") as file:
        for start in (0, 2, 4, 6):
            file.add(pa.table({"a": [start, start + 1]}))
    assert pq.read_table(tmp_path / "full.parquet")["a"].to_pylist() == list(range(8))


def test_a_file_that_is_not_finished_is_not_there(tmp_path):
    path = tmp_path / "x.parquet"

    def interrupted() -> None:
        with ParquetPortions(path) as file:
            file.add(pa.table({"a": [1]}))
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"PAR1")
    with pytest.raises(FormatError, match=r"x\.parquet: not a complete Parquet file"):
        list(read_portions(path, ["a"]))


def test_cells_of_a_file_can_be_those_of_some_models(token_result, tmp_path):
    path = tmp_path / "cells.parquet"
    write_cells(read_cells(token_result / "cells.parquet"), path, bins_of(2, 48))
    (part,) = CellFile(path, ("ref", "m2")).parts()
    assert [name for name in part.columns if "/" in name] == ["logprob/ref", "logprob/m2"]
