"""Sentences, and what is said and drawn of very many models."""

from collections.abc import Callable
from typing import Any

import pytest
from matplotlib.axes import Axes
from msgspec.structs import replace

from argap.records import Case, Delta, Gap, GapShare, SliceScores
from argap.reports.figures import threshold as threshold_figure
from argap.reports.figures.small_multiples import domain_map, small_bins, small_frequency
from argap.reports.figures.threshold import share_by_threshold
from argap.reports.tables.overview import of_interest, overview
from argap.reports.tables.sentences import caption, detail, headline, headlines

Maker = Callable[..., Any]


@pytest.mark.parametrize(
    ("case", "value", "expected"),
    [
        (
            "explained",
            0.731,
            "73% of m's gap to ref (95% interval 70.0–76.0%) sits on the 25.2% of tokens that are AR hits.",
        ),
        (
            "explained",
            1.0,
            "All of m's gap to ref (95% interval 70.0–76.0%) sits on the 25.2% of tokens that are AR hits.",
        ),
        (
            "recall_only",
            1.0,
            "m is at least as good as ref overall, but worse on the 25.2% of tokens that are AR hits.",
        ),
        ("no_gap", None, "m has no gap to ref: it is at least as good overall and on the AR hits."),
        ("reversed", -0.1, "m is worse than ref overall, but better on the 25.2% of tokens that are AR hits."),
    ],
)
def test_every_case_has_its_sentence(case: Case, value: float | None, expected: str, by_hand: Gap) -> None:
    due = GapShare(value, value, case, (0.70, 0.76), None)
    row = replace(by_hand.row("h3"), model="m", share_ar_hits=0.252, gap_due_to_ar=due)
    assert headline(row, "ref") == expected
    without_hits = replace(row, ar_hits=SliceScores(0, None, None))
    assert headline(without_hits, "ref").startswith("No token here is an AR hit")


def test_a_single_document_has_sentences_without_intervals(by_hand: Gap) -> None:
    due = GapShare(0.731, 0.731, "explained", None, "a single document")
    row = replace(by_hand.row("h3"), model="m", share_ar_hits=0.252, gap_due_to_ar=due)
    row = replace(row, delta=Delta(0.5, None), delta_ar=Delta(0.4, None))
    sentence = headline(row, "ref")
    assert sentence == "73% of m's gap to ref (a single document) sits on the 25.2% of tokens that are AR hits."
    assert detail(row) == "Gap: 0.500 nats per token, of which AR hits 0.400."
    assert detail(replace(row, delta=Delta(0.5, (0.45, 0.55)), delta_ar=Delta(0.4, (0.3, 0.5)))) == (
        "Gap: 0.500 nats per token (95% interval 0.450 to 0.550), of which AR hits 0.400 (0.300 to 0.500)."
    )


def test_of_very_many_models_the_two_ends_are_shown(make_gap: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {f"m{k:02d}": 0.2 + 0.05 * k for k in range(22)}
    gap = make_gap(losses, domains=("prose", "code"))
    ends = [*list(losses)[:10], *list(losses)[-10:]]
    made = overview(gap)
    assert made is not None
    assert [bar.model for bar in made.bars] == [*ends[:10], "… 2 between", *ends[10:]]
    of_22 = "Of 22 models, the 10 with the smallest gap and the 10 with the largest"
    panels = [small_frequency(gap), small_bins(gap, "distance"), small_bins(gap, "position")]
    for figure in panels:
        assert [axes.get_title("left").partition("\n")[0] for axes in figure.axes] == ends
    assert [label.get_text() for label in domain_map(gap).axes[0].get_yticklabels()] == ends
    for by in ("frequency", "distance", "position", "domain"):
        text = caption(gap, f"gap_by_{by}")
        assert f"{of_22} are shown" in text
    for figure in (*panels, domain_map(gap)):  # the SVG alone says so, too
        assert figure.get_supxlabel().endswith(of_22)
    gap_of_21 = make_gap(dict(list(losses.items())[:21]), domains=("prose", "code"))
    assert domain_map(gap_of_21).get_supxlabel() == ""
    of_21 = overview(gap_of_21)
    assert of_21 is not None
    assert [bar.model for bar in of_21.bars] == list(losses)[:21]  # "1 between" would take the line of the one
    for most, count in ((24, 22), (21, 4)):  # names beside the curves: of all, or of those in colour
        monkeypatch.setattr(threshold_figure, "NAMED", most)
        texts = [text.get_text() for text in share_by_threshold(gap).axes[0].texts]
        assert len([text for text in texts if text in losses]) == count


def test_of_many_curves_those_at_the_ends_are_in_colour(make_gap: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model without a gap, though closest to the reference, has no curve."""
    gap = make_gap({"ahead": -0.4} | {f"m{k}": 0.2 + 0.05 * k for k in range(9)})
    assert of_interest(gap) == [gap.reference, "ahead", "m0", "m7", "m8"]
    monkeypatch.setattr(threshold_figure, "NAMED", 8)  # then those in colour are named
    assert {"m0", "m1", "m7", "m8"} == {
        name for text in share_by_threshold(gap).axes[0].texts if (name := text.get_text()) in gap.models
    }


def test_the_curve_of_an_unresolved_share_is_not_drawn(make_gap: Maker) -> None:
    """A gap below the seeds' range can have a share of many times the gap, which would flatten all other curves."""
    gap = make_gap({"near": 0.01, "far": 0.3, "ahead": -0.4})
    due = GapShare(3.0, 3.0, "explained", (2.0, 4.0), None, "the gap is smaller than the seeds' range")

    def above(*unresolved: str) -> Axes:
        rows = [replace(row, gap_due_to_ar=due) if row.model in unresolved else row for row in gap.rows]
        return share_by_threshold(replace(gap, rows=tuple(rows))).axes[0]

    assert above("near").get_title("left") == "Not drawn: ahead (no gap); near (unresolved)"
    assert [line.get_label() for line in above("near").get_lines() if not str(line.get_label()).startswith("_")] == [
        "far"
    ]
    all_open = above("near", "far")
    assert all_open.get_title("left") == "Not drawn: ahead (no gap)"
    assert {"(near)", "(far)"} <= {line.get_label() for line in all_open.get_lines()}


def test_models_unresolved_for_one_reason_share_a_sentence(by_hand: Gap) -> None:
    due = GapShare(0.9, 0.9, "explained", (0.85, 0.92), None, "330 documents are worth 17")
    rows = [replace(row, gap_due_to_ar=due) if row.model in ("h3", "odd") else row for row in by_hand.rows]
    sentences = headlines(replace(by_hand, rows=tuple(rows)))
    assert len(sentences) == len(by_hand.compared) - 1
    sentence = "How much of the gap to attention sits on the AR hits is not resolved: 330 documents are worth 17."
    assert (sentence, "Models: h3, odd.") in sentences
