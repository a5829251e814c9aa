"""Define the bins of tokens by training frequency, distance and position.

Each binning partitions the scored tokens, so that contributions to the gap add up to the whole.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from argap.metric.threshold import PAPER_THRESHOLD, resolve_threshold
from argap.records import Bin, Bins, IndexRecord

POSITIONS = 8
"""Equal parts of a window."""
LAST_DECADE = 10**9
LOOKED_UP = 2**16
"""Values below this one are looked up in a table, not searched."""


@dataclass(frozen=True)
class Binning:
    """Consecutive integer bins: bin k holds the values above ``upper[k − 1]`` and up to ``upper[k]``."""

    upper: tuple[int, ...]
    first: int
    zero: str | None = None
    """Label of the bin that holds only the value 0; None: "0"."""

    def index(self, values: np.ndarray) -> np.ndarray:
        """Return the bin of each value, int16; values above the last bound get one more bin."""
        found = self._of_small.take(values, mode="clip")
        if self.upper[-1] >= LOOKED_UP:
            large = np.flatnonzero(values >= LOOKED_UP)
            found[large] = np.searchsorted(self.upper, values[large])
        return found

    @cached_property
    def _of_small(self) -> np.ndarray:
        """The bins of 0, 1 … up to the first value beyond the bounds, at most `LOOKED_UP`.

        Looking a bin up is several times as fast as searching for it.
        """
        return np.searchsorted(self.upper, np.arange(min(self.upper[-1] + 2, LOOKED_UP))).astype(np.int16)

    def bins(self) -> tuple[Bin, ...]:
        """Return label and bounds of each bin, in order."""
        lows = [self.first, *(u + 1 for u in self.upper)]
        highs: list[int | None] = [*self.upper, None]
        return tuple(Bin(self._label(a, b), a, b) for a, b in zip(lows, highs, strict=True))

    def _label(self, low: int, high: int | None) -> str:
        if self.zero is not None and low == high == 0:
            return self.zero
        if high is None:
            return f"> {low - 1:,}"
        return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def bins_of(threshold: int | None, seq_len: int, index: IndexRecord | None = None) -> Bins:
    """Return the bins of a result; none by frequency without a threshold, that is, without training counts.

    ``index``: the index of the result, if the thresholds of `ladder_bounds` are to be bounds too.
    """
    return Bins(
        frequency=() if threshold is None else frequency_bins(threshold, *ladder_bounds(index)).bins(),
        distance=distance_bins(seq_len).bins(),
        position=position_bins(seq_len).bins(),
    )


def ladder_bounds(index: IndexRecord | None) -> tuple[int, ...]:
    """Return the paper's τ, then τ scaled to the training tokens of an index; nothing without one."""
    return () if index is None else (PAPER_THRESHOLD, resolve_threshold("scaled", index.exposed_tokens))


@lru_cache(maxsize=8)
def frequency_bins(*thresholds: int) -> Binning:
    """Return the bins of training counts: 0, then upper bounds 1, 2, 5, 10, 20, 50 …

    Each of ``thresholds`` is a bound too, so that the AR hits at it are a union of bins.
    """
    bounds = {0, *thresholds}
    decade = 1
    while decade < LAST_DECADE:
        bounds.update((decade, 2 * decade, 5 * decade))
        decade *= 10
    return Binning(tuple(sorted(bounds)), first=0)


@lru_cache(maxsize=8)
def recorded_bins(bins: tuple[Bin, ...]) -> Binning:
    """Return the binning that made ``bins``."""
    return Binning(tuple(each.high for each in bins if each.high is not None), first=bins[0].low)


@lru_cache(maxsize=8)
def distance_bins(seq_len: int) -> Binning:
    """Return the bins of tokens back to the nearest occurrence: 0 (not repeated), then upper bounds 1, 2, 4, 8 …"""
    bounds = [0, 1]
    while bounds[-1] < seq_len:
        bounds.append(2 * bounds[-1])
    return Binning(tuple(bounds), first=0, zero="not repeated")


@lru_cache(maxsize=8)
def position_bins(seq_len: int) -> Binning:
    """Return `POSITIONS` bins of (nearly) equal length over the position in the window."""
    parts = min(POSITIONS, seq_len - 1)
    return Binning(tuple(round(k * seq_len / parts) - 1 for k in range(1, parts + 1)), first=1)
