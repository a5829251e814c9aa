"""Looking pairs up in compressed sparse rows."""

import numpy as np


def count_pairs(
    indptr: np.ndarray, second: np.ndarray, count: np.ndarray, pairs: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Counts, `[N]` int64, of ``pairs`` (first tokens, second tokens; each `[N]`); 0 where absent.

    ``indptr`` `[vocab + 1]`, ``second`` and ``count`` `[entries]` are a run's (`argap.bigram_index.runs`).
    Bisects the rows of all pairs at once.
    """
    first, wanted = pairs
    vocab_size = len(indptr) - 1
    known = (first >= 0) & (first < vocab_size)
    row = np.where(known, first, 0).astype(np.int64)
    low = indptr[row]
    end = np.where(known, indptr[row + 1], low)
    high = end
    last = max(len(second) - 1, 0)
    while np.any(low < high):
        middle = (low + high) // 2
        right = second[np.minimum(middle, last)] < wanted
        right &= low < high
        low = np.where(right, middle + 1, low)
        high = np.where(right, high, np.minimum(middle, high))
    result = np.zeros(len(row), dtype=np.int64)
    inside = np.flatnonzero(low < end)
    inside = inside[second[low[inside]] == wanted[inside]]
    result[inside] = count[low[inside]]
    return result
