"""Many models at a glance: a sentence or two for all of them, and a bar each, ordered by the gap."""

from collections.abc import Container
from dataclasses import dataclass

from argap.metric.share import case_of, unresolved_of
from argap.records import Gap, GapRow
from argap.reports.tables.numbers import nats, percent
from argap.reports.tables.result import gap_cell

MANY = 4
"""Models compared; more of them share one summary, small multiples and tables in parts."""
ENDS = 10
"""The summary and the panels show this many models with the smallest gap and this many with the largest, if that leaves
out more than one."""


@dataclass(frozen=True)
class Bar:
    """A model's gap as a bar. Positions are percentages of the width, of which ``zero`` is 0 nats."""

    model: str
    gap: str
    share: str
    """Of the gap, due to the AR hits."""
    hits: tuple[float, float]
    """Left end and width of the part on the AR hits."""
    other: tuple[float, float]
    """Left end and width of the rest, which is drawn from the end of the AR hits to the gap."""
    total: float
    """Where the gap ends."""


@dataclass(frozen=True)
class Overview:
    """The summary of many models: a headline, further sentences, and the bars, smallest gap first."""

    title: str
    sentences: tuple[str, ...]
    zero: float
    bars: tuple[Bar, ...]


def by_gap(gap: Gap) -> list[GapRow]:
    """The models compared whose gap is finite, smallest gap first."""
    finite = [row for row in gap.compared if row.model in gap.deltas]
    return sorted(finite, key=lambda row: (gap.deltas[row.model], row.model))


def shown(gap: Gap) -> list[GapRow]:
    """The models of the summary and of the panels, smallest gap first: all, or the two `ENDS` of their order."""
    rows = by_gap(gap)
    return rows if len(rows) <= 2 * ENDS + 1 else rows[:ENDS] + rows[-ENDS:]


def overview(gap: Gap) -> Overview | None:
    """The summary of a result of more than `MANY` models compared; None for fewer."""
    rows = by_gap(gap)
    if len(rows) <= MANY:
        return None
    best, worst = rows[0], rows[-1]
    title = (
        f"{len(rows)} models against {gap.reference}: gaps from {nats(gap.deltas[best.model])} ({best.model}) to "
        f"{nats(gap.deltas[worst.model])} nats per {gap.unit} ({worst.model})"
    )
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
        due = gap_cell(gap.on_hits[row.model])
        bars.append(Bar(row.model, nats(total), due, span(0, part), span(part, total), at(total)))
    if between := len(rows) - len(bars):
        bars.insert(ENDS, Bar(f"… {between} between", "", "", (at(0), 0), (at(0), 0), at(0)))
    return Overview(title, _sentences(gap, rows), at(0), tuple(bars))


def _sentences(gap: Gap, rows: list[GapRow]) -> tuple[str, ...]:
    """What the AR hits hold of the gaps, the models that are exceptions, and how much of it is resolved."""
    dues = {row.model: gap.on_hits[row.model] for row in rows}
    shares = [due.paper_rule for due in dues.values() if case_of(due) == "explained" and due.paper_rule is not None]
    sentences = []
    if shares:
        low, high = percent(min(shares), 0), percent(max(shares), 0)
        held = low if low == high else f"{low.removesuffix('%')}–{high}"
        who = "all of them" if len(shares) == len(rows) else f"the {len(shares)} that lose on them and overall"
        sentences.append(
            f"The {gap.hits}, {percent(gap.on_hits.share_of_tokens)} of {gap.unit}s, hold {held} of the gap of {who}."
        )
    named = {
        "recall_only": f"As good overall but worse on the {gap.hits}",
        "reversed": f"Worse overall but better on the {gap.hits}",
        "no_gap": "No gap",
    }
    for case, words in named.items():
        if models := [model for model, due in dues.items() if case_of(due) == case]:
            sentences.append(f"{words}: {', '.join(models)}.")
    unresolved = [model for model, due in dues.items() if unresolved_of(due)]
    if unresolved:
        few = "None of the shares is" if len(unresolved) == len(rows) else f"{len(unresolved)} of {len(rows)} are not"
        sentences.append(f"{few} resolved (in parentheses); the notes below the table say why.")
    return tuple(sentences)


def of_interest(gap: Gap, drawn: Container[str] | None = None) -> list[str]:
    """Models that figures of many models show in colour: the reference, and of those ``drawn`` (None: all) the two
    closest to it and farthest from it in NLL."""
    rows = [row for row in by_gap(gap) if drawn is None or row.model in drawn]
    return [gap.reference, *dict.fromkeys(row.model for row in rows[:2] + rows[-2:])]
