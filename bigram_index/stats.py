"""Counts of single tokens, from the pass that counts bigrams: ``stats.parquet``, one row a token.

Columns ``token:int32, count:int64, documents:int64``: how often the token occurs inside documents, and in
how many of them. Every id of the vocabulary has a row.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from argap.bigram_index import checksum
from argap.bigram_index.engine import tally
from argap.bigram_index.manifest import REBUILD
from argap.errors import ArgapError, FormatError

if TYPE_CHECKING:
    from argap.bigram_index.store import BigramIndex

FILE = "stats.parquet"


@dataclass(frozen=True)
class TokenStats:
    """Counts of single tokens."""

    count: np.ndarray
    """`[vocab]` int64: occurrences inside documents."""
    documents: np.ndarray
    """`[vocab]` int64: documents with at least one occurrence."""


class TokenCounter:
    """Takes a stream in pieces, a boundary (the id ``vocab_size``) behind every document."""

    def __init__(self, vocab_size: int) -> None:
        self._count = np.zeros(vocab_size, dtype=np.int64)
        self._documents = np.zeros(vocab_size, dtype=np.int64)
        self._last = np.full(vocab_size, -1, dtype=np.int64)  # the last document that had the token
        self._document = 0

    def add(self, tokens: np.ndarray) -> None:
        """Count a piece, `[N]`; a document may go on in the next."""
        self._document = tally(tokens, self._document, self._last, self._count, self._documents)

    def result(self) -> TokenStats:
        """The counts so far."""
        return TokenStats(self._count, self._documents)


def write_stats(folder: Path, stats: TokenStats) -> dict[str, Any]:
    """Write ``stats.parquet``; return its entry in the manifest."""
    columns = {"token": np.arange(len(stats.count), dtype=np.int32), "count": stats.count, "documents": stats.documents}
    pq.write_table(pa.table(columns), folder / FILE, compression="zstd")
    return {"file": FILE, **checksum.describe(folder / FILE)}


def read_stats(folder: Path, entry: dict[str, Any]) -> TokenStats:
    """Read them back. Raises `ArgapError` where there are none, `FormatError` for a damaged file."""
    if not entry:
        raise ArgapError(f"{folder}: counted without single tokens; build it again with --stats")
    checksum.check(folder / FILE, entry, REBUILD)
    try:
        table = pq.read_table(folder / FILE)
    except (OSError, pa.ArrowException) as error:
        raise FormatError(f"{folder / FILE}: not readable as Parquet ({error}); {REBUILD}") from error
    return TokenStats(table["count"].to_numpy(), table["documents"].to_numpy())


def sum_stats(indexes: "Iterable[BigramIndex]") -> TokenStats:
    """Of indexes with documents of their own each: both counts add up."""
    both = [index.stats for index in indexes]
    return TokenStats(
        np.sum([stats.count for stats in both], axis=0), np.sum([stats.documents for stats in both], axis=0)
    )
