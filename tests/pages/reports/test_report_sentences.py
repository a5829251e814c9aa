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
from argap.reports.tables.sentences import caption, detail, headline
from tests.conftest import changed

Maker = Callable[..., Any]


@pytest.mark.parametrize(
    ("model", "sentence", "numbers"),
    [
        (
            "h3",
            "h3 is 0.050 nats per token behind attention, 0.044 of it on the 7.0% of tokens that are AR hits.",
            "ΔNLL +0.050 (95% interval +0.040 to +0.060); on the AR hits +0.044 (+0.034 to +0.054), 89% of the gap "
            "(85.1–92.3%).",
        ),
        (
            "hyena",
            "hyena is 0.050 nats per token behind attention: 0.066 on the 7.0% of tokens that are AR hits, ahead by "
            "0.015 on the rest.",
            "131% of the gap (127.0–135.0%).",
        ),
        (
            "slide",
            "slide is 0.020 nats per token ahead of attention: 0.050 on the rest, behind by 0.030 on the 7.0% of "
            "tokens that are AR hits.",
            "−150% of the lead (−170.0 to −130.0%).",
        ),
        (
            "mamba",
            "mamba is 0.100 nats per token ahead of attention, 0.005 of it on the 7.0% of tokens that are AR hits.",
            "5% of the lead (4.0–6.0%).",
        ),
        (
            "close",
            "close is level with attention: ΔNLL is +0.005 nats per token.",
            "ΔNLL +0.005 (95% interval −0.005 to +0.015); on the AR hits +0.004 (−0.006 to +0.014).",
        ),
    ],
)
def test_every_direction_has_its_sentence(model: str, sentence: str, numbers: str, by_hand: Gap) -> None:
    assert headline(model, by_hand) == sentence
    assert detail(model, by_hand).endswith(numbers)


def test_without_hits_nothing_is_recall(by_hand: Gap) -> None:
    gap = by_hand
    for model in gap.models:
        gap = changed(gap, model, n=0)
    assert headline("h3", gap).endswith(
        "behind attention. No token here is an AR hit: none of it can be associative recall."
    )


def test_level_models_may_differ_on_the_hits(by_hand: Gap) -> None:
    gap = changed(by_hand, "close", contribution=-0.02, contribution_ci95=(-0.03, -0.01))
    assert headline("close", gap).endswith("per token, ahead by 0.020 on the AR hits and behind on the rest.")


def test_a_single_document_has_sentences_without_intervals(by_hand: Gap) -> None:
    gap = changed(by_hand, "h3", "all", delta_ci95=None)
    gap = changed(gap, "h3", contribution_ci95=None, share_ci95=None, reason="a single document")
    expected = "ΔNLL +0.050; on the AR hits +0.044, 89% of the gap, not to be claimed: a single document."
    assert detail("h3", gap) == expected


def test_of_very_many_models_the_two_ends_are_shown(make_gap: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    losses = {f"m{k:02d}": 0.2 + 0.05 * k for k in range(22)}
    gap = make_gap(losses, domains=("prose", "code"))
    ends = [*list(losses)[:10], *list(losses)[-10:]]
    made = overview(gap)
    assert made is not None
    assert [bar.model for bar in made.bars] == [*ends[:10], "… 2 between", *ends[10:]]
    of_22 = "Of 22 models, the 10 with the lowest ΔNLL and the 10 with the highest"
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
    """A model that is level, though closest to the reference, has no curve."""
    gap = make_gap({"same": 0.0} | {f"m{k}": 0.2 + 0.05 * k for k in range(9)})
    assert of_interest(gap) == [gap.reference, "same", "m0", "m7", "m8"]
    monkeypatch.setattr(threshold_figure, "NAMED", 8)  # then those in colour are named
    assert {"m0", "m1", "m7", "m8"} == {
        name for text in share_by_threshold(gap).axes[0].texts if (name := text.get_text()) in gap.models
    }


def test_the_curve_of_an_unresolved_share_is_not_drawn(make_gap: Maker) -> None:
    """A gap below the seeds' range can have a share of many times the gap, which would flatten all other curves."""
    gap = make_gap({"near": 0.01, "far": 0.3, "same": 0.0})

    def above(*unresolved: str) -> Axes:
        doubted = gap
        for model in unresolved:
            reason = "the gap is smaller than the seeds' range"
            doubted = changed(doubted, model, paper_rule=1.0, share=3.0, share_ci95=(2.0, 4.0), reason=reason)
        return share_by_threshold(doubted).axes[0]

    assert above("near").get_title("left") == "Not drawn: same (level); near (unresolved)"
    assert [line.get_label() for line in above("near").get_lines() if not str(line.get_label()).startswith("_")] == [
        "far"
    ]
    all_open = above("near", "far")
    assert all_open.get_title("left") == "Not drawn: same (level)"
    assert {"(near)", "(far)"} <= {line.get_label() for line in all_open.get_lines()}
