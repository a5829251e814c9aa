"""Prepare example windows for display: every token with its CSS class, its text and a tooltip.

Token text is untrusted. The templates escape it; this module makes it visible, replacing line breaks, tabs and
control characters that hide text or change its direction with signs.
"""

import unicodedata
from dataclasses import dataclass
from math import exp

from argap.records import EarlierOccurrence, ExampleWindow
from argap.reports.tables.numbers import DASH, MANY
from argap.reports.tables.provenance import for_others

NEWLINE = "↵"
TAB = "→"
CONTROL_PICTURES = 0x2400  # U+2400 shows U+0000, and so on up to U+001F
CONTEXT = "first token of the window: context only"
OUTCOMES = {
    (True, True): "both",
    (True, False): "reference",
    (False, True): "model",
    (False, False): "neither",
}
"""CSS class by whether the top-1 predictions of the reference and the model are right."""


@dataclass(frozen=True)
class ShownToken:
    """One token of a window: its text line by line, visible but not escaped, its CSS classes and its tooltip."""

    lines: tuple[str, ...]
    classes: str
    title: str
    count: int | None = None
    """Exposures of a repeated bigram, by which it is a hit or not at another τ; None for other tokens."""


@dataclass(frozen=True)
class ShownWindow:
    """One window: its tokens, its domain and source, and the AR hit that it was chosen for in words."""

    title: str
    source: str
    story: str
    tokens: tuple[ShownToken, ...]
    earlier: tuple[ShownToken, ...]
    """The surroundings of an earlier occurrence that is too far back; empty if it is among ``tokens``."""
    earlier_note: str
    models: tuple[str, ...]
    """The reference and the model that loses, whose log-probs are in ``rows``."""
    rows: tuple[tuple[str, ...], ...]
    """The tokens as a table: text, group, distance, training count if known, and log-probs."""


def show_window(window: ExampleWindow, reference: str) -> ShownWindow:
    """Prepare an example window for the page."""
    model, focus = window.model, window.focus
    distance = window.distance[focus]
    count = None if window.train_count is None else window.train_count[focus]
    pair = " + ".join(f"“{visible(token)}”" for token in window.tokens[max(0, focus - 1) : focus + 1])
    by_reference, by_model = (_chance(window.logprob[name][focus]) for name in (reference, model))
    story = (
        f"The pair {pair} also occurs {_tokens(distance)} earlier"
        f"{'' if count is None else f'; training saw it {_times(count)}'}. Probability of its second token: "
        f"{by_reference} by {reference}, {by_model} by {model}."
    )
    return ShownWindow(
        title=visible(window.domain),
        source=visible(for_others(window.source)),
        story=story,
        tokens=tuple(_token(window, k, reference) for k in range(len(window.tokens))),
        earlier=() if window.earlier is None else _earlier_tokens(window.earlier),
        earlier_note="" if window.earlier is None else f"{_tokens(distance)} earlier",
        models=(reference, model),
        rows=tuple(_row(window, k, (reference, model)) for k in range(len(window.tokens))),
    )


def _row(window: ExampleWindow, k: int, models: tuple[str, ...]) -> tuple[str, ...]:
    """Return a token's row in the table below its window."""
    logprobs = [window.logprob[name][k] for name in models]
    count = () if window.train_count is None else (f"{window.train_count[k]:,}",)
    return (
        visible(window.tokens[k]) if window.tokens[k].strip(" ") else "␣" * len(window.tokens[k]),
        _group(window, k) + " (shown)" * (k == window.focus),
        f"{window.distance[k]:,}" if window.repeated[k] else DASH,
        *count,
        *(_logprob(window, k, value) for value in logprobs),
    )


def _scored(window: ExampleWindow, k: int) -> bool:
    """Return whether the models predicted the token; they do for all but the first of a window."""
    return window.start + k > 0


def _logprob(window: ExampleWindow, k: int, value: float | None) -> str:
    """Format a log-prob; the file stores −∞ as null."""
    if value is None:
        return "−∞" if _scored(window, k) else DASH
    return f"{value:z.2f}".replace("-", "−")


def visible(text: str) -> str:
    """Return ``text`` on one line with nothing hidden in it: control and format characters become signs.

    >>> visible("a\\n\\tb")
    'a↵→b'
    """
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


def _token(window: ExampleWindow, k: int, reference: str) -> ShownToken:
    focus, right = window.focus, window.top1_correct
    scored = _scored(window, k)
    classes = ["t", OUTCOMES[right[reference][k], right[window.model][k]] if scored else "context"]
    if window.ar_hit[k]:
        classes.append("hit")
    if k == focus:
        classes.append("focus")
    elif window.earlier is None and 0 <= focus - window.distance[focus] - k <= 1:
        classes.append("source")
    title = _tooltip(window, k, reference) if scored else CONTEXT
    count = window.train_count[k] if window.train_count and window.repeated[k] else None
    return ShownToken(lines(window.tokens[k]), " ".join(classes), title, count)


def _tooltip(window: ExampleWindow, k: int, reference: str) -> str:
    """Return a token's tooltip; with more than `MANY` compared models, it has two log-probs only."""
    group = _group(window, k)
    back = f", {window.distance[k]:,} back" if window.repeated[k] else ""
    named = window.logprob if len(window.logprob) <= 1 + MANY else (reference, window.model)
    logprobs = ", ".join(f"{name} {_logprob(window, k, window.logprob[name][k])}" for name in named)
    seen = f"; {_times(window.train_count[k])} in training" if window.train_count else ""
    return f"{group}{back}{seen}; log-prob: {logprobs}"


def _group(window: ExampleWindow, k: int) -> str:
    return "AR hit" if window.ar_hit[k] and window.train_count else "repeated" if window.repeated[k] else "not repeated"


def _earlier_tokens(earlier: EarlierOccurrence) -> tuple[ShownToken, ...]:
    return tuple(
        ShownToken(lines(text), "t both" + " source" * (k in (earlier.focus - 1, earlier.focus)), "")
        for k, text in enumerate(earlier.tokens)
    )


def lines(text: str) -> tuple[str, ...]:
    """Split a token into lines; each but the last ends with the sign for a line break."""
    *broken, last = text.split("\n")
    return (*(visible(line) + NEWLINE for line in broken), visible(last))


def _tokens(distance: int) -> str:
    return "1 token" if distance == 1 else f"{distance:,} tokens"


def _times(count: int) -> str:
    return {0: "never", 1: "once"}.get(count, f"{count:,} times")


def _chance(logprob: float | None) -> str:
    """Format a probability in percent: ``93%``, ``0.4%``, ``below 0.01%``."""
    percent = 0.0 if logprob is None else 100 * exp(logprob)
    if percent < 0.01:
        return "below 0.01%"
    return f"{percent:.0f}%" if percent >= 10 else f"{percent:.2g}%"
