"""The distribution of a text's bigrams over how often training saw them."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from argap.bigram_index.store import BigramIndex
from argap.errors import ArgapError
from argap.metric.bins import Binning
from argap.runtime.threads import gathered

PIECE = 2**20  # bigrams looked up at a time


@dataclass(frozen=True)
class FrequencyBin:
    """The bigrams of a text that training saw ``low`` to ``high`` times (exposures), inclusive."""

    low: int
    high: int | None
    """None: the last bin, which is unbounded."""
    bigrams: int
    share: float
    """Fraction of the text's bigrams."""


def frequency_profile(index: BigramIndex, documents: Iterable[np.ndarray]) -> list[FrequencyBin]:
    """Sort the bigrams of ``documents``, each `[N]` token ids, into bins of exposures: 0, 1, 2–10, 11–100, and so on.

    Every occurrence counts; bigrams never cross documents. Raises `ArgapError` for a text without one.
    """
    binning = Binning((0, *(10**power for power in range(9))), first=0)
    totals = np.zeros(len(binning.bins()), dtype=np.int64)
    for piece in gathered(documents, PIECE):
        first, second = (np.concatenate([ids[part] for ids in piece]) for part in (slice(-1), slice(1, None)))
        seen = np.rint(index.exposures(first, second)).astype(np.int64)  # as in `argap.tokens.labels.count_exposures`
        totals += np.bincount(binning.index(seen), minlength=len(totals))
    total = int(totals.sum())
    if not total:
        raise ArgapError("the text contains no bigram; expected a document of at least two tokens")
    rows = [
        FrequencyBin(each.low, each.high, n, n / total) for each, n in zip(binning.bins(), totals.tolist(), strict=True)
    ]
    while not rows[-1].bigrams:
        rows.pop()
    return rows
