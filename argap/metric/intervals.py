"""Compute a paired bootstrap over documents, from sums, never from tokens.

Windows of one document are not independent (a novel has hundreds), so whole documents are drawn with replacement, for
all models together, and every statistic is computed from the drawn sums. With more than `GROUPS` documents, these are
first assigned at random to that many groups, and groups are drawn: the variance is the same, and the cost does not grow
with the number of documents.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock

import numpy as np

from argap.records import Interval
from argap.runtime.interrupt import current

RESAMPLES = 10_000
SEED = 1234
LEVEL = 0.95
GROUPS = 4096
WEIGHTS_AT_ONCE = 2**21
COLUMNS_AT_ONCE = 1024
FEW, TOO_FEW = 30, 20
"""Effective documents below which intervals are too narrow to trust, and below which no share is claimed."""


class DocumentBootstrap:
    """The resamples shared by all statistics of a comparison.

    Legend: D documents, U units that are drawn (documents, or groups of them), R resamples, K columns of sums.
    """

    def __init__(self, documents: int, *, resamples: int = RESAMPLES, seed: int = SEED) -> None:
        self.documents = documents
        self.units = min(documents, GROUPS)
        self.resamples = resamples
        self._seed = seed
        self.unit = np.arange(documents)
        """``[D]``: the unit of each document."""
        if documents > GROUPS:
            self.unit = np.random.default_rng(seed).permutation(documents) * GROUPS // documents

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Draw the resamples in a thread during the block; thousands of units take a second or two."""
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self.draw)
            yield

    def draw(self) -> np.ndarray:
        """Return how often each resample draws each unit ``[R, U]``, cached for later statistics.

        Raises `Interrupted` if asked to stop.
        """
        with _DRAWING:
            return _drawn(self.units, self.resamples, self._seed)

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
        drawn = self.draw()
        chunk = _chunk(self.units)
        for start in range(0, self.resamples, chunk):
            yield drawn[start : start + chunk].astype(np.float64)


_DRAWING = Lock()
"""Makes a thread that needs resamples wait for the one drawing them."""


@lru_cache(maxsize=1)
def _drawn(units: int, resamples: int, seed: int) -> np.ndarray:
    """Draw the resamples of `DocumentBootstrap.draw`.

    Cached (40 MB at most): all statistics of a result share them, and drawing takes far longer than adding up.
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


def effective_documents(n: np.ndarray) -> float:
    """Return Kish's effective number of documents, (Σ n)² / Σ n², for ``n [D]`` scored tokens in each."""
    n = np.asarray(n, dtype=np.float64)
    return float(n.sum() ** 2 / (n**2).sum())


def unresolved(documents: int, worth: float, gap: Interval | None, part: Interval | None) -> str | None:
    """Return why a share of a gap must not be claimed; None if it may.

    ``worth``: the `effective_documents`. ``gap``, ``part``: the intervals of the gap and of the slice's part of it.
    """
    if documents == 1:
        return "a single document"
    if contains_zero(gap):
        return "the interval of the gap contains 0"
    if contains_zero(part):
        return "the interval of the slice's part of the gap contains 0"
    return f"{documents:,} documents are worth {int(worth)}" if worth < TOO_FEW else None


def contains_zero(ends: Interval | None) -> bool:
    """Return whether an interval contains 0; an unknown one does not."""
    return ends is not None and ends[0] <= 0 <= ends[1]


def interval(values: np.ndarray) -> Interval:
    """Return the 95% percentile interval of resampled statistics ``[R]``."""
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
