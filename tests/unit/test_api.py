"""The Python surface: what is listed, what it costs to import, and that its frames are the numbers of the files."""

import doctest
import glob
import importlib
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import argap
from argap.records import as_json

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "results" / "table1-mini" / "7m"
HEAVY = ("torch", "transformers", "numba", "scipy", "matplotlib", "datasets")


@pytest.fixture(scope="module")
def result():
    return argap.open_result(SUITE)


def test_every_listed_name_is_there_and_documented():
    for name in set(argap.__all__) - {"__version__"}:
        assert getattr(argap, name).__doc__, name
    assert dir(argap) == sorted(argap.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        argap.nothing  # noqa: B018


def test_opening_a_result_imports_nothing_heavy():
    code = (
        "import sys, argap\n"
        "assert 'pandas' not in sys.modules and 'msgspec' not in sys.modules\n"
        f"result = argap.open_result({str(SUITE)!r})\n"
        "result.table(), result.breakdown('distance'), result._repr_html_(), argap.compare, argap.open_index\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_the_table_is_that_of_gap_json(result):
    table = result.table().set_index(["model", "slice"])
    gap = result.record
    for model in gap.models:
        for name, part in (("overall", gap.on_all), ("ar_hits", gap.on_hits), ("other", gap.on_other)):
            assert table.loc[(model, name), "n"] == part.n
            assert table.loc[(model, name), "nll"] == part[model].nll
        if model != gap.reference:
            own = table.loc[(model, "ar_hits")]
            assert own["share"] == pytest.approx(gap.on_hits[model].share or math.nan, nan_ok=True)
            assert own["contribution_low"] < own["contribution"] < own["contribution_high"]
            assert own["contribution"] == pytest.approx(own["share_of_tokens"] * own["delta"], rel=1e-9)
    assert table.loc[result.reference, ["delta", "contribution", "share"]].isna().to_numpy().all()


@pytest.mark.parametrize("by", ["slice", "frequency", "distance", "position", "domain"])
def test_every_breakdown_adds_up_to_the_gap(result, by):
    if by == "position" and not result.record.parts(by):
        with pytest.raises(argap.ArgapError, match="restated without 61 documents, and its sums by position do not"):
            result.breakdown(by)
        return
    parts = result.breakdown(by)
    for row in result.record.compared:
        own = parts[parts["model"] == row.model]
        assert own["contribution"].sum() == pytest.approx(result.record.deltas[row.model], abs=1e-12)
        assert own["n"].sum() == result.record.on_all.n
        if by != "position":  # a suite's cells have no positions, and its gap.json no intervals
            assert (own["contribution_low"] <= own["contribution"] + 1e-12).all()
            assert (own["contribution"] <= own["contribution_high"] + 1e-12).all()
    assert ("repeated" in parts) == (by == "frequency")
    assert ("low" in parts) == (by in ("frequency", "distance", "position"))


def test_an_unknown_partition_lists_the_known_ones(result):
    with pytest.raises(argap.ArgapError, match="`by` length: expected slice, frequency, distance, position, domain"):
        result.breakdown("length")


def test_a_result_says_what_it_is(result):
    assert result.models[0] == result.reference == "attention"
    assert (result.threshold, result.evaluation.seq_len) == (1250, 1024)
    assert result.provenance.index.tokens == 52_004_479
    assert "against attention" in repr(result)
    models = len(result.models)  # a row each; compared; compared, up the ladder; without the reference and the base
    assert result._repr_html_().count("<tr>") == sum(1 + n for n in (models, models - 1, models - 1, models - 2))
    with pytest.raises(AttributeError):
        result.folder = Path()


def test_texts_are_escaped_in_a_notebook(result, tmp_path):
    gap = json.loads(json.dumps(as_json(result.record)).replace("base_conv", "<script>"))
    (tmp_path / "gap.json").write_text(json.dumps(gap))
    html = argap.open_result(tmp_path)._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script>" not in html


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, r"gap\.json: written by a newer argap \(format 99, known up to 3\)"),
        ({"threshold": "many"}, r"gap\.json: Expected `int \| null`, got `str` - at `\$\.threshold`"),
        ({"format": 2}, r"gap\.json: written by an older argap \(format 2, expected 3\); run the command"),
        ({"models": [{"model": 1}]}, r"gap\.json: Expected `str`, got `int` - at `\$\.models\[0\]\.model`"),
        (None, "no gap.json there; expected a folder that `argap score` or `argap compare` wrote"),
    ],
)
def test_a_result_that_cannot_be_read_is_one_line(tmp_path, change, message):
    if change is not None:
        shutil.copy(SUITE / "gap.json", tmp_path)
        gap = json.loads((tmp_path / "gap.json").read_text())
        del gap["checksum"]
        (tmp_path / "gap.json").write_text(json.dumps(gap | change))
    with pytest.raises(argap.ArgapError, match=message) as error:
        argap.open_result(tmp_path)
    assert "\n" not in str(error.value)


def test_old_results_get_intervals_from_their_cells(result):
    assert np.isfinite(result.breakdown("distance")["contribution_low"].dropna()).all()
    assert result.breakdown("distance")["contribution_low"].notna().any()


FILES = sorted(glob.glob("argap/**/*.py", root_dir=ROOT, recursive=True))
EXAMPLES = [path for path in FILES if ">>> " in (ROOT / path).read_text()]


@pytest.mark.parametrize("path", EXAMPLES)
def test_examples_in_docstrings_print_what_they_say(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    found = doctest.testmod(importlib.import_module(module))
    assert found.failed == 0
    assert found.attempted > 0
