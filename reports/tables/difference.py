"""Show the difference of two runs of the same weights: where it lies in words, then tables."""

from typing import Any

import msgspec

from argap.records import MOVED
from argap.records.difference import Bundle, Difference, Finding
from argap.reports.tables.fidelity import small
from argap.reports.tables.formats import Table
from argap.reports.tables.numbers import DASH, percent
from argap.reports.tables.tokens import visible

BREAKDOWNS = {
    "position": "By position in the window",
    "distance": "By distance to the bigram's nearest occurrence",
    "length": "By length of the window",
    "window": "Windows that differ most",
    "document": "Documents that differ most",
}
SHOWN = 40
"""Characters of text before a token."""


def words(each: Finding) -> str:
    """Say where a difference lies, with its numbers."""
    if each.where == "identical":
        return f"identical: all {each.n:,} log-probs are the same"
    means = f"mean |Δ log p| {small(each.inside)}"
    if each.outside is not None:
        means += f" there, {small(each.outside)} elsewhere"
    held = f"{percent(each.share)} of the difference on {percent(each.share_of_tokens)} of the tokens; {means}"
    counted = f"{each.windows} of {each.of_windows}"
    if each.where == "short windows":
        return f"only in windows shorter than {each.high:,} tokens ({counted} such): padding is seen; {held}"
    if each.where == "shared prefix":
        return f"only in windows that begin like an earlier one ({counted} such): a prefix is reused; {held}"
    if each.where == "few windows":
        return f"in {counted} windows; {held}"
    if each.where == "onset":
        span = f"position {each.low:,}" if each.low == each.high else f"positions {each.low:,} to {each.high:,}"
        block = "" if each.block is None else f", always right behind a multiple of {each.block} tokens"
        return f"begins abruptly, at {span}{block}, in {counted} windows, with nothing before it; {held}"
    if each.where == "growth":
        return f"grows along the window, most at positions {each.low:,} to {each.high:,}; {held}"
    if each.where == "decline":
        return f"falls along the window, most at positions {each.low:,} to {each.high:,}; {held}"
    if each.where == "distance":
        return f"on bigrams repeated from {each.low:,} tokens back or farther; {held}"
    return f"spread evenly over windows, positions and distances; mean |Δ log p| {small(each.inside)}"


def headline(found: Difference) -> str:
    """Say how far apart the runs are in one line."""
    whole = found.whole
    return (
        f"{found.names[1]} against {found.names[0]}, {whole.n:,} tokens: mean |Δ log p| {small(whole.absolute)}, RMS "
        f"{small(whole.rms)}, largest {small(whole.quantiles and whole.quantiles.largest)}; the most likely token "
        f"agrees on {_share(whole.agreement)}"
    )


def tables_of(found: Difference) -> list[Table]:
    """Return the summary, the breakdowns and the worst tokens."""
    whole, spread = found.whole, found.whole.quantiles
    summary = (
        small(whole.absolute), small(whole.rms), *(small(q) for q in (spread[:4] if spread else (None,) * 4)),
        small(spread and spread.largest), _share(whole.moved), _share(whole.agreement), small(whole.delta),
    )  # fmt: skip
    titles = ("mean |Δ log p|", "RMS", "median", "90%", "99%", "99.9%", "largest", "Moved", "Agreement", "ΔNLL")
    notes = [headline(found) + ".", *(f"Where: {words(each)}." for each in found.findings)]
    if found.settings:
        told = "; ".join(f"{name}: {one} and {two}" for name, (one, two) in found.settings.items())
        notes.append(f"Made differently: {visible(told)}.")
    notes.append(f"Moved: |Δ log p| > {MOVED:g} nats. ΔNLL: of {found.names[1]}, in nats per token.")
    tables = [Table(titles, [summary], notes, left=())]
    if found.findings[0].where == "identical":
        return tables
    tables += [_breakdown(BREAKDOWNS[by], parts) for by, parts in found.breakdowns.items() if len(parts) > 1]
    return [*tables, _worst(found)]


def _breakdown(title: str, parts: tuple[Bundle, ...]) -> Table:
    columns = ("", "Tokens", "mean |Δ log p|", "largest", "Agreement", "% of difference")
    rows = [
        (
            visible(each.name),
            f"{each.n:,}",
            *(small(each.absolute), small(each.largest)),
            *(percent(each.agreement), _share(each.share)),
        )
        for each in parts
    ]
    return Table(columns, rows, title=title)


def _worst(found: Difference) -> Table:
    first, second = found.names
    columns = ("Window", "Position", "Before", "Token", f"log p, {first}", f"log p, {second}", "Most likely")
    rows = [
        (
            str(each.window),
            str(each.position),
            visible(each.before[-SHOWN:]),
            visible(each.token),
            *(DASH if value is None else f"{value:.4f}".replace("-", "−") for value in each.logprobs),
            visible(each.top1[0]) if each.top1[0] == each.top1[1] else " / ".join(map(visible, each.top1)),
        )
        for each in found.worst
    ]
    return Table(columns, rows, title="Tokens that differ most", left=(2, 3, 6))


def beyond_tolerance(found: Difference) -> str:
    """Say that the runs differ by more than the tolerance, and where first."""
    spread = found.whole.quantiles
    return (
        f"{found.beyond:,} of {found.whole.n:,} tokens differ by more than {small(found.tolerance)} nats (largest "
        f"{small(spread and spread.largest)}): {words(found.findings[0])}"
    )


def json_of(found: Difference) -> dict[str, Any]:
    """Return a difference as JSON values, each finding with its words."""
    made: dict[str, Any] = msgspec.to_builtins(found)
    for each, finding in zip(made["findings"], found.findings, strict=True):
        each["words"] = words(finding)
    return made


def _share(value: float | None) -> str:
    return DASH if value is None else percent(value)
