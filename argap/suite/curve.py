"""Compute the share of the gap due to AR as a function of the threshold τ.

Repeated tokens are binned finely by the training count of their bigram. If a threshold is the upper bound of a bin, its
AR hits are the tokens in all bins up to that one.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from argap.errors import ArgapError
from argap.records import THRESHOLD, Part
from argap.slices.cells import PREFIX, models_of, sum_by
from argap.slices.figures import Key, SliceScorer
from argap.slices.tally import tally
from argap.tokens.labels import Labels

SINGLE = 10
"""Each count up to this one has its own bin."""
PER_DECADE = 20
"""Bins per decade above `SINGLE`."""


def fine_bounds(highest: int, thresholds: Sequence[int]) -> np.ndarray:
    """Return the upper bounds of the bins, int64, ascending.

    0 … 10, then 20 per decade up to at least ``highest``, and all ``thresholds``.
    """
    decades = np.log10(max(highest, SINGLE) / SINGLE)
    grid = SINGLE * 10 ** (np.arange(0, np.ceil(decades * PER_DECADE) + 1) / PER_DECADE)
    return np.unique(np.concatenate([np.arange(SINGLE), np.ceil(grid).astype(np.int64), thresholds]).astype(np.int64))


def build_curve(labels: Labels, logprobs: Mapping[str, np.ndarray], thresholds: Sequence[int] = ()) -> pd.DataFrame:
    """Bin the repeated, scored tokens by training count: one row per document and non-empty bin.

    Columns ``document``, ``high``, ``n`` and each model's sum of log p (float64). Every value of ``thresholds`` is the
    upper bound of a bin. Bins without tokens appear once, with ``n`` 0.
    """
    rows = np.flatnonzero(labels.repeated & labels.scored)
    if labels.train_count is None:
        raise ArgapError("labels without training counts have no curve over thresholds; label them with an index")
    counts = labels.train_count[rows]
    bounds = fine_bounds(int(counts.max(initial=0)), thresholds)
    every = np.arange(len(bounds))  # one row per bin, in the first document, with weight 0
    document = np.append(
        np.repeat(labels.document_of_window[:1], len(every)), labels.document_of_window[labels.window[rows]]
    )
    number = np.append(every, np.searchsorted(bounds, counts))
    weight = np.append(np.zeros_like(every), np.ones_like(rows))
    columns = [np.append(np.zeros(len(every), dtype=values.dtype), values[rows]) for values in logprobs.values()]
    groups = tally([document, number], columns, weight)
    sums = {PREFIX + model: each for model, each in zip(logprobs, groups.sums, strict=True)}
    document, number = groups.keys
    return pd.DataFrame({"document": document.astype(np.int32), "high": bounds[number], "n": groups.n, **sums})


def share_by_threshold(curve: pd.DataFrame, totals: Mapping[str, float], reference: str) -> list[Part]:
    """Score the AR hits with τ at each bin's upper bound, without intervals.

    ``totals``: ``n`` and each model's sum of log p over all scored tokens.
    """
    summed = sum_by(curve.drop(columns="document", errors="ignore"), ["high"])
    models = models_of(curve)
    columns = ["n", *(PREFIX + model for model in models)]
    everything = np.array([[totals[name] for name in columns]])
    cumulated = summed[columns].to_numpy(dtype=np.float64).cumsum(axis=0)
    scorer = SliceScorer(models, reference, everything[:, 0], everything[:, 1:])
    for high, sums in zip(summed["high"].tolist(), cumulated, strict=True):
        scorer.add(Key(THRESHOLD, str(high)), sums[:1], sums[None, 1:])
    return scorer.results()[1:]
