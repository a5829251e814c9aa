"""The additive decomposition: the gap of each model, taken apart by several partitions of the tokens.

For any partition into slices s with shares p_s, the contributions p_s·Δnll_s add up to the gap Δnll.
"""

from typing import Literal, get_args

import numpy as np
import pandas as pd

from argap.cells import ar_hits
from argap.records import Bins, Breakdowns, Part, SliceResult, ThresholdShare
from argap.slices import slices_of_cells

By = Literal["slice", "frequency", "distance", "position", "domain"]
AR_HITS, REPEATED, OTHER = "AR hits", "repeated", "other tokens"
Key = tuple[str, bool | None]
"""The label of a bin and, by frequency, whether the bigrams are repeated."""


def breakdowns(cells: pd.DataFrame, bins: Bins, *, reference: str, threshold: int | None) -> Breakdowns:
    """The gap by slice, frequency (repeated and other tokens apart), distance, position and domain.

    ``bins``: those that the cells refer to.
    """
    parts = {by: partition(cells, bins, by, reference=reference, threshold=threshold) for by in get_args(By)}
    return Breakdowns(**parts)


def partition(cells: pd.DataFrame, bins: Bins, by: By, *, reference: str, threshold: int | None) -> tuple[Part, ...]:
    """One of the `breakdowns`: a part for each group that holds tokens."""
    masks = {key: mask for key, mask in _groups(cells, bins, by, threshold).items() if mask.any()}
    _, *results = slices_of_cells(cells, {str(key): mask for key, mask in masks.items()}, reference)
    return tuple(as_part(key, result) for key, result in zip(masks, results, strict=True))


def share_by_threshold(cells: pd.DataFrame, bins: Bins, *, reference: str) -> tuple[ThresholdShare, ...]:
    """The AR hits with the upper end of each frequency bin as τ, up to the first that all repeated bigrams meet.

    Empty without training counts.
    """
    if not bins.frequency:
        return ()
    repeated, number = cells["repeated"].to_numpy(), cells["frequency"].to_numpy()
    highest = int(number[repeated].max(initial=0))
    ends = {each.high: k for k, each in enumerate(bins.frequency[: highest + 1]) if each.high is not None}
    masks = {str(high): repeated & (number <= k) for high, k in ends.items()}
    _, *results = slices_of_cells(cells, masks, reference)
    return tuple(threshold_share(high, result) for high, result in zip(ends, results, strict=True))


def threshold_share(threshold: int, hits: SliceResult) -> ThresholdShare:
    """The AR hits at ``threshold``, a slice, as a point of the curve."""
    due = {model.model: model.gap_due_to for model in hits.models if model.gap_due_to is not None}
    return ThresholdShare(threshold, hits.share, due)


def _groups(cells: pd.DataFrame, bins: Bins, by: By, threshold: int | None) -> dict[Key, np.ndarray]:
    """The cells of each group of a partition; none by frequency without training counts."""
    if by == "slice":
        hits = ar_hits(cells, threshold)
        return {(REPEATED if threshold is None else AR_HITS, None): hits, (OTHER, None): ~hits}
    if by == "domain":
        code, names = pd.factorize(cells["domain"].astype(object), sort=True)
        return {(str(name), None): code == k for k, name in enumerate(names)}
    if by == "frequency" and threshold is None:
        return {}
    number = cells[by].to_numpy()
    if by == "frequency":
        repeated = cells["repeated"].to_numpy()
        return {
            (each.label, again): (number == k) & (repeated == again)
            for again in (False, True)
            for k, each in enumerate(bins.frequency)
        }
    return {(each.label, None): number == k for k, each in enumerate(getattr(bins, by))}


def as_part(key: Key, scored: SliceResult) -> Part:
    """A slice as the part of a partition."""
    compared = {model.model: model.contribution for model in scored.models if model.contribution is not None}
    return Part(
        bin=key[0],
        n=scored.n,
        share=scored.share,
        nll={model.model: model.nll for model in scored.models if model.nll is not None},
        contribution={model: contribution.nll for model, contribution in compared.items()},
        ci95={model: contribution.ci95 for model, contribution in compared.items()},
        repeated=key[1],
    )
