"""Summarise many models: a sentence or two about all of them, and one bar each, ordered by ΔNLL."""

from dataclasses import dataclass

from argap.records import Gap, GapRow
from argap.reports.tables.numbers import MANY, WORDS, nats, percent, signed
from argap.reports.tables.result import share_cell

COLOURS = 7
"""Colours of the figures (`argap.reports.figures.drawing.COLOURS`, which needs matplotlib)."""
ENDS = 10
"""The summary and the panels show this many models with the lowest ΔNLL and this many with the highest, if that leaves
out more than one."""


@dataclass(frozen=True)
class Bar:
    """A model's ΔNLL as a bar. Positions are percentages of the width; 0 nats is at `Overview.zero`."""

    model: str
    gap: str
    share: str
    """Share of the gap or lead on the AR hits."""
    hits: tuple[float, float]
    """Left end and width of the part on the AR hits."""
    other: tuple[float, float]
    """Left end and width of the rest, which is drawn from the end of the AR hits to ΔNLL."""
    total: float
    """Position of ΔNLL."""


@dataclass(frozen=True)
class Overview:
    """The summary of many models: a headline, further sentences, and the bars, lowest ΔNLL first."""

    title: str
    sentences: tuple[str, ...]
    zero: float
    bars: tuple[Bar, ...]


def by_gap(gap: Gap) -> list[GapRow]:
    """Return the compared models with a finite ΔNLL, lowest first."""
    finite = [row for row in gap.compared if row.model in gap.deltas]
    return sorted(finite, key=lambda row: (gap.deltas[row.model], row.model))


def shown(gap: Gap) -> list[GapRow]:
    """Return the models of the summary and of the panels, lowest ΔNLL first.

    If there are too many, these are the first and the last `ENDS` of them.
    """
    rows = by_gap(gap)
    return rows if len(rows) <= 2 * ENDS + 1 else rows[:ENDS] + rows[-ENDS:]


def overview(gap: Gap) -> Overview | None:
    """Summarise a result with more than `MANY` compared models; None for fewer."""
    rows = by_gap(gap)
    if len(rows) <= MANY:
        return None
    best, worst = (f"{_distance(gap.deltas[row.model])} ({row.model})" for row in (rows[0], rows[-1]))
    title = f"{len(rows)} models against {gap.reference}: from {best} to {worst}, in nats per {gap.unit}"
    parts = {row.model: gap.on_hits[row.model].contribution or 0.0 for row in rows}
    ends = [0.0, *gap.deltas.values(), *parts.values()]
    low, high = min(ends), max(ends)
    scale = 100 / (high - low or 1.0)

    def at(value: float) -> float:
        return round((value - low) * scale, 2)

    def span(one: float, other: float) -> tuple[float, float]:
        return at(min(one, other)), round(abs(at(one) - at(other)), 2)

    bars = []
    for row in shown(gap):
        part, total = parts[row.model], gap.deltas[row.model]
        due = share_cell(gap.on_hits[row.model])
        bars.append(Bar(row.model, signed(total), due, span(0, part), span(part, total), at(total)))
    if between := len(rows) - len(bars):
        bars.insert(ENDS, Bar(f"… {between} between", "", "", (at(0), 0), (at(0), 0), at(0)))
    return Overview(title, _sentences(gap, rows), at(0), tuple(bars))


def _distance(delta: float) -> str:
    """Format ΔNLL as ``0.030 behind`` or ``0.030 ahead``."""
    return f"{nats(abs(delta))} {'behind' if delta > 0 else 'ahead'}"


def _sentences(gap: Gap, rows: list[GapRow]) -> tuple[str, ...]:
    """Say how much of the gaps and leads falls on the AR hits, and which models are exceptions or unresolved."""
    found = []
    for towards in ("behind", "ahead"):
        models = [row.model for row in rows if row.direction == towards]
        shares = {model: share for model in models if (share := gap.on_hits[model].share) is not None}
        usual = [share for share in shares.values() if 0 <= share <= 1]
        if usual:
            low, high = percent(min(usual), 0), percent(max(usual), 0)
            held = low if low == high else f"{low.removesuffix('%')}–{high}"
            who = "all of them" if len(usual) == len(rows) else f"the {len(usual)} {towards} on both parts"
            these = f"The {gap.hits}, {percent(gap.on_hits.share_of_tokens)} of {gap.unit}s, hold"
            found.append(f"{these} {held} of the {WORDS[towards]} of {who}.")
        other = "ahead" if towards == "behind" else "behind"
        if odd := [model for model, share in shares.items() if share < 0]:
            found.append(f"{towards.capitalize()} overall but {other} on the {gap.hits}: {', '.join(odd)}.")
        if odd := [model for model, share in shares.items() if share > 1]:
            found.append(f"{towards.capitalize()} overall but {other} on all other {gap.unit}s: {', '.join(odd)}.")
    if level := [row.model for row in rows if row.direction == "level"]:
        found.append(f"Level: {', '.join(level)}.")
    claimed = [gap.on_hits[row.model] for row in rows if gap.on_hits[row.model].share is not None]
    if doubted := sum(each.reason is not None for each in claimed):
        few = "None of the shares is" if doubted == len(claimed) else f"{doubted} of {len(claimed)} shares are not"
        found.append(f"{few} resolved (in parentheses); the notes below the table say why.")
    return tuple(found)


def of_interest(gap: Gap) -> list[str]:
    """Return the models shown in colour in figures of many models, the same in all of them.

    These are the reference and, of the models whose share on the AR hits is resolved (of all, if none is), the two
    with the lowest ΔNLL and the two with the highest.
    """
    rows = by_gap(gap)
    resolved = [row for row in rows if gap.on_hits[row.model].share is not None and not gap.on_hits[row.model].reason]
    rows = resolved or rows
    return [gap.reference, *dict.fromkeys(row.model for row in rows[:2] + rows[-2:])]


def colour_order(gap: Gap) -> list[str]:
    """Return all models in the order of their colours: the same colour in every figure, and in `argap.view`.

    With more models than the figures have colours, those of `of_interest` come first.
    """
    if len(gap.models) <= COLOURS:
        return list(gap.models)
    first = of_interest(gap)
    return sorted(gap.models, key=lambda model: model not in first)
