"""Sentences, what is said and drawn of very many models, and tokens as the page shows them."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from matplotlib.axes import Axes
from msgspec.structs import replace

from argap.records import EarlierOccurrence, Gap
from argap.reports.figures import threshold as threshold_figure
from argap.reports.figures.drawing import lay_out
from argap.reports.figures.small_multiples import domain_map, small_bins, small_frequency
from argap.reports.figures.threshold import share_by_threshold
from argap.reports.tables.overview import colour_order, of_interest, overview
from argap.reports.tables.sentences import caption, detail, headline
from argap.reports.tables.tokens import show_window, visible
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
    assert of_interest(gap) == [gap.reference, "m0", "m1", "m7", "m8"]
    assert colour_order(gap)[:6] == [gap.reference, "m0", "m1", "m7", "m8", "same"]
    monkeypatch.setattr(threshold_figure, "NAMED", 8)  # then those in colour are named
    assert {"m0", "m1", "m7", "m8"} == {
        name for text in share_by_threshold(gap).axes[0].texts if (name := text.get_text()) in gap.models
    }


def test_a_threshold_far_beyond_the_curve_is_not_named(make_gap: Maker) -> None:
    """On a text of a few tokens; its name beyond the axis would take the room of the panels."""
    gap = make_gap({"m": 0.3})
    low = [part.moved("threshold", str(k)) for k, part in enumerate(gap.parts("threshold")[:3])]
    short = gap.replaced({"threshold": low, "slice": [low[-1].moved("slice", "ar_hits"), gap.on_other]})
    assert max(int(point.bin) for point in short.curve) < 9
    figure = share_by_threshold(short)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lay_out(figure)
    assert not [text for text in figure.axes[0].texts if text.get_text().startswith("τ")]


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


def test_invisible_characters_are_shown_as_symbols() -> None:
    assert visible("a\n\tb") == "a↵→b"
    assert visible("\x00\x1b\x7f") == "␀␛⟨007F⟩"
    assert visible("\u202e\u200f\u2028\ufeff\ud800") == "⟨202E⟩⟨200F⟩⟨2028⟩⟨FEFF⟩⟨D800⟩"
    assert visible(" é שלום 日本 �") == " é שלום 日本 �"


def test_token_classes_say_which_models_were_right(make_examples: Maker) -> None:
    window = make_examples([f" t{k}" for k in range(9)]).windows[0]
    shown = show_window(window, "attention")
    # k % 4 in (0, 1): the reference is right; in (0, 2): the model is; the first token is context;
    # k % 3 == 2: an AR hit; 8 is the focus, at distance 5, so that its bigram stands at 2 and 3.
    assert [t.classes for t in shown.tokens] == [
        "t context",
        "t reference",
        "t model hit source",
        "t neither source",
        "t both",
        "t reference hit",
        "t model",
        "t neither",
        "t both hit focus",
    ]
    assert shown.tokens[5].title == "AR hit, 5 back; 17 times in training; log-prob: attention −0.25, base_conv −4.50"
    assert shown.tokens[4].title.startswith("not repeated; 16 times")
    assert shown.tokens[0].title == "first token of the window: context only"
    # exp(-0.25) = 0.78, exp(-4.5) = 0.011
    assert shown.story == (
        "The pair “ t7” + “ t8” also occurs 5 tokens earlier; training saw it 20 times. "
        "Probability of its second token: 78% by attention, 1.1% by base_conv."
    )


def test_a_token_breaks_lines_where_its_text_does(make_examples: Maker) -> None:
    window = make_examples(["a", "\n\n    b", " c\t", "d\n"]).windows[0]
    shown = show_window(window, "attention")
    assert [t.lines for t in shown.tokens] == [("a",), ("↵", "↵", "    b"), (" c→",), ("d↵", "")]


def test_a_distant_occurrence_is_shown_separately(make_examples: Maker) -> None:
    window = make_examples([" a", " b", " c", " d"]).windows[0]
    earlier = EarlierOccurrence(start=7, tokens=(" x", " c", " d", " y"), focus=2)
    shown = show_window(replace(window, earlier=earlier), "attention")
    assert [t.classes for t in shown.earlier] == ["t both", "t both source", "t both source", "t both"]
    assert shown.earlier_note == "5 tokens earlier"
    assert not any("source" in t.classes for t in shown.tokens)


def test_tooltips_of_many_models_name_the_two_of_the_window(make_examples: Maker) -> None:
    (window,) = make_examples(["a", " b", " c"]).windows
    others = {f"m{k}": (None, -1.0, -1.0) for k in range(4)}
    right = (False, True, True)
    for count in (3, 4):
        some = {name: others[name] for name in list(others)[:count]}
        many = replace(
            window, logprob=window.logprob | some, top1_correct=window.top1_correct | dict.fromkeys(some, right)
        )
        title = show_window(many, "attention").tokens[1].title
        assert title.endswith(
            "log-prob: attention −0.25, base_conv −4.50" + ", m0 −1.00, m1 −1.00, m2 −1.00" * (count == 3)
        )
