"""Compute a bootstrap over documents for the scores of tasks, whose answers are few and right or wrong.

Answers about one document are not independent, so whole documents are drawn with replacement, and every statistic is
computed from the drawn sums. Many documents are first assigned to groups (`argap.metric.documents.group_of`), and
groups are drawn: the variance is the same, and the cost does not grow with the number of documents. Figures of slices
have linearised intervals instead (`argap.metric.influence`).
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from argap.metric.documents import group_of, units_of
from argap.records import Interval
from argap.runtime.interrupt import current

RESAMPLES = 10_000
SEED = 1234
LEVEL = 0.95
NORMAL = 1.959964
"""The normal quantile of that level."""
WEIGHTS_AT_ONCE = 2**21
COLUMNS_AT_ONCE = 1024


class DocumentBootstrap:
    """The resamples shared by all statistics of a comparison.

    Legend: D documents, U units that are drawn (documents, or groups of them), R resamples, K columns of sums.
    """

    def __init__(self, documents: int, *, resamples: int = RESAMPLES, seed: int = SEED) -> None:
        self.documents = documents
        self.units = units_of(documents)
        self.resamples = resamples
        self._seed = seed
        self.unit = group_of(documents, seed)
        """``[D]``: the unit of each document."""

    def by_unit(self, sums: np.ndarray) -> np.ndarray:
        """Turn sums by document ``[D, K]`` into sums by unit, float64 ``[U, K]``."""
        return np.stack([np.bincount(self.unit, column) for column in sums.T], axis=1)

    def resample(self, sums: np.ndarray) -> np.ndarray:
        """Add up sums by unit ``[U, K]`` over each resample: float64 ``[R, K]``."""
        blocks = [sums[:, start : start + COLUMNS_AT_ONCE] for start in range(0, sums.shape[1], COLUMNS_AT_ONCE)]
        drawn = [np.concatenate([weights @ block for weights in self._weights()]) for block in blocks]
        return np.concatenate(drawn, axis=1)

    def _weights(self) -> Iterator[np.ndarray]:
        """Yield how often each resample draws each unit: chunks of a float64 array ``[R, U]``."""
        drawn = _drawn(self.units, self.resamples, self._seed)
        chunk = _chunk(self.units)
        for start in range(0, self.resamples, chunk):
            yield drawn[start : start + chunk].astype(np.float64)


@lru_cache(maxsize=1)
def _drawn(units: int, resamples: int, seed: int) -> np.ndarray:
    """Draw how often each resample draws each unit, ``[R, U]``.

    Cached (40 MB at most), as drawing takes far longer than adding up. Raises `Interrupted` if asked to stop.
    """
    generator, interrupt = np.random.default_rng(seed), current()
    even = np.full(units, 1 / units)
    drawn = np.empty((resamples, units), dtype=np.uint8)  # a unit is drawn once on average, never over 255 times
    for start in range(0, resamples, _chunk(units)):
        interrupt.check()
        draws = generator.multinomial(units, even, size=min(_chunk(units), resamples - start))
        drawn[start : start + len(draws)] = draws
    return drawn


def _chunk(units: int) -> int:
    """Return the number of resamples to process at a time."""
    return WEIGHTS_AT_ONCE // units


def share_interval(share: float, number: float) -> Interval:
    """Return Wilson's 95% interval of a share among ``number`` independent answers (JASA 22 (1927) 209–212).

    Unlike a bootstrap it has a width where all answers are right, or none.

    >>> [round(end, 3) for end in share_interval(1.0, 8)]
    [0.676, 1.0]
    """
    middle = (share + NORMAL**2 / (2 * number)) / (1 + NORMAL**2 / number)
    half = NORMAL * (share * (1 - share) / number + (NORMAL / (2 * number)) ** 2) ** 0.5 / (1 + NORMAL**2 / number)
    return max(0.0, middle - half), min(1.0, middle + half)


def interval(values: np.ndarray) -> Interval:
    """Return the 95% percentile interval of resampled statistics ``[R]``."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
