"""Compute the share of the gap at every τ that the cells of a result support."""

import pandas as pd

from argap.records import AR_HITS, OTHER, Gap, Part, Record
from argap.results.restated import check_setting, thresholds_of
from argap.slices.figures import WHOLE, Key, slices_of_cells
from argap.slices.partitions import hits_by_threshold


class AtThreshold(Record, frozen=True):
    """The two parts of the scored tokens at one τ."""

    threshold: int | None
    """Exposures; None without training counts, where every repeated bigram is a hit."""
    ar_hits: Part
    other: Part


class Thresholds(Record, frozen=True):
    """A result at every τ against one reference."""

    reference: str
    intervals: bool
    whole: Part
    """All scored tokens."""
    at: tuple[AtThreshold, ...]
    """Ascending in τ."""


def at_every_threshold(gap: Gap, cells: pd.DataFrame, reference: str, *, intervals: bool) -> Thresholds:
    """Return the estimates on AR hits and other tokens at each τ of `thresholds_of`.

    ``cells`` have at least ``document``, ``repeated`` and, with training counts, ``frequency``. Without ``intervals``
    all documents count as one, which takes milliseconds. Raises the errors of `check_setting`.
    """
    check_setting(gap, gap.threshold, reference)
    thresholds: tuple[int | None, ...] = thresholds_of(gap) or (None,)
    sums = cells if intervals else cells.assign(document=0)
    of_hits = list(hits_by_threshold(sums, gap.bins).values()) or [sums["repeated"].to_numpy()]
    pairs = [(tau, key, hits) for tau, hits in zip(thresholds, of_hits, strict=True) for key in (AR_HITS, OTHER)]
    masks = {Key(key, str(tau)): hits if key == AR_HITS else ~hits for tau, key, hits in pairs}
    scored = slices_of_cells(sums, masks, reference, seeds=gap.seeds)
    at = (AtThreshold(tau, *(scored[Key(key, str(tau))] for key in (AR_HITS, OTHER))) for tau in thresholds)
    return Thresholds(reference, intervals, scored[WHOLE], tuple(at))
