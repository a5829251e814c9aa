"""A result at every τ of its curve, rebuilt from ``gap.json`` alone: what the page's slider shows."""

from msgspec.structs import replace

from argap.gap import perplexity, share_closed
from argap.records import Closed, Delta, Gap, GapRow, Part, SliceScores, ThresholdShare


def at_thresholds(gap: Gap) -> list[Gap]:
    """The result at each τ of its curve that ends a frequency bin, ascending; the result itself at its own.

    Ends with the first τ at which all repeated bigrams are hits. Empty without a curve: without an index, for a
    reference alone, for results of an earlier argap, and where an NLL is infinite. Only the rows are
    those of τ, without the intervals of the hits' part in nats; breakdowns and slices stay as they are.
    """
    highs = {each.high: k for k, each in enumerate(gap.bins.frequency)}
    number = {each.label: k for k, each in enumerate(gap.bins.frequency)}
    points = [point for point in gap.curve if point.threshold in highs]
    if not gap.compared or not points or any(row.overall.nll is None for row in gap.rows):
        return []
    whole = next(point.threshold for point in points if point.share == points[-1].share)
    return [
        gap
        if point.threshold == gap.threshold
        else _at(
            gap, point, [p for p in gap.breakdowns.frequency if p.repeated and number[p.bin] <= highs[point.threshold]]
        )
        for point in points
        if point.threshold <= max(whole, gap.threshold or 0)
    ]


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
        closed=_closed(row.closed, own, nll, reference),
    )


def _mean(total: float, n: int) -> tuple[float | None, float | None]:
    """NLL and perplexity."""
    return (total / n, perplexity(total / n)) if n else (None, None)


def _closed(closed: Closed | None, own: float | None, nll: dict[str, float | None], reference: str) -> Closed | None:
    """The share of the base's gap that a model closes, on these hits."""
    if closed is None:
        return None
    return replace(closed, ar_hits=share_closed(own, nll[closed.base], nll[reference]))
