"""Example windows made ready to be shown: every token with its class, its text and what is known of it.

Token text is untrusted. The template escapes it; here it is made visible: line breaks, tabs and the
control characters that would hide text or turn its direction are replaced by signs.
"""

import unicodedata
from dataclasses import dataclass
from math import exp
from typing import Any

NEWLINE = "↵"
TAB = "→"
CONTROL_PICTURES = 0x2400  # U+2400 shows U+0000, and so on up to U+001F
OUTCOMES = {
    (True, True): "both",
    (True, False): "reference",
    (False, True): "model",
    (False, False): "neither",
}


@dataclass(frozen=True)
class ShownToken:
    """One token of a window: its text line by line, visible but not escaped."""

    lines: tuple[str, ...]
    classes: str
    title: str


@dataclass(frozen=True)
class ShownWindow:
    """One window: its tokens, the hit that it was chosen for in words, and where it stands."""

    title: str
    source: str
    story: str
    tokens: tuple[ShownToken, ...]
    earlier: tuple[ShownToken, ...]
    """A far earlier occurrence, shown apart; empty where it lies among ``tokens``."""
    earlier_note: str


def show_window(window: dict[str, Any], reference: str) -> ShownWindow:
    """One entry of ``examples.json`` as it is shown."""
    model, focus = window["model"], window["focus"]
    distance = window["distance"][focus]
    pair = " + ".join(f"“{visible(token)}”" for token in window["tokens"][max(0, focus - 1) : focus + 1])
    count = window["train_count"][focus]
    chance = {name: _chance(window["logprob"][name][focus]) for name in (reference, model)}
    story = (
        f"The pair {pair} also stands {_tokens(distance)} earlier; in the training text it "
        f"{f'occurs {_times(count)}' if count else 'never occurs'}. Probability of its second token: "
        f"{chance[reference]} by {reference}, {chance[model]} by {model}."
    )
    earlier = window["earlier"]
    return ShownWindow(
        title=visible(window["domain"]),
        source=visible(window["source"]),
        story=story,
        tokens=tuple(_token(window, k, reference) for k in range(len(window["tokens"]))),
        earlier=tuple(_earlier_tokens(earlier)) if earlier else (),
        earlier_note=f"{_tokens(distance)} earlier" if earlier else "",
    )


def visible(text: str) -> str:
    """``text`` on one line with nothing hidden in it: each control or format character becomes a sign."""
    return "".join(_sign(character) for character in text)


def _sign(character: str) -> str:
    if character == "\n":
        return NEWLINE
    if character == "\t":
        return TAB
    category = unicodedata.category(character)
    if category == "Cc" and ord(character) < 0x20:
        return chr(CONTROL_PICTURES + ord(character))
    # Format characters turn the direction of a line or hide in it; line separators and lone surrogates
    # break the page.
    if category in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return f"⟨{ord(character):04X}⟩"
    return character


def _token(window: dict[str, Any], k: int, reference: str) -> ShownToken:
    text, focus = window["tokens"][k], window["focus"]
    scored = window["logprob"][reference][k] is not None
    right = window["top1_correct"]
    classes = ["t", OUTCOMES[right[reference][k], right[window["model"]][k]] if scored else "context"]
    if window["ar_hit"][k]:
        classes.append("hit")
    if k == focus:
        classes.append("focus")
    elif window["earlier"] is None and 0 <= focus - window["distance"][focus] - k <= 1:
        classes.append("source")
    return ShownToken(_lines(text), " ".join(classes), _title(window, k, scored))


def _title(window: dict[str, Any], k: int, scored: bool) -> str:
    """What a pointer over the token shows."""
    if not scored:
        return "first token of the window: context only"
    kind = "AR hit" if window["ar_hit"][k] else "repeated" if window["repeated"][k] else "not repeated"
    back = f", {window['distance'][k]:,} back" if window["repeated"][k] else ""
    logprobs = ", ".join(f"{name} {values[k]:.2f}" for name, values in window["logprob"].items())
    return f"{kind}{back}; {_times(window['train_count'][k])} in training; log-prob: {logprobs}"


def _earlier_tokens(earlier: dict[str, Any]) -> list[ShownToken]:
    focus = earlier["focus"]
    return [
        ShownToken(_lines(text), "t both" + " source" * (k in (focus - 1, focus)), "")
        for k, text in enumerate(earlier["tokens"])
    ]


def _lines(text: str) -> tuple[str, ...]:
    """A token that breaks lines, in parts: each but the last ends with the sign of a break."""
    *broken, last = text.split("\n")
    return (*(visible(line) + NEWLINE for line in broken), visible(last))


def _tokens(distance: int) -> str:
    return "1 token" if distance == 1 else f"{distance:,} tokens"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count:,} times"


def _chance(logprob: float | None) -> str:
    """A probability in percent: ``93%``, ``0.4%``, ``below 0.01%``."""
    percent = 0.0 if logprob is None else 100 * exp(logprob)
    if percent < 0.01:
        return "below 0.01%"
    return f"{percent:.0f}%" if percent >= 10 else f"{percent:.2g}%"
