"""Compute the share of the gap due to AR as a function of the threshold τ.

Repeated tokens are binned finely by the training count of their bigram. If a threshold is the upper bound of a bin, its
AR hits are the tokens in all bins up to that one.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from argap.errors import ArgapError
from argap.slices.cells import PREFIX
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
