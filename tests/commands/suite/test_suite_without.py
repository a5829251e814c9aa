"""A result restated without some documents is that of a text without their windows, and can grow."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from argap.cli.suite import app
from argap.errors import FormatError, MismatchError
from argap.files.atomic import read_json
from argap.files.checksums import write_checksums
from argap.files.parquet import read_frame, write_parquet
from argap.records import as_json, read_gap
from argap.suite.config import load_suite
from argap.suite.layout import Layout
from argap.suite.members import evaluation_set, training_index
from argap.suite.result import read_size
from argap.suite.without import restate_without
from argap.tokens.labels import label
from argap.tokens.runs import open_run, read_logprobs
from tests.commands.suite.conftest import command

WHERE = {"domain": ("notes",), "document": ("5",)}
"""The second half of the text, and the document that shares a window with it."""
MODELS = ["attention", "base_conv"]


@pytest.fixture(scope="module")
def labels(place):
    suite = load_suite(place / "suite.yaml")
    return label(evaluation_set(suite, "tiny")[0], training_index(suite, "tiny", Layout(place / "work")))


@pytest.fixture(scope="module")
def restated(place, tmp_path_factory) -> Path:
    """A restated result, which no test changes."""
    out = tmp_path_factory.mktemp("restated") / "tiny"
    shutil.copytree(place / "out" / "tiny", out)
    restate_without(load_suite(place / "suite.yaml"), "tiny", Layout(place / "work"), out, WHERE)
    return out


@pytest.fixture
def shorter(place, tmp_path) -> Path:
    """The suite with the first half of the text alone, in a folder of its own."""
    values = yaml.safe_load((place / "suite.yaml").read_text())
    values["evaluation"]["data"] = [str(place / "val" / "letters")]
    root = tmp_path / "shorter"
    root.mkdir()
    (root / "suite.yaml").write_text(yaml.safe_dump(values))
    return root


def test_the_text_has_a_window_of_both_halves(labels):
    assert labels.domains == ["letters", "notes"]
    windows = [set(labels.domain[labels.window == w].tolist()) for w in range(len(labels.document_of_window))]
    assert {0, 1} in windows
    assert labels.document_of_window[windows.index({0, 1})] in (5, 6)


def test_figures_are_those_of_the_tokens_kept(restated, place, labels):
    kept = (labels.document_of_window < 5)[labels.window] & labels.scored
    gap = read_gap(restated)
    assert gap.threshold is not None
    hits = kept & labels.ar_hit(gap.threshold)
    for name in gap.models:
        logprob = np.mean(
            [
                read_logprobs(open_run(place / "work" / "tiny" / "runs" / seed))[0].astype(np.float64)
                for seed in gap.seeds[name]
            ],
            axis=0,
        )
        overall, on_hits = gap.on_all[name], gap.on_hits[name]
        assert (overall.n, on_hits.n) == (kept.sum(), hits.sum())
        assert overall.nll == pytest.approx(-logprob[kept].mean(), rel=1e-12)
        assert on_hits.nll == pytest.approx(-logprob[hits].mean(), rel=1e-12)
    for by in ("slice", "distance", "position", "domain", "copy", "induction"):
        assert sum(part.n for part in gap.parts(by)) == kept.sum()
    result = read_size(restated)
    assert result.distances()["n"].sum() == hits.sum()
    assert result.prevalence()["n"].sum() == kept.sum()
    assert result.prevalence()["repeated"].sum() == (kept & labels.repeated).sum()
    assert set(result.cells["document"].tolist()) == set(range(5))
    assert result.curve[-1].share_of_tokens == pytest.approx((kept & labels.repeated).sum() / kept.sum())
    assert all(window["document"] < 5 for window in read_json(restated / "examples.json")["windows"])


def test_the_record_says_what_was_left_out(restated, place, labels):
    before, after = read_gap(place / "out" / "tiny").evaluation, read_gap(restated).evaluation
    left_out = after.left_out
    assert left_out is not None
    assert (left_out.where, left_out.documents) == (WHERE, tuple(range(5, 12)))
    assert left_out.fingerprint == before.fingerprint != after.fingerprint
    assert (after.tokens + left_out.tokens, after.scored + left_out.scored) == (before.tokens, before.scored)
    assert (after.documents, after.windows) == (5, (labels.document_of_window < 5).sum())
    assert left_out.unchanged == ("trajectory.parquet",)
    assert (restated / "trajectory.parquet").read_bytes() == (place / "out/tiny/trajectory.parquet").read_bytes()
    assert read_frame(restated / "documents.parquet")["domain"].unique().tolist() == ["letters"]


def test_restating_again_changes_nothing(restated, place, tmp_path):
    again = shutil.copytree(restated, tmp_path / "tiny")
    restate_without(load_suite(place / "suite.yaml"), "tiny", Layout(place / "work"), again, WHERE)
    for path in restated.glob("*.parquet"):
        assert (again / path.name).read_bytes() == path.read_bytes()
    assert read_json(again / "gap.json") | {"date": ""} == read_json(restated / "gap.json") | {"date": ""}


def test_the_shorter_text_gives_the_same(restated, place, shorter, tmp_path):
    out = tmp_path / "from shorter"
    shutil.copytree(place / "out" / "tiny", out)
    table = place / "out" / "tiny" / "documents.parquet"
    restate_without(load_suite(shorter / "suite.yaml"), "tiny", Layout(place / "work"), out, WHERE, table)
    for name in ("cells", "positions", "copies", "curve", "distances", "distance_sums", "prevalence", "documents"):
        assert (out / f"{name}.parquet").read_bytes() == (restated / f"{name}.parquet").read_bytes()
    assert read_gap(out).fingerprint == read_gap(restated).fingerprint


@pytest.mark.parametrize("text", ["whole", "shorter"])
def test_members_are_added_to_a_restated_result(restated, place, shorter, text, tmp_path):
    """A member that was scored on either text has the figures that it had before."""
    root = shorter
    if text == "whole":
        shutil.copy(place / "suite.yaml", root / "suite.yaml")
    expected = read_gap(restated)
    (root / "out").mkdir()
    shutil.copytree(restated, root / "out" / "tiny")
    result = command(root, "run", "--member", "base_conv")
    assert result.exit_code == 0, result.output
    grown = read_gap(root / "out" / "tiny")
    assert as_json(grown.evaluation) | {"data": []} == as_json(expected.evaluation) | {"data": []}
    assert grown.on_all["attention"] == expected.on_all["attention"]
    assert grown.on_all["base_conv"].n == expected.on_all["base_conv"].n
    assert grown.on_all["base_conv"].nll == pytest.approx(expected.on_all["base_conv"].nll, rel=1e-4)


def test_a_document_whose_window_was_shared_is_named(place, shorter, tmp_path):
    out = tmp_path / "tiny"
    shutil.copytree(place / "out" / "tiny", out)
    before = (out / "gap.json").read_bytes()
    with pytest.raises(MismatchError, match=r"of document 5, .* leave it out as well: `without` document=5"):
        restate_without(
            load_suite(shorter / "suite.yaml"), "tiny", Layout(place / "work"), out, {"domain": ("notes",)},
            place / "out" / "tiny" / "documents.parquet",
        )  # fmt: skip
    assert (out / "gap.json").read_bytes() == before


def test_without_a_training_log_nothing_is_restated(place, tmp_path):
    """The tables, which need it, would be refused after the result had changed."""
    out = tmp_path / "tiny"
    shutil.copytree(place / "out" / "tiny", out)
    (out / "logs.parquet").unlink()
    before = (out / "gap.json").read_bytes()
    with pytest.raises(FormatError, match=r"logs\.parquet: no such file"):
        restate_without(load_suite(place / "suite.yaml"), "tiny", Layout(place / "work"), out, WHERE)
    assert (out / "gap.json").read_bytes() == before


@pytest.mark.parametrize("name", ["tiny/table.csv", "tiny/report.html", "table.md"])
def test_where_a_table_could_not_be_written_nothing_is_restated(place, tmp_path, name):
    out = tmp_path / "tiny"
    shutil.copytree(place / "out" / "tiny", out)
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    before = (out / "gap.json").read_bytes()
    with pytest.raises(FormatError, match=f"{name}: a folder; expected a file"):
        restate_without(load_suite(place / "suite.yaml"), "tiny", Layout(place / "work"), out, WHERE)
    assert (out / "gap.json").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("curve", lambda frame: frame.drop(columns="logprob/base_conv"), "no column logprob/base_conv; expected "),
        ("cells", lambda frame: frame.drop(columns="logprob/base_conv"), r"members\.json: has attention, base_conv"),
        ("cells", lambda frame: frame.drop(columns="frequency"), "no column frequency"),
        ("logs", lambda frame: frame.iloc[:0], r"logs\.parquet: no rows"),
        ("positions", lambda frame: frame.iloc[:0], r"positions\.parquet: no rows"),
    ],
)
def test_a_broken_table_is_refused_before_anything_is_restated(place, tmp_path, name, change, said):
    out = tmp_path / "tiny"
    shutil.copytree(place / "out" / "tiny", out)
    write_parquet(out / f"{name}.parquet", change(read_frame(out / f"{name}.parquet")))
    write_checksums(out, sorted(out.glob("*.parquet")))
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(FormatError, match=said):
        restate_without(load_suite(place / "suite.yaml"), "tiny", Layout(place / "work"), out, WHERE)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_bad_input_is_one_line(place, tmp_path):
    out = tmp_path / "out"
    shutil.copytree(place / "out", out)
    (out / "tiny" / "documents.parquet").unlink()
    options = ["--work", str(place / "work"), "--without"]
    suite = load_suite(place / "suite.yaml")
    with pytest.raises(FormatError, match=r"documents\.parquet: no such file; give `documents`, a table with"):
        restate_without(suite, "tiny", Layout(place / "work"), out / "tiny", WHERE)
    shutil.copy(place / "out/tiny/documents.parquet", tmp_path / "table.parquet")

    def table(*more: str):
        named = ["table", str(place / "suite.yaml"), "--out", str(out), *options, *more]
        return CliRunner().invoke(app, [*named, "--documents", str(tmp_path / "table.parquet")])

    assert "no document has it; known are letters, notes" in str(table("domain=other").exception)
    done = table("domain=notes", "--without", "document=5")
    assert done.exit_code == 0, done.output
    assert "Restated without 7 documents (domain notes, document 5)" in (out / "table.md").read_text()
    cells = read_frame(out / "tiny" / "cells.parquet")
    cells["n"] = cells["n"].to_numpy()[::-1]
    write_parquet(out / "tiny" / "cells.parquet", cells)
    write_checksums(out / "tiny", sorted((out / "tiny").glob("*.parquet")))
    assert "tokens of document" in str(table("domain=notes").exception)
