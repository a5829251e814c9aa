"""Count the bigrams of a stream of tokens in plain NumPy: the reference for the compiled functions."""

from typing import NamedTuple

import numpy as np

from argap.bigram_index.counting.sorted_runs import MemoryRun


class StreamSummary(NamedTuple):
    """Counts made by `mark_boundaries`."""

    low: int
    high: int
    ends: int
    """EOS tokens."""
    documents: int
    """Non-empty documents that began."""


def mark_boundaries(tokens: np.ndarray, eos: int | None, boundary: int, inside: bool, out: np.ndarray) -> StreamSummary:
    """Copy ``tokens``, `[N]` of any integer type, N > 0, to ``out``, with ``boundary`` for ``eos``.

    ``inside``: the first token continues a document.
    """
    end = tokens == eos if eos is not None else np.zeros(len(tokens), dtype=bool)
    out[:] = tokens
    out[end] = boundary
    begins = ~end & np.concatenate([[not inside], end[:-1]])
    return StreamSummary(int(tokens.min()), int(tokens.max()), int(end.sum()), int(begins.sum()))


def count_stream(tokens: np.ndarray, vocab_size: int, boundary: int | None = None) -> MemoryRun:
    """Count the adjacent pairs of ``tokens``, `[N]` of an unsigned integer type.

    Pairs with ``boundary``, which marks the end of a document, are not counted. ``boundary`` is an id below
    ``vocab_size`` or ``vocab_size`` itself; every token must be one of these.

    Packs each pair into one integer, sorts, and counts equal neighbours.
    """
    keys = tokens[:-1].astype(np.uint64) * np.uint64(vocab_size + 1) + tokens[1:]
    if boundary is not None:
        keys = keys[(tokens[:-1] != boundary) & (tokens[1:] != boundary)]
    keys, count = np.unique(keys, return_counts=True)
    first, second = np.divmod(keys, np.uint64(vocab_size + 1))
    indptr = np.zeros(vocab_size + 1, dtype=np.int64)
    np.cumsum(np.bincount(first.astype(np.int64), minlength=vocab_size), out=indptr[1:])
    return MemoryRun(indptr, second.astype(tokens.dtype), count.astype(np.uint32))


def merge_rows(indptrs: np.ndarray, second: np.ndarray, count: np.ndarray, vocab_size: int) -> MemoryRun:
    """Add up the same rows of several runs.

    ``indptrs``: `[runs, rows + 1]` int64, positions of each run's rows in ``second`` and ``count``, which are the
    concatenated runs; ``vocab_size``: above every second token. The counts of the result are int64.
    """
    rows = indptrs.shape[1] - 1
    first = np.concatenate([np.repeat(np.arange(rows, dtype=np.uint64), np.diff(p)) for p in indptrs])
    keys = (first << np.uint64(32)) | second
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else order
    summed = np.add.reduceat(count[order].astype(np.int64), starts) if len(keys) else np.empty(0, np.int64)
    keys = keys[starts]
    indptr = np.zeros(rows + 1, dtype=np.int64)
    np.cumsum(np.bincount((keys >> np.uint64(32)).astype(np.int64), minlength=rows), out=indptr[1:])
    return MemoryRun(indptr, (keys & np.uint64(0xFFFFFFFF)).astype(second.dtype), summed)
