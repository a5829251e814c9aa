"""Count a stream of tokens without a hash, a comparison sort or an atomic.

1. Histogram of the first tokens: the length of each row.
2. Counting-sort scatter of the second tokens into one list per row.
3. Each row is counted in a table of one counter per token, which stays in the L2 cache (200 KB for a
   vocabulary of 50 k), and emitted in order through a bitmap of the tokens that occur.

Every step costs one cached random update per token, and the scratch memory is the size of the stream. Threads own
slices of the stream in 1 and 2 and ranges of rows in 3, so they never write to the same memory.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np

from argap.bigram_index.counting.count_numpy import StreamSummary
from argap.bigram_index.counting.intrinsics import ONE, jit, lowest_bit, prefetch_write
from argap.bigram_index.counting.sorted_runs import MemoryRun
from argap.runtime.threads import available_cores

AHEAD = 24
"""Distance of the prefetch ahead of the scatter, in tokens."""
BLOCKS_PER_THREAD = 8

NO_TOKEN = -(2**63)
TOKENS_PER_THREAD = 2**18
"""Number of tokens that makes an extra thread worthwhile."""


@jit
def _histogram(tokens, start, stop, row_sizes):
    for i in range(start, stop):
        row_sizes[tokens[i]] += 1


@jit
def _scatter(tokens, start, stop, targets, scattered):
    prefetched = max(start, stop - AHEAD)
    for i in range(start, prefetched):
        prefetch_write(scattered, targets[tokens[i + AHEAD]])
        first = tokens[i]
        target = targets[first]
        targets[first] = target + 1
        scattered[target] = tokens[i + 1]
    for i in range(prefetched, stop):
        first = tokens[i]
        target = targets[first]
        targets[first] = target + 1
        scattered[target] = tokens[i + 1]


@jit
def _emit(words, summary, table, boundary, seconds, counts, out):
    """Write the non-zero entries of ``table`` in ascending order from ``out`` on, and zero all three arrays.

    A bit of ``words`` is set for each token that occurs, a bit of ``summary`` for each non-zero word.
    """
    for s in range(len(summary)):
        group = summary[s]
        summary[s] = 0
        while group:
            w = (s << 6) + lowest_bit(group)
            group &= group - ONE
            word = words[w]
            words[w] = 0
            while word:
                second = (w << 6) + lowest_bit(word)
                word &= word - ONE
                if second != boundary:
                    seconds[out] = second
                    counts[out] = table[second]
                    out += 1
                table[second] = 0
    return out


@jit
def _count_rows(scattered, starts, row_start, row_stop, boundary, table, words, summary, counts, sizes):
    """Count rows ``row_start:row_stop`` in place, without gaps.

    Seconds overwrite the lists they come from, from the block's start on: never more entries are written than have been
    read.
    """
    out = starts[row_start]
    for row in range(row_start, row_stop):
        begun = out
        if row != boundary:
            for i in range(starts[row], starts[row + 1]):
                second = scattered[i]
                seen = table[second]
                table[second] = seen + 1
                if seen == 0:
                    words[second >> 6] |= ONE << np.uint64(second & 63)
                    summary[second >> 12] |= ONE << np.uint64((second >> 6) & 63)
            out = _emit(words, summary, table, boundary, scattered, counts, out)
        sizes[row] = out - begun


@jit
def _add_rows(indptrs, second, count, row_start, row_stop, out, table, words, summary, seconds, counts, sizes):
    """Add up rows ``row_start:row_stop`` of all runs; the sum goes to ``seconds[out:]``, without gaps."""
    for row in range(row_start, row_stop):
        begun = out
        for run in range(len(indptrs)):
            for i in range(indptrs[run, row], indptrs[run, row + 1]):
                token = second[i]
                seen = table[token]
                table[token] = seen + count[i]
                if seen == 0:
                    words[token >> 6] |= ONE << np.uint64(token & 63)
                    summary[token >> 12] |= ONE << np.uint64((token >> 6) & 63)
        out = _emit(words, summary, table, -1, seconds, counts, out)
        sizes[row] = out - begun


def count_stream(
    tokens: np.ndarray, vocab_size: int, boundary: int | None = None, *, threads: int | None = None
) -> MemoryRun:
    """Count as `argap.bigram_index.counting.count_numpy.count_stream` does, many times faster.

    ``tokens``: `[N]` uint16 or uint32, N below 2³², each at most ``vocab_size`` (not checked). ``threads``: all cores
    by default.
    """
    threads = threads or available_cores()
    rows = vocab_size + 1  # one more for the boundary
    pairs = max(len(tokens) - 1, 0)
    edges = np.linspace(0, pairs, threads + 1).astype(np.int64)
    row_sizes = np.zeros((threads, rows), dtype=np.uint32)
    scattered = np.empty(pairs, dtype=tokens.dtype)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda t: _histogram(tokens, edges[t], edges[t + 1], row_sizes[t]), range(threads)))
        starts = np.zeros(rows + 1, dtype=np.int64)
        np.cumsum(row_sizes.sum(axis=0, dtype=np.int64), out=starts[1:])
        # Where each thread writes in each row: after the entries of earlier threads.
        targets = (starts[:-1] + np.cumsum(row_sizes, axis=0, dtype=np.int64) - row_sizes).astype(np.uint32)
        list(pool.map(lambda t: _scatter(tokens, edges[t], edges[t + 1], targets[t], scattered), range(threads)))

        counts = np.empty(pairs, dtype=np.uint32)  # only pages that are written take memory
        sizes = np.zeros(vocab_size, dtype=np.int64)
        skipped = -1 if boundary is None else boundary

        def count_block(begin: int, end: int, tools: Tools) -> None:
            _count_rows(scattered, starts, begin, end, skipped, *tools, counts, sizes)

        edges = _balance(pool, threads, count_block, starts[:rows], np.uint32, vocab_size)
    return _compact(edges, starts, sizes, scattered, counts)


def merge_rows(indptrs: np.ndarray, second: np.ndarray, count: np.ndarray, vocab_size: int) -> MemoryRun:
    """Merge as `argap.bigram_index.counting.count_numpy.merge_rows` does, with the table and bitmap of step 3."""
    threads = available_cores()
    starts = (indptrs - indptrs[:, :1]).sum(axis=0)
    seconds = np.empty(len(second), dtype=second.dtype)
    counts = np.empty(len(second), dtype=np.int64)
    sizes = np.zeros(len(starts) - 1, dtype=np.int64)

    def add_block(begin: int, end: int, tools: Tools) -> None:
        _add_rows(indptrs, second, count, begin, end, starts[begin], *tools, seconds, counts, sizes)

    with ThreadPoolExecutor(threads) as pool:
        edges = _balance(pool, threads, add_block, starts, np.int64, vocab_size)
    return _compact(edges, starts, sizes, seconds, counts)


Tools = tuple[np.ndarray, np.ndarray, np.ndarray]
"""A thread's table, bitmap and summary of the bitmap, all zero between rows."""


def _balance(
    pool: ThreadPoolExecutor,
    threads: int,
    work: Callable[[int, int, Tools], None],
    starts: np.ndarray,
    counter: type,
    vocab_size: int,
) -> np.ndarray:
    """Call ``work`` on blocks of rows with about equal numbers of entries; return the blocks' edges.

    ``starts``: `[rows + 1]`, where each row begins and the last one ends.
    """
    blocks = threads * BLOCKS_PER_THREAD
    inner = np.searchsorted(starts, np.linspace(starts[0], starts[-1], blocks + 1)[1:-1])
    edges = np.concatenate([[0], inner, [len(starts) - 1]])

    def work_all(thread: int) -> None:
        table = np.zeros(vocab_size + 1, dtype=counter)
        words = np.zeros((vocab_size >> 6) + 1, dtype=np.uint64)
        summary = np.zeros((vocab_size >> 12) + 1, dtype=np.uint64)
        for block in range(thread, blocks, threads):
            work(edges[block], edges[block + 1], (table, words, summary))

    list(pool.map(work_all, range(threads)))
    return edges


def _compact(
    edges: np.ndarray, starts: np.ndarray, sizes: np.ndarray, seconds: np.ndarray, counts: np.ndarray
) -> MemoryRun:
    """Close the gaps between the blocks' results; each result begins where its input began."""
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    second = np.empty(indptr[-1], dtype=seconds.dtype)
    count = np.empty(indptr[-1], dtype=counts.dtype)
    for begin, end in pairwise(edges):
        there = slice(indptr[begin], indptr[end])
        here = slice(starts[begin], starts[begin] + indptr[end] - indptr[begin])
        second[there] = seconds[here]
        count[there] = counts[here]
    return MemoryRun(indptr, second, count)


@jit
def _mark_boundaries(tokens, eos, boundary, inside, out):
    token = np.int64(tokens[0])
    low = high = token
    ends = np.int64(token == eos)
    documents = np.int64(token != eos and not inside)
    out[0] = boundary if token == eos else token
    for i in range(1, len(tokens)):  # without a branch, so that it is vectorised
        token = np.int64(tokens[i])
        low = min(low, token)
        high = max(high, token)
        end = token == eos
        out[i] = boundary if end else token
        ends += end
        documents += (not end) & (np.int64(tokens[i - 1]) == eos)
    return low, high, ends, documents


def mark_boundaries(
    tokens: np.ndarray, eos: int | None, boundary: int, inside: bool, out: np.ndarray, *, threads: int | None = None
) -> StreamSummary:
    """Mark as `argap.bigram_index.counting.count_numpy.mark_boundaries` does; ``threads``: all cores by default."""
    if tokens.dtype == np.uint64:
        tokens = tokens.astype(np.int64)  # ids beyond int64 turn negative and are refused
    plain = np.asarray(tokens)  # a plain view of a memory map
    end = NO_TOKEN if eos is None else eos

    def mark_slice(start: int, stop: int) -> StreamSummary:
        continues = inside if start == 0 else int(plain[start - 1]) != end
        summary = _mark_boundaries(plain[start:stop], end, boundary, continues, out[start:stop])
        return StreamSummary(*(int(n) for n in summary))

    pieces = min(threads or available_cores(), -(-len(plain) // TOKENS_PER_THREAD))
    if pieces == 1:
        return mark_slice(0, len(plain))
    edges = np.linspace(0, len(plain), pieces + 1).astype(np.int64).tolist()
    with ThreadPoolExecutor(pieces) as pool:
        summaries = list(pool.map(mark_slice, edges[:-1], edges[1:]))
    low, high, ends, documents = zip(*summaries, strict=True)
    return StreamSummary(min(low), max(high), sum(ends), sum(documents))
