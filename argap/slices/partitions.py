"""The additive decomposition: the gap of each model, taken apart by several partitions of the tokens.

For any partition into slices s with shares p_s, the contributions p_s·Δnll_s add up to the gap Δnll.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import pandas as pd

from argap.records import Bins, Part, SliceResult, ThresholdShare
from argap.slices.cells import CellFile, ar_hits
from argap.slices.figures import slices_of_cells

By = Literal["slice", "frequency", "distance", "position", "domain"]
AR_HITS, REPEATED, OTHER = "AR hits", "repeated", "other tokens"
Key = tuple[str, bool | None]
"""The label of a bin and, by frequency, whether the bigrams are repeated."""


class Partitions:
    """The cells of each group of some partitions, and the parts that their slices are.

    Partitions: by slice, frequency (repeated and other tokens apart), distance, position and domain. ``bins``: those
    that the cells refer to.
    """

    def __init__(self, bins: Bins, threshold: int | None, chosen: Sequence[By] = get_args(By)) -> None:
        self._bins = bins
        self._threshold = threshold
        self._keys: dict[By, dict[str, Key]] = {by: {} for by in chosen}

    def masks(self, cells: pd.DataFrame) -> dict[str, np.ndarray]:
        """By the name of a slice, the cells of a group (bool ``[C]``)."""
        masks: dict[str, np.ndarray] = {}
        for by, keys in self._keys.items():
            for key, mask in _groups(cells, self._bins, by, self._threshold).items():
                name = f"{by} {key}"
                keys[name], masks[name] = key, mask
        return masks

    def parts(self, by: By, whole: SliceResult, scored: Mapping[str, SliceResult]) -> tuple[Part, ...]:
        """One of the partitions: a part for each group that holds tokens. ``whole``: all tokens."""
        keys = self._keys[by]
        names = sorted(keys, key=lambda name: keys[name]) if by == "domain" else keys
        return tuple(as_part(keys[name], scored[name], whole) for name in names if scored[name].n)


def partition(
    cells: pd.DataFrame | CellFile, bins: Bins, by: By, *, reference: str, threshold: int | None
) -> tuple[Part, ...]:
    """A part for each group of one of the `Partitions` that holds tokens."""
    partitions = Partitions(bins, threshold, [by])
    whole, *scored = slices_of_cells(cells, partitions.masks, reference)
    return partitions.parts(by, whole, {each.name: each for each in scored})


def hits_by_threshold(cells: pd.DataFrame, bins: Bins) -> dict[str, np.ndarray]:
    """The cells of the AR hits (bool ``[C]``) with the upper end of each frequency bin as τ."""
    if not bins.frequency or "frequency" not in cells:
        return {}
    repeated, number = cells["repeated"].to_numpy(), cells["frequency"].to_numpy()
    return {_at(each.high): repeated & (number <= k) for k, each in enumerate(bins.frequency) if each.high is not None}


def share_by_threshold(bins: Bins, scored: Mapping[str, SliceResult]) -> tuple[ThresholdShare, ...]:
    """The slices of `hits_by_threshold`, up to the first that all repeated bigrams are in."""
    ends = [each.high for each in bins.frequency if each.high is not None]
    most = max((scored[_at(high)].n for high in ends), default=0)
    last = next((k for k, high in enumerate(ends) if scored[_at(high)].n == most), 0)
    return tuple(threshold_share(high, scored[_at(high)]) for high in ends[: last + 1])


def _at(threshold: int) -> str:
    return f"τ {threshold}"


def threshold_share(threshold: int, hits: SliceResult) -> ThresholdShare:
    """The AR hits at ``threshold``, a slice, as a point of the curve."""
    due = {model.model: model.gap_due_to for model in hits.models if model.gap_due_to is not None}
    return ThresholdShare(threshold, hits.share, due)


def _groups(cells: pd.DataFrame, bins: Bins, by: By, threshold: int | None) -> dict[Key, np.ndarray]:
    """The cells of each group of a partition; none by a key that the cells lack, as the frequency without counts."""
    if ("repeated" if by == "slice" else by) not in cells:
        return {}
    if by == "slice":
        hits = ar_hits(cells, threshold)
        return {(REPEATED if threshold is None else AR_HITS, None): hits, (OTHER, None): ~hits}
    if by == "domain":
        code, names = pd.factorize(cells["domain"].astype(object))
        return {(str(name), None): code == k for k, name in enumerate(names)}
    number = cells[by].to_numpy()
    if by == "frequency":
        repeated = cells["repeated"].to_numpy()
        return {
            (each.label, again): (number == k) & (repeated == again)
            for again in (False, True)
            for k, each in enumerate(bins.frequency)
        }
    return {(each.label, None): number == k for k, each in enumerate(getattr(bins, by))}


def as_part(key: Key, scored: SliceResult, whole: SliceResult) -> Part:
    """A slice as the part of a partition of the tokens of ``whole``."""
    finite = {model.model for model in whole.models if model.nll is not None}
    resolved = {model.model for model in whole.models if model.contribution is not None}
    compared = {m.model: m.contribution for m in scored.models if m.contribution is not None and m.model in resolved}
    return Part(
        bin=key[0],
        n=scored.n,
        share=scored.share,
        nll={m.model: m.nll for m in scored.models if m.nll is not None and m.model in finite},
        contribution={model: contribution.nll for model, contribution in compared.items()},
        ci95={model: contribution.ci95 for model, contribution in compared.items()},
        repeated=key[1],
    )
