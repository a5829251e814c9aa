"""Counting and looking up with numba, or with NumPy and SciPy: the same results from either.

Loading numba takes longer than small work does in NumPy, so it is loaded after the first `SMALL` tokens or pairs of a
process; it may also be missing, because numba follows a new Python some months late.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

from argap.bigram_index import count_numpy, csr
from argap.bigram_index.count_numpy import StreamSummary
from argap.bigram_index.sorted_runs import MemoryRun

SMALL = 2**20
"""Tokens or pairs that NumPy handles in 0.3 s; loading numba takes 0.45 to 0.75 s."""

_handled = 0


def has_numba() -> bool:
    """Whether numba is installed; it is not imported."""
    try:
        return find_spec("numba") is not None
    except ValueError:  # sys.modules["numba"] is None
        return False


def scratch_bytes() -> int:
    """Peak bytes for each token of a chunk whose bigrams are all distinct, without three times the token itself (the
    stream, the scattered stream, the run)."""
    return 12 if has_numba() else 40


def count_stream(tokens: np.ndarray, vocab_size: int, boundary: int | None = None) -> MemoryRun:
    """`argap.bigram_index.count_numpy.count_stream` by the engine that is quickest here."""
    if not _compiled(len(tokens)):
        small = len(tokens) <= SMALL
        return (count_numpy.count_stream if small else count_numpy.count_stream_scipy)(tokens, vocab_size, boundary)
    return _numba("count").count_stream(tokens, vocab_size, boundary)


def merge_rows(indptrs: np.ndarray, second: np.ndarray, count: np.ndarray, vocab_size: int) -> MemoryRun:
    """`argap.bigram_index.count_numpy.merge_rows` by the engine that is quickest here."""
    module = _numba("count") if _compiled(len(second)) else count_numpy
    return module.merge_rows(indptrs, second, count, vocab_size)


def mark_boundaries(tokens: np.ndarray, eos: int | None, boundary: int, inside: bool, out: np.ndarray) -> StreamSummary:
    """`argap.bigram_index.count_numpy.mark_boundaries` by the engine that is quickest here."""
    module = _numba("count") if _compiled(len(tokens)) else count_numpy
    return module.mark_boundaries(tokens, eos, boundary, inside, out)


def count_tokens(tokens: np.ndarray, document: int, last: np.ndarray, count: np.ndarray, documents: np.ndarray) -> int:
    """`argap.bigram_index.count_numpy.count_tokens` by the engine that is quickest here."""
    module = _numba("count") if _compiled(len(tokens)) else count_numpy
    return module.count_tokens(tokens, document, last, count, documents)


def count_pairs(table: csr.Csr, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """`argap.bigram_index.csr.count_pairs` by the engine that is quickest here."""
    if not _compiled(len(first)):
        return csr.count_pairs(table, first, second)
    return _numba("lookup").count_pairs(table, first, second)


def _compiled(size: int) -> bool:
    """Whether numba does the next work, on ``size`` tokens or pairs."""
    global _handled
    _handled += size
    return _handled > SMALL and has_numba()


def _numba(what: str) -> Any:
    return import_module(f"argap.bigram_index.{what}_numba")
