"""The share of the gap at every τ that the cells of a result allow."""

import pandas as pd

from argap.records import Gap, Record, SliceResult
from argap.results.restated import check_setting, thresholds_of
from argap.slices.figures import slices_of_cells
from argap.slices.partitions import hits_by_threshold


class AtThreshold(Record, frozen=True):
    """The two parts of the scored tokens at one τ."""

    threshold: int | None
    """Exposures; None without training counts, where every repeated bigram is a hit."""
    ar_hits: SliceResult
    other: SliceResult


class Thresholds(Record, frozen=True):
    """A result at every τ against one reference."""

    reference: str
    intervals: bool
    whole: SliceResult
    """All scored tokens."""
    at: tuple[AtThreshold, ...]
    """Ascending in τ."""


def at_every_threshold(gap: Gap, cells: pd.DataFrame, reference: str, *, intervals: bool) -> Thresholds:
    """All figures of the AR hits and the other tokens at each of `thresholds_of`.

    ``cells``: with at least ``document``, ``repeated`` and, with training counts, ``frequency``. Without ``intervals``
    all documents count as one, which takes milliseconds. Raises as `check_setting`.
    """
    check_setting(gap, gap.threshold, reference)
    thresholds: tuple[int | None, ...] = thresholds_of(gap) or (None,)
    sums = cells if intervals else cells.assign(document=0)
    of_hits = list(hits_by_threshold(sums, gap.bins).values()) or [sums["repeated"].to_numpy()]
    masks = {f"{of} {k}": mask for k, hits in enumerate(of_hits) for of, mask in (("hits", hits), ("other", ~hits))}
    whole, *parts = slices_of_cells(sums, masks, reference)
    pairs = zip(thresholds, parts[::2], parts[1::2], strict=True)
    return Thresholds(reference, intervals, whole, tuple(AtThreshold(*each) for each in pairs))
