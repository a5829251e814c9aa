"""Prepare the data of the page's script: the result at every τ, as text, and the values behind the figures."""

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from argap.metric.share import perplexity, share_closed
from argap.records import AR_HITS, OTHER, SLICE, Estimate, Gap, GapRow, Part, Record
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
    """Share of the scored tokens that are hits."""
    point: int
    """The number of its point on the curve."""
    most: int
    """τ as a number."""
    bin: int
    """The number of the last frequency bin of AR hits."""
    tables: tuple[TableText, ...]
    slices: TableText | None
    """Of recorded slices, rows as they stand on the page; a cell's second line is its interval."""
    headlines: tuple[tuple[str, str, str, str], ...]
    """Of each model, the fields of `argap.reports.tables.sentences.Headline`."""
    overview: Overview | None


class PageData(Record, frozen=True):
    """The page's data block."""

    unit: str
    hits: str
    own: int
    """The state of the result's own τ."""
    states: tuple[State, ...]
    """Ascending in τ; empty if τ cannot move."""
    figures: Mapping[str, tuple[Panel, ...]]


Slices = Callable[[Gap], tuple[Sequence[Sequence[str]], Sequence[str]] | None]
"""From a result to the rows and notes of its slices on the page; None without slices."""


def page_data(gap: Gap, figures: Mapping[str, tuple[Panel, ...]], slices: Slices) -> PageData:
    """Return the data block of a result's page. ``figures``: the panels of each figure."""
    made, point = at_thresholds(gap), {int(each.bin): k for k, each in enumerate(gap.curve)}
    taus = [each.threshold for each in made]
    states = tuple(_state(each, point[each.threshold], slices) for each in made if each.threshold is not None)
    own = taus.index(gap.threshold) if gap.threshold in taus else 0
    return PageData(gap.unit, gap.hits, own, states, {name: panels for name, panels in figures.items() if panels})


def at_thresholds(gap: Gap) -> list[Gap]:
    """Return the result at each τ of its curve that ends a frequency bin, ascending; unchanged at its own τ.

    The last τ is the first at which all repeated bigrams are hits. Empty if there is no curve (no index, or a reference
    alone) or an NLL is infinite. Only the estimates by slice change with τ, and those of other tokens have no
    intervals; other partitions and slices stay, but for a slice's share of hits, which only the tokens tell.
    """
    highs = {each.high for each in gap.bins.frequency}
    points = {int(point.bin): point for point in gap.curve if int(point.bin) in highs}
    if not gap.compared or not points or any(gap.on_all[model].nll is None for model in gap.models):
        return []
    most = max(point.n for point in points.values())
    whole = next(tau for tau, point in points.items() if point.n == most)
    return [
        gap if tau == gap.threshold else _at(gap, tau, point)
        for tau, point in points.items()
        if tau <= max(whole, gap.threshold or 0)
    ]


def _at(gap: Gap, tau: int, point: Part) -> Gap:
    """Return the result at the threshold of ``point``."""
    hits = list(point.moved(SLICE, AR_HITS).estimates.values())
    rest = [_rest(gap.on_all[each.model], each) for each in hits]
    nll = {each.model: each.nll for each in hits}
    rows = tuple(_row(row, nll, gap.reference) for row in gap.rows)
    slices = tuple(replace(each, ar_hits=None) for each in gap.slices)
    made = replace(gap, threshold=tau, rows=rows, slices=slices)
    return made.replaced({SLICE: [Part(hits), Part(rest)]})


def _row(row: GapRow, nll: dict[str, float | None], reference: str) -> GapRow:
    """Return a model's row with the share it closes on the hits. ``nll``: NLL on the hits, by model."""
    if row.closed is None:
        return row
    closed = share_closed(nll[row.model], nll[row.closed.base], nll[reference])
    return replace(row, closed=replace(row.closed, ar_hits=closed))


def _rest(whole: Estimate, hits: Estimate) -> Estimate:
    """Return the estimate on the tokens that are not hits, without intervals."""
    assert whole.nll is not None  # a result has scored tokens
    n = whole.n - hits.n
    nll = (whole.n * whole.nll - hits.n * (hits.nll or 0.0)) / n if n else None
    ppl = None if nll is None else perplexity(nll)
    lost = None if whole.delta is None or hits.contribution is None else whole.delta - hits.contribution
    return Estimate(whole.model, SLICE, OTHER, n, 1 - hits.share_of_tokens, nll=nll, ppl=ppl, contribution=lost)


def _state(gap: Gap, point: int, slices: Slices) -> State:
    assert gap.threshold is not None  # of a curve
    named = slices(gap)
    highs = [each.high for each in gap.bins.frequency]
    return State(
        tau=threshold_text(gap.threshold),
        share=percent(gap.on_hits.share_of_tokens),
        point=point,
        most=gap.threshold,
        bin=highs.index(gap.threshold) if gap.threshold in highs else -1,
        tables=tuple(_text(table) for table in main_tables(gap)),
        slices=named and TableText(tuple(map(_lines, named[0])), tuple(map(visible, named[1])), ()),
        headlines=tuple((n, visible(unit), visible(said), visible(detail)) for n, unit, said, detail in headlines(gap)),
        overview=overview(gap),
    )


def _lines(row: Sequence[str]) -> tuple[str, ...]:
    return tuple("\n".join(map(visible, cell.split("\n"))) for cell in row)


def _text(table: Table) -> TableText:
    rows = tuple(tuple(map(visible, row)) for row in table.rows)
    return TableText(rows, tuple(map(visible, table.notes)), tuple(sorted(table.best)))
