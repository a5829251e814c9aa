"""Compiled lookups: a directory into the row, a short bisection, many pairs at a time.

A lookup is a chain of three cache misses: bucket, second tokens, count. Pairs are looked up in groups: each step runs
for the whole group before the next one and prefetches the line that the next one reads, so the misses of a group
overlap.
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from argap.bigram_index.counting.csr import Csr
from argap.bigram_index.counting.intrinsics import jit, prefetch_read
from argap.runtime.threads import available_cores

GROUP = 32
ONE_THREAD_PAIRS = 2**14  # one thread finishes these before a second one starts


@jit
def _probe(second, count, shift, base, bucket, firsts, seconds, start, stop, result):
    vocab_size, last = len(shift), len(second) - 1
    at = np.empty(GROUP, dtype=np.int64)
    for group in range(start, stop, GROUP):
        size = min(GROUP, stop - group)
        # 1. The bucket of the pair; -1 for an id outside the vocabulary.
        for j in range(size):
            row, token = firsts[group + j], seconds[group + j]
            if row >= 0 and row < vocab_size and token >= 0 and token < vocab_size:
                at[j] = base[row] + (token >> shift[row])
                prefetch_read(bucket, at[j])
            else:
                at[j] = -1
        # 2. The middle of its entries.
        for j in range(size):
            if at[j] >= 0:
                prefetch_read(second, (np.int64(bucket[at[j]]) + np.int64(bucket[at[j] + 1])) >> 1)
        # 3. The entry, by a bisection that keeps the last entry not above the token; -1 if absent.
        #    Whether a pair occurs is unpredictable, hence selections instead of branches.
        for j in range(size):
            if at[j] < 0:
                continue
            token = seconds[group + j]
            # The bounds of a file that anyone may have written, kept inside the arrays.
            low = max(min(np.int64(bucket[at[j]]), last + 1), 0)
            entries = min(np.int64(bucket[at[j] + 1]), last + 1) - low
            empty = entries <= 0
            while entries > 1:
                half = entries >> 1
                low = low + half if np.int64(second[low + half]) <= token else low
                entries -= half
            low = min(low, last)
            at[j] = -1 if empty | (np.int64(second[low]) != token) else low
            prefetch_read(count, max(at[j], 0))
        # 4. Its count.
        for j in range(size):
            occurrences = count[max(at[j], 0)]
            result[group + j] = occurrences if at[j] >= 0 else 0


def count_pairs(csr: Csr, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Look up counts as `argap.bigram_index.counting.csr.count_pairs` does."""
    first, second = _as_signed(first), _as_signed(second)
    result = np.empty(len(first), dtype=np.int64)
    if not len(csr.second):
        return np.zeros(len(first), dtype=np.int64)
    threads = available_cores() if len(first) > ONE_THREAD_PAIRS else 1
    edges = np.linspace(0, len(first), threads + 1).astype(np.int64)
    seconds, counts = np.asarray(csr.second), np.asarray(csr.count)  # plain views of memory maps
    shift, base, bucket = np.asarray(csr.shift), np.asarray(csr.base), np.asarray(csr.bucket)

    def probe(thread: int) -> None:
        begin, end = edges[thread], edges[thread + 1]
        _probe(seconds, counts, shift, base, bucket, first, second, begin, end, result)

    if threads == 1:
        probe(0)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(probe, range(threads)))
    return result


def _as_signed(ids: np.ndarray) -> np.ndarray:
    """Return int32 unchanged, everything else as int64: two compiled versions instead of eight.

    A uint64 beyond int64 turns negative, which is outside the vocabulary too.
    """
    return np.ascontiguousarray(ids if ids.dtype == np.int32 else ids.astype(np.int64))
