"""Committed results: they can grow, all members share an evaluation set, and pages agree with them."""

from pathlib import Path

import pytest

from argap.errors import MismatchError
from argap.metric.share import NO_SHARE
from argap.records import read_gap
from argap.reports.figures.suite import at_best_rate
from argap.results.sources import read_documents
from argap.slices.figures import PART_UNRESOLVED
from argap.suite.config import load_suite
from argap.suite.earlier import open_earlier
from argap.suite.layout import check_trained
from argap.suite.result import read_size
from argap.suite.trajectory import share_along

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "table1-mini"


@pytest.mark.parametrize(
    ("suite", "older"),
    [
        ("table1-7m", ""),
        ("today-7m", ""),
        ("today-7m-length", ""),
        ("today-50m", ""),
        ("table1-50m", ""),
        ("table2-mini", ""),
        ("table1-mini", "base_conv"),
        ("recall-along-training", ""),
    ],
)
def test_results_can_grow(suite, older):
    """But not by new runs of members that are described differently today, as table1-mini's ``base_conv`` is."""
    described = load_suite(ROOT / "suites" / f"{suite}.yaml")
    for size in described.sizes:
        folder = ROOT / "results" / suite / size
        gap, members = read_gap(folder), {member.name: member for member in read_size(folder).members}
        entries = {entry.name: entry for entry in described.entries(size)}
        renamed = {name for name, member in members.items() if member.member == older}
        for name in renamed:
            with pytest.raises(MismatchError, match="architecture base_conv, the suite has base_conv_octaves"):
                check_trained(entries[name].config, members[name].train, name, "")
        assert gap.threshold is not None
        trained = dict.fromkeys(renamed | {"further"})
        grown = open_earlier(described, size, trained, gap.evaluation, gap.threshold, folder)
        assert grown.taken.keys() == members.keys() - renamed


@pytest.mark.parametrize("size", ["7m", "50m"])
def test_all_members_are_scored_on_the_same_text(size):
    result = read_size(RESULTS / size)
    members = {member.name: member for member in result.members}
    left_out = result.gap.evaluation.left_out
    assert left_out is not None  # the text that they were scored on
    assert {member.evaluation for member in members.values()} == {left_out.fingerprint}
    parameters = [members[model].parameters for model in result.gap.models]
    assert max(parameters) / min(parameters) < 1.05
    assert {member.train.data.fingerprint for member in members.values()} == {result.members[0].train.data.fingerprint}
    for row in result.gap.rows:
        assert row.run == members[row.model].checkpoint


@pytest.mark.parametrize("size", ["7m", "50m"])
def test_the_curve_of_older_files_is_that_of_the_cells(size):
    result = read_size(RESULTS / size)
    at = {int(point.bin): point for point in result.curve}
    for model in result.gap.deltas:
        point, row = at[1250][model], result.gap.on_hits[model]
        assert point.reason == row.reason
        for name in ("contribution", "contribution_ci95", "share", "share_ci95"):
            expected = getattr(row, name)
            assert getattr(point, name) == (expected and pytest.approx(expected, rel=1e-9))
    assert at.keys() <= {each.high for each in result.gap.bins.frequency}  # restated from the cells alone


def test_the_page_agrees_with_the_trajectory():
    folder = ROOT / "results" / "recall-along-training"
    table = (folder / "README.md").read_text().partition("| M tokens |")[2].partition("\n\n")[0]
    found = read_size(folder / "7m").trajectory()
    assert found is not None
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert len(lines) >= 8
    for tokens, *cells in lines:
        at = found.loc[(found["tokens"] / 1e6).round() == int(tokens)].set_index("model")
        for model, (hits, other) in zip(at.index, (cells[:2], cells[2:4], cells[5:7]), strict=True):
            assert f"{at.loc[model, 'nll_ar_hits']:.2f} {at.loc[model, 'nll_other']:.2f}" == f"{hits} {other}"
        for model, cell in (("base_conv", cells[4]), ("linear_attention", cells[7])):
            along = dict(zip(*share_along(found, model, "attention"), strict=True))
            assert cell == f"{100 * along[at.loc[model, 'tokens']]:.0f}%".replace("-", "−")


def test_a_result_counts_its_documents_and_says_which_shares_are_unresolved():
    gap = read_gap(RESULTS / "7m")
    assert gap.documents == 271
    assert all(10 < worth < 20 for worth in gap.worth.values())
    assert gap.worth.keys() == set(gap.deltas) - {"hybrid"}
    reasons = {row.model: gap.on_hits[row.model].reason for row in gap.compared}
    assert {model: reason for model, reason in reasons.items() if reason} == {
        "hybrid": NO_SHARE,
        "hybrid_programmatic": PART_UNRESOLVED,
    }


@pytest.mark.parametrize(
    "suite",
    [
        "table1-mini",
        "table1-7m",
        "today-7m",
        "today-7m-length",
        "today-50m",
        "table1-50m",
        "table2-mini",
        "recall-along-training",
    ],
)
def test_no_result_rests_on_the_foreign_source(suite):
    for size in load_suite(ROOT / "suites" / f"{suite}.yaml", to_run=False).sizes:
        result = read_size(ROOT / "results" / suite / size)
        documents = read_documents(result.folder / "documents.parquet")
        assert not {"wikitext2_valid"} & set(documents["source"])
        assert set(result.cells["document"]) <= set(documents["document"])
        counts = {int(result.cells["n"].to_numpy().sum()), int(result.prevalence()["n"].to_numpy().sum())}
        assert counts == {result.gap.evaluation.scored}
        assert int(result.distances()["n"].to_numpy().sum()) == result.gap.on_hits.n
        assert not any("perplexity" in line or line.startswith("bigram") for line in result.gap.warnings)
        left_out = result.gap.evaluation.left_out
        if left_out is not None:  # restated, not scored on the corrected text
            assert left_out.where == {"source": ("wikitext2_valid",), "document": ("354",)}
            assert left_out.documents == tuple(range(354, 415))
            assert documents["document"].tolist() == list(range(354))


def test_a_model_at_two_rates_is_drawn_at_the_better():
    result = read_size(ROOT / "results" / "today-7m" / "7m")
    others = [model for model in result.gap.models if not model.endswith("_rate")]
    assert len(others) < len(result.gap.models)
    assert at_best_rate(result) == others
