"""Tokens as the page shows them: characters, marks and tooltips."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from argap.records import EarlierOccurrence
from argap.reports.tables.tokens import show_window, visible

Maker = Callable[..., Any]


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
