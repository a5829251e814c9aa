"""What the page's script shows: the result at every τ, as text, and the values behind the figures."""

from collections.abc import Mapping

from msgspec.structs import replace

from argap.metric.share import perplexity, share_closed
from argap.records import Delta, Gap, GapRow, Part, Record, SliceScores, ThresholdShare
from argap.reports.figures.hover import Panel
from argap.reports.tables.formats import Table
from argap.reports.tables.numbers import percent, threshold_text
from argap.reports.tables.overview import Overview, overview
from argap.reports.tables.result import main_tables
from argap.reports.tables.sentences import headlines
from argap.reports.tables.tokens import visible


class TableText(Record, frozen=True):
    """A table's cells, its notes, and the row and column of the best values."""

    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    best: tuple[tuple[int, int], ...]


class State(Record, frozen=True):
    """The page at one τ."""

    tau: str
    share: str
    """Of the scored tokens, that are hits."""
    point: int
    """Its number on the curve."""
    tables: tuple[TableText, ...]
    headlines: tuple[tuple[str, str], ...]
    overview: Overview | None


class PageData(Record, frozen=True):
    """The page's data block."""

    unit: str
    hits: str
    own: int
    """The state of the result's own τ."""
    states: tuple[State, ...]
    """Ascending in τ; empty where τ cannot move."""
    figures: Mapping[str, tuple[Panel, ...]]


def page_data(gap: Gap, figures: Mapping[str, tuple[Panel, ...]]) -> PageData:
    """The data block of a result's page; ``figures``: the panels of each."""
    made, point = at_thresholds(gap), {each.threshold: k for k, each in enumerate(gap.curve)}
    taus = [each.threshold for each in made]
    states = tuple(_state(each, point[each.threshold]) for each in made if each.threshold is not None)
    own = taus.index(gap.threshold) if gap.threshold in taus else 0
    return PageData(gap.unit, gap.hits, own, states, {name: panels for name, panels in figures.items() if panels})


def at_thresholds(gap: Gap) -> list[Gap]:
    """The result at each τ of its curve that ends a frequency bin, ascending; the result itself at its own.

    Ends with the first τ at which all repeated bigrams are hits. Empty without a curve: without an index, for a
    reference alone, in format 1, and where an NLL is infinite. Only the rows are
    those of τ, without the intervals of the hits' part in nats; breakdowns and slices stay as they are.
    """
    highs = {each.high: k for k, each in enumerate(gap.bins.frequency)}
    number = {each.label: k for k, each in enumerate(gap.bins.frequency)}
    points = [point for point in gap.curve if point.threshold in highs]
    if not gap.compared or not points or any(row.overall.nll is None for row in gap.rows):
        return []
    whole = next(point.threshold for point in points if point.share == points[-1].share)
    made = []
    for point in points:
        if point.threshold == gap.threshold:
            made.append(gap)
        elif point.threshold <= max(whole, gap.threshold or 0):
            last = highs[point.threshold]
            made.append(_at(gap, point, [p for p in gap.breakdowns.frequency if p.repeated and number[p.bin] <= last]))
    return made


def _at(gap: Gap, point: ThresholdShare, hits: list[Part]) -> Gap:
    """The result at the threshold of ``point``, of whose hits ``hits`` are the parts."""
    n = sum(part.n for part in hits)
    sums = {model: sum(part.n * part.nll[model] for part in hits) for model in gap.models}
    on_hits = {model: SliceScores(n, *_mean(total, n)) for model, total in sums.items()}
    nll = {model: scores.nll for model, scores in on_hits.items()}
    rows = tuple(_row(row, point, on_hits[row.model], sums[row.model], nll, gap.reference) for row in gap.rows)
    return replace(gap, threshold=point.threshold, rows=rows)


def _row(
    row: GapRow,
    point: ThresholdShare,
    hits: SliceScores,
    total: float,
    nll: dict[str, float | None],
    reference: str,
) -> GapRow:
    """A model's row; ``total``: its NLL summed over the hits; ``nll``: every model's on the hits."""
    assert row.overall.nll is not None  # a result has scored tokens
    rest = row.overall.n - hits.n
    other = SliceScores(rest, *_mean(row.overall.n * row.overall.nll - total, rest))
    own, theirs = hits.nll, nll[reference]
    lost = 0.0 if own is None or theirs is None else point.share * (own - theirs)
    return replace(
        row,
        ar_hits=hits,
        other=other,
        share_ar_hits=point.share,
        gap_due_to_ar=point.gap_due_to.get(row.model),
        delta_ar=None if row.reference else Delta(lost, None),
        closed=row.closed and replace(row.closed, ar_hits=share_closed(own, nll[row.closed.base], theirs)),
    )


def _mean(total: float, n: int) -> tuple[float | None, float | None]:
    """NLL and perplexity."""
    return (total / n, perplexity(total / n)) if n else (None, None)


def _state(gap: Gap, point: int) -> State:
    assert gap.threshold is not None  # of a curve
    return State(
        tau=threshold_text(gap.threshold),
        share=percent(gap.rows[0].share_ar_hits),
        point=point,
        tables=tuple(_text(table) for table in main_tables(gap)),
        headlines=tuple((visible(sentence), visible(numbers)) for sentence, numbers in headlines(gap)),
        overview=overview(gap),
    )


def _text(table: Table) -> TableText:
    rows = tuple(tuple(map(visible, row)) for row in table.rows)
    return TableText(rows, tuple(map(visible, table.notes)), tuple(sorted(table.best)))
