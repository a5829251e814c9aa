"""The tree of conditions, and what it finds in tokens and in cells."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import argap
from argap.errors import ArgapError, FormatError
from argap.metric.condition_tree import Feature, Node, grow
from argap.records import read_gap, save_gap
from argap.records.columns import UNIT
from argap.results.restated import restate
from argap.slices.discover import DRAWN, HYPOTHESIS, _coded, _stability, discover, draw, halves
from argap.slices.partitions import partition
from argap.tokens.batches import TokenReader
from argap.tokens.table import TokenTable
from tests.builders.page_tables import table, unlike
from tests.conftest import copied_without_tokens

RESULTS = Path(__file__).parents[3] / "results"


def best_by_hand(codes, n, lost, bins, min_share):
    """The first split, by trying each: (feature, bin)."""
    p, gains = n / n.sum(), {}
    most = max(np.abs(np.bincount(codes[:, k], lost, minlength=count)).sum() for k, count in enumerate(bins))
    g = lost / most

    def impurity(x, y):
        return 2 * x * y / (x + y) if x + y else 0

    for k, count in enumerate(bins):
        for b in range(count - 1):
            below = codes[:, k] <= b
            parts = [(p[m].sum(), g[m].sum()) for m in (below, ~below)]
            if min(part[0] for part in parts) >= min_share:
                signs = [[(x, max(sign * y, 0)) for x, y in parts] for sign in (1, -1)]
                whole = sum(impurity(1, sum(y for _, y in of)) for of in signs)
                gains[k, b] = whole - sum(impurity(x, y) for of in signs for x, y in of)
    return max(gains, key=lambda split: gains[split])


def test_the_first_split_is_the_best_of_all():
    rng = np.random.default_rng(0)
    features = [Feature("a", (0, 10, 100)), Feature("b", (), "NOT b"), Feature("c", (5, 7))]
    for _ in range(20):
        codes = np.column_stack([rng.integers(0, f.bins, 200) for f in features])
        n = rng.integers(1, 50, 200).astype(float)
        lost = n * (rng.normal(0.1, 1, 200) + (codes[:, 0] < 2) * codes[:, 1])
        low, high = grow(codes, n, lost, features, depth=1, min_share=0.05, leaves=9)
        feature, bin_ = best_by_hand(codes, n, lost, [f.bins for f in features], 0.05)
        assert low.bins == {feature: (0, bin_)}
        assert high.bins == {feature: (bin_ + 1, features[feature].bins - 1)}


def test_leaves_are_a_partition_and_keep_to_their_limits():
    rng = np.random.default_rng(1)
    features = [Feature("a", (0, 10, 100, 1000)), Feature("b", (), "NOT b"), Feature("c", (5, 7))]
    codes = np.column_stack([rng.integers(0, f.bins, 3000) for f in features])
    n = rng.integers(1, 50, 3000).astype(float)
    lost = n * (codes[:, 0] + codes[:, 1] * codes[:, 2] + rng.normal(0, 1, 3000))
    nodes = grow(codes, n, lost, features, depth=3, min_share=0.04, leaves=6)
    leaves = [node for node in nodes if node.leaf]
    assert len(leaves) == 6
    assert (np.sum([node.holds(codes) for node in leaves], axis=0) == 1).all()
    for node in leaves:
        assert n[node.holds(codes)].sum() / n.sum() >= 0.04
        assert node.depth <= 3


def test_a_tree_without_a_gain_has_no_nodes():
    codes = np.arange(2)[:, None]
    assert grow(codes, np.ones(2), np.ones(2), [Feature("b", (), "NOT b")], depth=3, min_share=0.1, leaves=5) == []
    none = np.empty(0)  # the half of a split may have no tokens
    assert grow(codes[:0], none, none, [Feature("b", (), "NOT b")], depth=3, min_share=0.1, leaves=5) == []


def test_both_halves_have_about_as_many_documents():
    assert (halves(np.arange(2))[:, 0].tolist()) in ([True, False], [False, True])
    for count in (10, 30, 5000):
        assert (abs(halves(np.arange(count)).mean(axis=0) - 0.5) <= 0.2).all()
    # Whether a document is in one half says nothing about the others.
    assert np.abs(np.corrcoef(halves(np.arange(5000)).T) - np.eye(4)).max() < 0.05


def test_a_leaf_is_as_stable_as_its_most_similar_leaves_by_hand():
    """Eight rows, of weights 1 to 8: a leaf of the first three and one of the rest, against two other trees."""
    codes, n = np.arange(8)[:, None], np.arange(1.0, 9)
    data: Any = SimpleNamespace(codes=codes, n=n)

    def leaves(*bounds):
        return [Node(1, np.arange(low, high), {0: (low, high - 1)}) for low, high in bounds]

    first, *_ = leaves((0, 3), (3, 8))
    same, other = leaves((0, 3), (3, 8)), leaves((0, 4), (4, 8))
    assert _stability(first, [same], data) == 1
    assert _stability(first, [same, other], data) == pytest.approx((1 + 6 / 10) / 2)
    assert _stability(first, [[], same], data) == 0.5  # a tree without leaves


def test_domains_that_end_in_a_nul_are_told_apart():
    codes, features = _coded([], [], pd.Series(["a", "a\0", "b", "a"], dtype="category"))
    assert codes.T.tolist() == [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 0]]
    assert [each.column for each in features] == ["domain = 'a'", "domain = 'a\0'", "domain = 'b'"]


def test_stretches_of_documents_are_drawn():
    n = np.random.default_rng(0).integers(0, 5000, 40_000)
    n[7] = 10**6  # a stretch of its own
    assert draw(n, None).all()
    assert draw(n, n.sum()).all()
    drawn = draw(n, n.sum() // 4)
    assert n[drawn].sum() / n.sum() == pytest.approx(0.25, abs=0.03)
    changes = 2 * 0.25 * 0.75 * n.sum() / DRAWN  # between stretches that are drawn and others
    assert np.diff(drawn).sum() == pytest.approx(changes, rel=0.15)
    assert np.array_equal(draw(n, n.sum() // 4), drawn)


@pytest.mark.parametrize("gap", [1, 100, 10**9])
def test_rows_of_the_wanted_windows(result, monkeypatch, gap):
    monkeypatch.setattr("argap.tokens.rows.GAP", gap)
    table = result.token_table
    units = np.where(np.arange(len(table.scored_of_document)) % 3 == 1, 0, -1).astype(np.int32)
    parts = list(TokenReader(table, ["token"]).rows())
    tokens = np.concatenate([rows.tokens for rows in parts])
    wanted = {window for window, document in enumerate(table.document_of_window) if units[document] >= 0}
    found = list(TokenReader(table, ["token", UNIT], units=units).rows())
    for rows in found:
        assert np.array_equal(rows.tokens, tokens[rows.start : rows.start + len(rows.pos)])
        assert {rows.window[0], rows.window[-1]} <= wanted
    read = np.concatenate([np.unique(rows.window) for rows in found])
    assert wanted <= set(read.tolist())
    assert len(set(read.tolist())) == len(read)
    assert (len(found) <= len(parts)) == (gap == 10**9)
    if gap == 1:
        assert wanted == set(read.tolist())


def test_a_sample_of_the_documents(result, monkeypatch, token_result, run_command):
    monkeypatch.setattr("argap.slices.discover.DRAWN", 1)  # each document on its own
    n = result.token_table.scored_of_document
    limit = int(n.sum() * 0.6)
    drawn = draw(n, limit)
    found = discover(result.folder, result.record, "m2", min_share=0.05, limit_tokens=limit)
    assert found.sample is not None
    assert found.sample.documents == drawn.sum() < found.sample.of == len(n)
    assert found.sample.share == pytest.approx(n[drawn].sum() / n.sum())
    documents = result.tokens(columns=["document"])["document"].to_numpy()
    assert found.whole.n == (drawn & ~halves(np.arange(len(n)))[:, 0])[documents].sum()
    parts = [list(each.estimates.values())[-1].contribution or 0.0 for each in found.leaves]
    assert sum(parts) == pytest.approx(list(found.whole.estimates.values())[-1].delta)
    frame = result.discover("m2", min_share=0.05, limit_tokens=limit)
    assert frame.attrs["sample"] == found.sample
    assert frame["n"][0] == found.whole.n
    arguments = ["discover", str(token_result), "--model", "m2", "--min-share", "5%", "--limit-tokens"]
    _, out, _ = run_command(*arguments, str(limit))
    said = f"Read {drawn.sum()} of {len(n)} documents ({found.sample.share:.1%} of the tokens), drawn at random"
    assert said in " ".join(out.split())
    _, out, _ = run_command(*arguments, str(limit), "--json")
    assert json.loads(out)["sample"] == {"documents": drawn.sum(), "of": len(n), "share": found.sample.share,
                                         "seed": 1234}  # fmt: skip
    _, out, _ = run_command(*arguments, "all", "--json")
    assert json.loads(out)["sample"] is None
    with pytest.raises(ArgapError, match="`limit_tokens` 0: expected a number"):
        discover(result.folder, result.record, "m2", limit_tokens=0)
    with pytest.raises(ArgapError, match="too few documents"):
        discover(result.folder, result.record, "m2", limit_tokens=1)


PUBLISHED = table(RESULTS.parent / "docs" / "slices.md", "result, model")


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row[0])
def test_on_the_committed_results_it_rediscovers_rare_repeated_bigrams(row):
    place, model = row[0].split(", ")
    folder = RESULTS.parent / place.strip("`")
    found = discover(folder, read_gap(folder), model)
    assert not found.tokens
    assert len(found.leaves) == 5
    rare = next(each for each in found.slices if each.about.where == row[1].strip("`"))
    due = list(rare.estimates.values())[-1]
    assert due.reason is None
    assert (
        unlike(
            [(row[2], 100 * rare.share_of_tokens), (row[3], *(100 * value for value in (due.share, *due.share_ci95)))]
        )
        == []
    )
    assert sum(each.share_of_tokens for each in found.leaves) == pytest.approx(1)
    parts = [list(each.estimates.values())[-1].contribution or 0.0 for each in found.leaves]
    assert sum(parts) == pytest.approx(list(found.whole.estimates.values())[-1].delta)
    assert parts == sorted(parts, key=abs, reverse=True)


def test_sums_of_portions_are_added_up(result, monkeypatch):
    expected = discover(result.folder, result.record, "m-1")
    monkeypatch.setattr("argap.slices.queries.ROWS", 1)
    monkeypatch.setattr("argap.slices.discover.GROUPS", 5)
    found = discover(result.folder, result.record, "m-1")
    assert [each.about.where for each in found.slices] == [each.about.where for each in expected.slices]
    assert [each.n for each in found.slices] == [each.n for each in expected.slices]


def test_its_conditions_give_the_same_figures_when_pasted(result):
    found = discover(result.folder, result.record, "m2", min_share=0.02)
    assert found.tokens
    scored = result.tokens(columns=["document"])["document"].to_numpy()
    held = ~halves(scored)[:, 0]
    assert found.whole.n == held.sum()
    for each in found.slices:
        documents = result.tokens(each.about.where, columns=["document"])["document"].to_numpy()
        assert each.n == (~halves(documents)[:, 0]).sum()
    parts = [list(each.estimates.values())[-1].contribution or 0.0 for each in found.leaves]
    assert sum(parts) == pytest.approx(list(found.whole.estimates.values())[-1].delta)
    assert any("repeated" in each.about.where for each in found.slices)  # what m2 is made to be worse at


def test_as_a_data_frame(result):
    frame = result.discover("m2", min_share=0.02, leaves=3)
    assert list(frame["slice"][:4]) == ["overall", "leaf 1", "leaf 2", "leaf 3"]
    assert set(frame["model"]) == {"m2"}
    assert {"where", "ar_hits", "contribution_low"} <= set(frame.columns)


def test_the_command_prints_hypotheses(token_result, run_command):
    arguments = ["discover", str(token_result), "--model", "m2", "--min-share", "2%"]
    code, out, _ = run_command(*arguments)
    assert code == 0
    assert HYPOTHESIS in " ".join(out.split())
    assert "leaf 1: " in out
    code, out, _ = run_command(*arguments, "--json")
    slices = json.loads(out)
    assert slices["note"] == HYPOTHESIS
    assert {"name", "where", "n", "share_of_tokens", "models"} <= set(slices["slices"][0])


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        ("ref", {}, "`model` ref: expected one of those compared with ref: m-1, m2"),
        ("m2", {"min_share": 0.7}, "`min_share` 0.7"),
        ("m2", {"leaves": 1}, "at least two leaves"),
        ("m2", {"min_share": 0.49}, "no condition explains its ΔNLL better than chance; try a smaller `min_share`"),
    ],
)
def test_what_is_refused(result, model, options, message):
    with pytest.raises(ArgapError, match=message):
        result.discover(model, **options)


def test_a_lead_is_explained_as_the_gap_the_other_way_round(token_result, tmp_path):
    """ref leads m2 where m2 is behind ref: the same conditions, the other sign, and the same shares."""
    for name in ("gap", "lead"):
        copied_without_tokens(token_result, tmp_path / name)
    behind = argap.open_result(tmp_path / "gap")
    save_gap(tmp_path / "lead" / "gap.json", _whole(behind, reference="m2"))
    lost, won = behind.discover("m2"), argap.open_result(tmp_path / "lead").discover("ref")
    assert won["where"].tolist() == lost["where"].tolist()
    assert won["contribution"].tolist() == pytest.approx([-value for value in lost["contribution"]])
    assert won["share"].tolist() == pytest.approx(lost["share"].tolist())
    assert (won["contribution"].to_numpy()[1:] < 0).any()


def _whole(result, reference):
    """A result against another reference, with every partition."""
    gap = restate(result.record, result.cells, threshold=result.threshold, reference=reference)
    parts = {
        by: partition(result.cells, gap.bins, by, reference=reference, threshold=gap.threshold)
        for by in ("frequency", "distance", "position", "domain")
    }
    return gap.replaced(parts)


def test_damaged_tokens_are_no_reason_to_look_at_the_cells(token_result, tmp_path):
    copied = Path(shutil.copytree(token_result, tmp_path / "out"))
    labels = copied / "labels" / "labels.json"
    labels.write_text(labels.read_text()[:88])
    with pytest.raises(FormatError, match=r"labels\.json: not readable as JSON"):
        discover(copied, read_gap(copied), "m2")


def test_json_says_whether_tokens_were_read(token_result, tmp_path, run_command):
    code, out, err = run_command("discover", str(token_result), "--model", "m2", "--json")
    assert (code, json.loads(out)["tokens"], err) == (0, True, "")
    cells = copied_without_tokens(token_result, tmp_path / "out")
    code, out, err = run_command("discover", str(cells), "--model", "m2", "--json")
    assert (code, json.loads(out)["tokens"]) == (0, False)
    assert err == f"{cells}: found in its cells, not its tokens: conditions split at the bounds of bins\n"


@pytest.mark.parametrize("having", [1, 2])
def test_a_single_document_has_no_halves(result, monkeypatch, having):
    n = result.token_table.scored_of_document.copy()
    (first, *_), fits = np.flatnonzero(n), halves(np.arange(len(n)))[:, 0]
    n[(np.arange(len(n)) != first) & ((having == 1) | (fits != fits[first]))] = 0  # others have no scored token
    monkeypatch.setattr(TokenTable, "scored_of_document", n)
    with pytest.raises(ArgapError, match="too few documents"):
        discover(result.folder, result.record, "m2")


@pytest.mark.parametrize(
    ("result", "model", "contains"), [("table1-7m", "base_conv", True), ("table2-mini", "hybrid_programmatic", False)]
)
def test_the_command_says_which_tokens_have_distance_0(result, model, contains, run_command):
    code, out, _ = run_command("discover", str(RESULTS / result / "7m"), "--model", model)
    assert code == 0
    assert ("distance <=" in out) == contains
    assert ("distance is 0 for tokens that are not repeated" in out) == contains
