"""Sentences, and what is said and drawn of very many models."""

from collections.abc import Callable
from typing import Any

import pytest
from matplotlib.axes import Axes

from argap.records import Gap
from argap.reports.figures import threshold as threshold_figure
from argap.reports.figures.small_multiples import domain_map, small_bins, small_frequency
from argap.reports.figures.threshold import share_by_threshold
from argap.reports.tables.overview import of_interest, overview
from argap.reports.tables.sentences import caption, detail, headline, headlines
from tests.conftest import changed

Maker = Callable[..., Any]


@pytest.mark.parametrize(
    ("rule", "share", "expected"),
    [
        (
            0.731,
            0.731,
            "73% of h3's gap to attention (95% interval 70.0–76.0%) sits on the 25.2% of tokens that are AR hits.",
        ),
        (
            1.0,
            1.0,
            "All of h3's gap to attention (95% interval 70.0–76.0%) sits on the 25.2% of tokens that are AR hits.",
        ),
        (
            1.0,
            -0.2,
            "h3 is at least as good as attention overall, but worse on the 25.2% of tokens that are AR hits.",
        ),
        (None, 0.2, "h3 has no gap to attention: it is at least as good overall and on the AR hits."),
        (-0.1, -0.1, "h3 is worse than attention overall, but better on the 25.2% of tokens that are AR hits."),
    ],
)
def test_every_case_has_its_sentence(rule: float | None, share: float, expected: str, by_hand: Gap) -> None:
    gap = changed(by_hand, "h3", share_of_tokens=0.252, paper_rule=rule, share=share, share_ci95=(0.70, 0.76))
    assert headline("h3", gap) == expected
    for model in gap.models:
        gap = changed(gap, model, n=0)
    assert headline("h3", gap).startswith("No token here is an AR hit")


def test_a_single_document_has_sentences_without_intervals(by_hand: Gap) -> None:
    gap = changed(by_hand, "h3", "all", contribution=0.5, contribution_ci95=None)
    gap = changed(gap, "h3", contribution=0.4, contribution_ci95=None, share_ci95=None, reason="a single document")
    assert headline("h3", gap).endswith("on the AR hits is not resolved: a single document.")
    assert detail("h3", gap) == "Gap: 0.500 nats per token, of which AR hits 0.400."
    gap = changed(changed(gap, "h3", "all", contribution_ci95=(0.45, 0.55)), "h3", contribution_ci95=(0.3, 0.5))
    assert detail("h3", gap) == (
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

    def above(*unresolved: str) -> Axes:
        doubted = gap
        for model in unresolved:
            reason = "the gap is smaller than the seeds' range"
            doubted = changed(doubted, model, paper_rule=1.0, share=3.0, share_ci95=(2.0, 4.0), reason=reason)
        return share_by_threshold(doubted).axes[0]

    assert above("near").get_title("left") == "Not drawn: ahead (no gap); near (unresolved)"
    assert [line.get_label() for line in above("near").get_lines() if not str(line.get_label()).startswith("_")] == [
        "far"
    ]
    all_open = above("near", "far")
    assert all_open.get_title("left") == "Not drawn: ahead (no gap)"
    assert {"(near)", "(far)"} <= {line.get_label() for line in all_open.get_lines()}


def test_models_unresolved_for_one_reason_share_a_sentence(by_hand: Gap) -> None:
    gap = by_hand
    for model in ("h3", "odd"):
        gap = changed(gap, model, paper_rule=0.9, share=0.9, reason="330 documents are worth 17")
    sentences = headlines(gap)
    assert len(sentences) == len(by_hand.compared) - 1
    sentence = "How much of the gap to attention sits on the AR hits is not resolved: 330 documents are worth 17."
    assert (sentence, "Models: h3, odd.") in sentences
