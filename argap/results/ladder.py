"""The ladder of thresholds: the AR hits at τ = 0, scaled, 1,250 and the result's own, and all repeated bigrams."""

from argap.metric.bins import ladder_bounds
from argap.records import AR_HITS, THRESHOLD, Gap, Part, SliceInfo
from argap.slices.conditions import hits_of


def ladder(gap: Gap) -> dict[int | None, Part]:
    """Return the AR hits at each rung, ascending in τ; None, the last: every repeated bigram.

    A τ is missing if the cells, such as a suite's, have no bound there. Without training counts, and for results
    restated against another reference, only the last or only the result's own τ may be known.
    """
    points = {int(part.bin): part for part in gap.curve}
    if gap.index is None:
        return {None: _named(gap.on_hits, None)}
    if not points:
        return {gap.threshold: _named(gap.on_hits, gap.threshold)}
    most = max(points)  # its hits are all repeated bigrams: the curve ends there
    rungs = sorted({0, *ladder_bounds(gap.index), gap.threshold or 0})
    known = {tau: points[min(tau, most)] for tau in rungs if tau in points or tau > most}
    return {tau: _named(part, tau) for tau, part in [*known.items(), (None, points[most])]}


def _named(hits: Part, threshold: int | None) -> Part:
    name = "repeated" if threshold is None else f"{AR_HITS} at {threshold}"
    return Part(hits.moved(THRESHOLD, name).estimates.values(), SliceInfo(name, hits_of(threshold)))
