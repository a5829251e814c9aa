"""Single passes over a stream of tokens, compiled: copying it, checked, and counting its tokens."""

from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np

from argap.bigram_index.cores import available_cores
from argap.bigram_index.count_reference import Gathered

NO_TOKEN = -(2**63)
A_THREAD = 2**18
"""Tokens for which a thread of its own pays."""


@numba.njit(nogil=True, cache=True, boundscheck=False)
def _gather(tokens, eos, boundary, inside, out):
    token = np.int64(tokens[0])
    low = high = token
    ends = np.int64(token == eos)
    documents = np.int64(token != eos and not inside)
    out[0] = boundary if token == eos else token
    for i in range(1, len(tokens)):  # without a branch, so that it is done in vectors
        token = np.int64(tokens[i])
        low = min(low, token)
        high = max(high, token)
        end = token == eos
        out[i] = boundary if end else token
        ends += end
        documents += (not end) & (np.int64(tokens[i - 1]) == eos)
    return low, high, ends, documents


def gather(
    tokens: np.ndarray, eos: int | None, boundary: int, inside: bool, out: np.ndarray, *, threads: int | None = None
) -> Gathered:
    """What `argap.bigram_index.count_reference.gather` does. ``threads``: all cores by default."""
    if tokens.dtype == np.uint64:
        tokens = tokens.astype(np.int64)  # beyond int64 turns negative, and is refused as that
    plain = np.asarray(tokens)  # of a memory map, a plain view
    end = NO_TOKEN if eos is None else eos

    def gather_slice(start: int, stop: int) -> Gathered:
        goes_on = inside if start == 0 else int(plain[start - 1]) != end
        found = _gather(plain[start:stop], end, boundary, goes_on, out[start:stop])
        return Gathered(*(int(n) for n in found))

    pieces = min(threads or available_cores(), -(-len(plain) // A_THREAD))
    if pieces == 1:
        return gather_slice(0, len(plain))
    edges = np.linspace(0, len(plain), pieces + 1).astype(np.int64).tolist()
    with ThreadPoolExecutor(pieces) as pool:
        found = list(pool.map(gather_slice, edges[:-1], edges[1:]))
    low, high, ends, documents = zip(*found, strict=True)
    return Gathered(min(low), max(high), sum(ends), sum(documents))


@numba.njit(nogil=True, cache=True, boundscheck=False)
def tally(tokens, document, last, count, documents):
    """What `argap.bigram_index.count_reference.tally` does."""
    for i in range(len(tokens)):
        token = tokens[i]
        if token == len(count):
            document += 1
            continue
        count[token] += 1
        if last[token] != document:
            last[token] = document
            documents[token] += 1
    return document
