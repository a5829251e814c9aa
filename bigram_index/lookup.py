"""Looking pairs up in compressed sparse rows, plainly: what the compiled way is tested against."""

import numpy as np

from argap.bigram_index.csr import Csr


def count_pairs(csr: Csr, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Counts, `[N]` int64, of the pairs of ``first`` and ``second``, `[N]` of any integer type.

    A pair that is absent counts 0, and so does one with an id outside the vocabulary. Bisects the rows of
    all pairs at once.
    """
    known = (first >= 0) & (first < len(csr.indptr) - 1)
    row = np.where(known, first, 0).astype(np.int64)
    low = csr.indptr[row]
    end = np.where(known, csr.indptr[row + 1], low)
    high = end
    last = max(len(csr.second) - 1, 0)
    while np.any(low < high):
        middle = (low + high) // 2
        right = csr.second[np.minimum(middle, last)] < second
        right &= low < high
        low = np.where(right, middle + 1, low)
        high = np.where(right, high, np.minimum(middle, high))
    result = np.zeros(len(row), dtype=np.int64)
    inside = np.flatnonzero(low < end)
    inside = inside[csr.second[low[inside]] == second[inside]]
    result[inside] = csr.count[low[inside]]
    return result
