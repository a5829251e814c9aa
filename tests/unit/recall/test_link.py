"""Recall gaps beside AR gaps: of all hits, and at the distances of the golds."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from argap.errors import ArgapError, FormatError
from argap.recall.link import ArNll, link_to_gap, read_ar_nlls
from argap.recall.result import open_recall
from argap.recall.scores import Group, Score
from argap.records import read_gap, write_record
from argap.reports.figures.recall import link_figure
from argap.reports.pages.recall import link_text, recall_table
from argap.suite.result import read_size

RESULT = Path(__file__).parents[3] / "results" / "table1-7m" / "7m"


def a_score(model: str, contains: float) -> Score:
    unset: dict[str, Any] = dict.fromkeys(Score.__struct_fields__)
    return Score(**unset | {"model": model, "task": "t", "contains": contains, "by_distance": []})


def test_the_link_to_the_ar_gap() -> None:
    nll = {"ref": ArNll(1.0), "a": ArNll(2.0), "b": ArNll(3.0), "c": ArNll(4.0)}
    rows = [a_score(m, contains) for m, contains in zip(nll, (0.9, 0.7, 0.5, 0.3), strict=True)]
    (link,) = link_to_gap(rows, nll, "ref")
    assert link.pearson == pytest.approx(1.0)
    assert [p.recall_gap for p in link.points] == pytest.approx([0.2, 0.4, 0.6])
    assert link_to_gap(rows[:3], nll, "ref")[0].pearson is None
    assert "recall gap: Pearson 1.00, Spearman 1.00" in link_text(link)


def test_the_link_to_the_golds_where_nobody_answers() -> None:
    nll = {"ref": ArNll(1.0), "a": ArNll(2.0), "b": ArNll(3.0), "c": ArNll(4.0)}
    rows = [
        msgspec.structs.replace(a_score(model, 0.0), gold_nll=gold)
        for model, gold in (("ref", 3.0), ("a", 3.5), ("copy", None), ("b", 4.0), ("c", 3.0))
    ]
    (link,) = link_to_gap(rows, {**nll, "copy": ArNll(9.0)}, "ref")
    assert (link.pearson, link.spearman) == (None, None)
    assert [point.gold_gap_nll for point in link.points] == [0.5, None, 1.0, 0.0]
    # AR gaps 1, 2, 3 and gold gaps 0.5, 1, 0: Σ xy = −0.5 about the means, over √2 · √0.5; ranks 2, 3, 1.
    assert link.pearson_gold == pytest.approx(-0.5)
    assert link.spearman_gold == pytest.approx(-0.5)
    assert link_text(link) == (
        "t: AR gap across 4 models against recall gap: too few models, or gaps that do not vary; gap of the gold NLL: "
        "Pearson −0.50, Spearman −0.50."
    )


def test_the_ar_gap_at_the_golds_distances() -> None:
    """Of the golds in prompts a fourth is up to 32 tokens back, the others up to 64."""
    groups = [Group(name, n, 0.0, None) for name, n in (("≤ 32", 1), ("≤ 64", 3), ("not in the prompt", 5))]
    rows = [
        msgspec.structs.replace(a_score(model, 0.0), gold_nll=gold, by_distance=groups)
        for model, gold in (("ref", 3.0), ("a", 3.5), ("b", 3.1), ("c", 3.3), ("near", 5.0))
    ]
    nll = {
        "ref": ArNll(0.0, {"≤ 32": 1.0, "≤ 64": 2.0}),
        "a": ArNll(1.0, {"≤ 32": 1.5, "≤ 64": 4.0}),
        "b": ArNll(9.0, {"≤ 32": 8.0, "≤ 64": 1.5, "≤ 128": 0.0}),
        "c": ArNll(2.0, {"≤ 32": 2.0, "≤ 64": 3.0}),
        "near": ArNll(0.5, {"≤ 32": 0.5}),
    }
    (link,) = link_to_gap(rows, nll, "ref")
    assert [point.ar_gap_at_distances for point in link.points] == [1.625, 1.375, 1.0, None]
    assert link.at_distances.spearman_gold == pytest.approx(0.5)  # ranks 3, 2, 1 with 3, 1, 2
    assert ". AR gap at the golds' distances across 3 models against recall gap: too few" in link_text(link)
    assert link.spearman_gold == pytest.approx(-1.0)  # of all four: ranks 2, 4, 3, 1 with 3, 1, 2, 4


def test_ar_hits_by_distance_are_those_of_the_cells() -> None:
    """Of further seeds too, which have no row in ``gap.json``."""
    gap, cells = read_gap(RESULT), pd.read_parquet(RESULT / "cells.parquet")
    nlls = read_ar_nlls(RESULT, "attention")
    assert nlls.keys() == {member.name for member in read_size(RESULT).members} > {row.model for row in gap.rows}
    for row in gap.rows:
        of_seeds = [nlls[name].mean for name in row.seeds or (row.model,)]
        assert np.mean(of_seeds) == pytest.approx(gap.on_hits[row.model].nll)
    hits = cells[cells["repeated"] & (cells["frequency_high"] <= 1250)]
    for name, low, high in (("≤ 32", 1, 32), ("≤ 64", 33, 64), ("≤ 1024", 513, 1024)):
        part = hits[(hits["distance_low"] >= low) & (hits["distance_high"] <= high)]
        nll = -part["logprob/attention-seed1"].sum() / part["n"].sum()
        assert nlls["attention-seed1"].by_distance[name] == pytest.approx(nll)


def test_the_ar_gap_is_read_from_a_result_of_argap_score(tmp_path) -> None:
    with pytest.raises(ArgapError, match=r"no gap\.json there; expected a folder that `argap score`"):
        read_ar_nlls(tmp_path, "ref")
    (tmp_path / "gap.json").write_text("{}")
    with pytest.raises(FormatError, match=r"gap\.json: written by an older argap"):
        read_ar_nlls(tmp_path, "ref")
    shutil.copy(RESULT / "gap.json", tmp_path)
    with pytest.raises(
        FormatError, match=r"cells\.parquet: no such file; run the command .* again: `argap score`, `arga"
    ):
        read_ar_nlls(tmp_path, "ref")


@pytest.mark.parametrize(
    ("name", "gap"),
    [(f"table1-7m{task}", "table1-7m/7m") for task in ("", "-swde", "-fda")] + [("table1-50m", "table1-50m/50m")],
)
def test_the_command_computes_the_committed_links_again(name, gap, tmp_path, run_command) -> None:
    committed = RESULT.parents[1] / "recall" / name
    folder = Path(shutil.copytree(committed, tmp_path / name))
    expected = open_recall(committed).link
    emptied = msgspec.structs.replace(open_recall(committed), link=[])
    write_record(folder / "recall.json", emptied)
    assert run_command("recall", str(folder), "--gap", str(RESULT.parents[1] / gap))[0] == 0
    found = open_recall(folder).link
    assert [link.task for link in found] == [link.task for link in expected]
    for own, link in zip(found, expected, strict=True):
        assert [point.model for point in own.points] == [point.model for point in link.points]
        for name_of in ("ar_gap_nll", "recall_gap", "gold_gap_nll", "ar_gap_at_distances"):
            values = [[getattr(point, name_of) for point in each.points] for each in (own, link)]
            assert values[0] == pytest.approx(values[1], rel=1e-9)
        assert own.pearson_gold == pytest.approx(link.pearson_gold, rel=1e-9)
    assert (folder / "link.svg").is_file()


def test_a_result_without_the_reference_of_the_answers_is_refused(tmp_path, run_command) -> None:
    folder = Path(shutil.copytree(RESULT.parents[1] / "recall" / "demo", tmp_path / "demo"))
    emptied = msgspec.structs.replace(open_recall(folder), reference="nobody")
    write_record(folder / "recall.json", emptied)
    code, _, err = run_command("recall", str(folder), "--gap", str(RESULT))
    assert code == 1
    assert "no AR hits of the reference nobody; expected one of attention" in err


def test_the_figure_of_the_link_moves_each_model_to_the_golds_distances() -> None:
    result = open_recall(RESULT.parents[1] / "recall" / "table1-7m-swde")
    figure = link_figure(result)
    assert figure is not None
    (axes,), (link,) = figure.axes, result.link
    lines = [np.asarray(line.get_data()) for line in axes.lines]
    drawn = [tuple(line.ravel()) for line in lines if line.size == 4]
    assert drawn == [(p.ar_gap_nll, p.ar_gap_at_distances, p.gold_gap_nll, p.gold_gap_nll) for p in link.points]
    assert axes.get_xlim()[0] < 0
    without = [msgspec.structs.replace(point, ar_gap_at_distances=None) for point in link.points]
    older = msgspec.structs.replace(result, link=[msgspec.structs.replace(link, points=without)])
    assert link_figure(older) is None
    assert link_figure(msgspec.structs.replace(result, link=[])) is None


def test_two_models_have_no_correlation() -> None:
    """One sentence for all sets, where it is the number of models that is too small."""
    enough = open_recall(RESULT.parents[1] / "recall" / "table1-7m")
    few = msgspec.structs.replace(
        enough, link=[msgspec.structs.replace(link, points=link.points[:2]) for link in enough.link]
    )
    assert recall_table(few).notes[-1] == "AR gaps are correlated with recall where at least 3 models are compared."
    assert all("AR gap across 7 models" in note for note in recall_table(enough).notes[-3:])
