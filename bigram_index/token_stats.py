"""Counts of single tokens, from the pass that counts bigrams: ``stats.parquet``, one row a token.

Columns ``token:int32, count:int64, documents:int64``: the token's occurrences inside documents, and the number of
documents that contain it. Every id of the vocabulary has a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from argap.bigram_index.counting.engines import counting
from argap.bigram_index.manifest import REBUILD, StatsFile
from argap.bigram_index.parquet_parts import as_arrow, as_numpy
from argap.errors import ArgapError
from argap.files import checksums
from argap.files.parquet import read_parquet, write_parquet

FILE = "stats.parquet"


@dataclass(frozen=True)
class TokenStats:
    """Counts of single tokens."""

    count: np.ndarray
    """`[vocab]` int64: occurrences inside documents."""
    documents: np.ndarray
    """`[vocab]` int64: documents with at least one occurrence."""


class TokenCounter:
    """Takes a stream in pieces, a boundary (the id ``vocab_size``) after every document."""

    def __init__(self, vocab_size: int) -> None:
        self._count = np.zeros(vocab_size, dtype=np.int64)
        self._documents = np.zeros(vocab_size, dtype=np.int64)
        self._last = np.full(vocab_size, -1, dtype=np.int64)  # the last document with the token
        self._document = 0

    def add(self, tokens: np.ndarray) -> None:
        """Count a piece, `[N]`; a document may continue in the next."""
        count_tokens = counting(len(tokens)).count_tokens
        self._document = count_tokens(tokens, self._document, self._last, self._count, self._documents)

    def result(self) -> TokenStats:
        """The counts so far."""
        return TokenStats(self._count, self._documents)


def write_stats(folder: Path, stats: TokenStats) -> StatsFile:
    """Write ``stats.parquet``; return its entry in the manifest."""
    tokens = np.arange(len(stats.count), dtype=np.int32)
    columns = {"token": tokens, "count": stats.count, "documents": stats.documents}
    write_parquet(folder / FILE, pa.table({name: as_arrow(values) for name, values in columns.items()}))
    sums = checksums.checksums_of(folder / FILE)
    return StatsFile(FILE, sums.bytes, sums.crc32)


def read_stats(folder: Path, entry: StatsFile | None) -> TokenStats:
    """Read them back. Raises `ArgapError` where there are none, `FormatError` for a damaged file."""
    if entry is None:
        raise ArgapError(f"{folder}: has no counts of single tokens; build it again with `stats=True`")
    checksums.check(folder / FILE, entry, REBUILD)
    table = read_parquet(folder / FILE, ["count", "documents"], remedy=REBUILD)
    return TokenStats(as_numpy(table["count"]), as_numpy(table["documents"]))


def sum_stats(stats: Sequence[TokenStats], weights: Sequence[float] | None = None) -> TokenStats:
    """The stats of several indexes, each of documents of its own, added up.

    ``weights``: one for each, by which the occurrences, not the documents, are multiplied; the sum is rounded, half to
    even.
    """
    count = np.sum([each.count for each in stats], axis=0)
    if weights is not None:
        count = weighted_sum([each.count for each in stats], weights)
    return TokenStats(count, np.sum([each.documents for each in stats], axis=0))


def weighted_sum(counts: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """``sum(weight * count)`` in float64, rounded half to even, int64. The order of the terms does not matter.

    Raises `ArgapError` where that is 2⁶³ or more.
    """
    total = np.zeros(counts[0].shape)
    for weight in sorted(set(weights)):
        total += weight * np.sum([c for c, w in zip(counts, weights, strict=True) if w == weight], axis=0)
    if total.max() >= 2.0**63:
        raise ArgapError(f"`weights`: a count of {total.max():.3g} exposures; expected less than 2⁶³")
    return np.rint(total).astype(np.int64)
