"""The share of the gap due to AR as a function of the threshold τ.

Repeated tokens are binned finely by their bigram's training count. The AR hits at a threshold that is the upper end of
a bin are the tokens in all bins up to it.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from argap.cells import PREFIX, models_of
from argap.errors import ArgapError
from argap.gap import gap_due_to_ar
from argap.labels import Labels

SINGLE = 10
"""Each count up to this one has its own bin."""
PER_DECADE = 20
"""Bins per decade above `SINGLE`."""


def fine_bounds(highest: int, thresholds: Sequence[int] = ()) -> np.ndarray:
    """Upper ends of the bins, int64 ascending: 0 … 10, then 20 per decade up to at least ``highest``, and all
    ``thresholds``."""
    decades = np.log10(max(highest, SINGLE) / SINGLE)
    grid = SINGLE * 10 ** (np.arange(0, np.ceil(decades * PER_DECADE) + 1) / PER_DECADE)
    return np.unique(np.concatenate([np.arange(SINGLE), np.ceil(grid).astype(np.int64), thresholds]).astype(np.int64))


def build_curve(labels: Labels, logprobs: Mapping[str, np.ndarray], thresholds: Sequence[int] = ()) -> pd.DataFrame:
    """Bin the repeated, scored tokens; one row per bin: ``high``, ``n`` and each model's sum of log p (float64).

    Every value of ``thresholds`` is the upper end of a bin.
    """
    rows = np.flatnonzero(labels.repeated & labels.scored)
    if labels.train_count is None:
        raise ArgapError("labels without training counts have no curve over thresholds; label them with an index")
    counts = labels.train_count[rows]
    bounds = fine_bounds(int(counts.max(initial=0)), thresholds)
    bins = np.searchsorted(bounds, counts)
    columns: dict[str, np.ndarray] = {"high": bounds, "n": np.bincount(bins, minlength=len(bounds))}
    for model, values in logprobs.items():
        columns[PREFIX + model] = np.bincount(bins, values[rows].astype(np.float64), minlength=len(bounds))
    return pd.DataFrame(columns)


def share_by_threshold(curve: pd.DataFrame, totals: Mapping[str, float], reference: str) -> pd.DataFrame:
    """With each bin's upper end as τ: ``threshold``, ``share_ar_hits``, and each model's raw share of the gap (NaN
    without a gap).

    ``totals``: ``n`` and each model's sum of log p over all scored tokens.
    """
    n = curve["n"].to_numpy().cumsum()
    total = totals["n"]
    share = n / total
    result: dict[str, np.ndarray] = {"threshold": curve["high"].to_numpy(), "share_ar_hits": share}
    for model in models_of(curve):
        if model == reference:
            continue
        lost = (curve[PREFIX + model] - curve[PREFIX + reference]).to_numpy().cumsum()
        delta = (totals[PREFIX + model] - totals[PREFIX + reference]) / total
        hits = lost / np.maximum(n, 1)
        raw = [gap_due_to_ar(h, delta, p).raw if delta < 0 else None for h, p in zip(hits, share, strict=True)]
        result[model] = np.array(raw, dtype=np.float64)
    return pd.DataFrame(result)
