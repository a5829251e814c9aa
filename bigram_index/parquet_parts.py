"""The Parquet parts of an index: ``first:int32, second:int32, count:int64``, sorted by (first, second).

DuckDB, Polars and pandas read them directly. Parts and row groups are cut at fixed row numbers, so equal counts give
equal bytes, however they were counted.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from argap.bigram_index.counting.sorted_runs import Rows
from argap.bigram_index.manifest import REBUILD, Part
from argap.errors import FormatError, is_short_of_threads
from argap.files import checksums
from argap.files.regular import for_pyarrow
from argap.runtime.threads import map_ahead

SCHEMA = pa.schema([("first", pa.int32()), ("second", pa.int32()), ("count", pa.int64())])
PART_ROWS = 2**21
GROUP_ROWS = 2**18  # rows of a row group: the unit that readers skip and that a merge reads from each index

WRITERS = 8
"""Parts written at once, 32 MB of rows each."""

# The smallest of the encodings tried on 3.4 M bigrams of English text: 1.8 bytes per bigram. The first token
# rarely changes (runs of zero deltas); the bytes of the other columns compress best plane by plane. Level 14 takes
# 6% less space and four times as long, longer than counting 100 M tokens does.
WRITING = {
    "compression": "zstd",
    "compression_level": 9,
    "use_dictionary": False,
    "column_encoding": {
        "first": "DELTA_BINARY_PACKED",
        "second": "BYTE_STREAM_SPLIT",
        "count": "BYTE_STREAM_SPLIT",
    },
}


def write_parts(folder: Path, rows: Iterable[Rows]) -> tuple[list[Part], int]:
    """Write the rows of an index; return the manifest's list of parts and the sum of all counts.

    Compression takes longer than counting, so threads write parts while ``rows`` produces the next ones.
    """
    groups = _groups(rows)
    by_part = enumerate(iter(lambda: list(islice(groups, PART_ROWS // GROUP_ROWS)), []))
    written = list(
        map_ahead(lambda part: _write_part(folder / f"part-{part[0]:05d}.parquet", part[1]), by_part, WRITERS)
    )
    return [part for part, _ in written], sum(bigrams for _, bigrams in written)


def _write_part(path: Path, groups: list[pa.Table]) -> tuple[Part, int]:
    """Write one part; return it and the sum of its counts."""
    with pq.ParquetWriter(for_pyarrow(path), SCHEMA, **WRITING) as writer:
        for group in groups:
            writer.write_table(group, row_group_size=GROUP_ROWS)
    bigrams = sum(int(np.sum(as_numpy(group["count"]))) for group in groups)
    return _describe(path, sum(len(group) for group in groups)), bigrams


def _describe(path: Path, rows: int) -> Part:
    sums = checksums.checksums_of(path)
    return Part(path.name, rows, sums.bytes, sums.crc32)


def as_arrow(values: np.ndarray) -> pa.Array:
    """Return `[N]` integers as an Arrow array, without a copy.

    `pyarrow.array` does the same but imports pandas first.
    """
    values = np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)])


def as_numpy(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of integers without nulls, `[N]`.

    `ChunkedArray.to_numpy` does the same but imports pandas first.
    """
    chunks = [np.from_dlpack(chunk) for chunk in column.chunks]
    return np.concatenate(chunks) if chunks else np.empty(0, column.type.to_pandas_dtype())


def _groups(rows: Iterable[Rows]) -> Iterator[pa.Table]:
    """Regroup ``rows`` into tables of exactly `GROUP_ROWS` rows; the last may be shorter."""
    waiting: list[pa.Table] = []
    ready = 0
    for start, indptr, second, count in rows:
        first = np.repeat(np.arange(start, start + len(indptr) - 1, dtype=np.int32), np.diff(indptr))
        columns = [first, second.astype(np.int32), count.astype(np.int64)]
        table = pa.Table.from_arrays([as_arrow(c) for c in columns], schema=SCHEMA)
        waiting.append(table)
        ready += len(table)
        if ready >= GROUP_ROWS:
            whole = pa.concat_tables(waiting)
            for at in range(0, ready - GROUP_ROWS + 1, GROUP_ROWS):
                yield whole.slice(at, GROUP_ROWS).combine_chunks()
            waiting = [whole.slice(ready - ready % GROUP_ROWS)]
            ready %= GROUP_ROWS
    if ready:
        yield pa.concat_tables(waiting).combine_chunks()


class ParquetRun:
    """The parts of an index as a sorted run for the k-way merge, read one row group at a time.

    Raises `FormatError` naming the damaged part. Checksums say that a file is as its writer left it, not that argap was
    the writer, so ids, counts and order are checked where they are read. ``bigrams``: the sum of all counts.
    """

    def __init__(self, folder: Path, parts: Sequence[Part], vocab_size: int, bigrams: int) -> None:
        self._vocab_size, self._bigrams = vocab_size, bigrams
        files = [(folder / part.file, open_part(folder / part.file, part)) for part in parts]
        self._groups = [(path, f, g) for path, f in files for g in range(f.metadata.num_row_groups)]
        sizes = [f.metadata.row_group(g).num_rows for _, f, g in self._groups]
        self._starts = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
        self._cached: tuple[int, np.ndarray, np.ndarray] | None = None
        rows = np.zeros(vocab_size, dtype=np.int64)
        last = 0
        for number in range(len(self._groups)):
            (first,) = self._read_group(number, "first")
            if len(first) == 0:
                continue
            if first[0] < last or (first[1:] < first[:-1]).any():
                raise self._refused(number, "rows out of order")
            last = first[-1]
            rows += np.bincount(first, minlength=vocab_size)
        self.indptr = np.concatenate([[0], np.cumsum(rows)])

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Read the second tokens (uint32) and counts (int64) of rows ``start:stop`` of the parts."""
        seconds, counts = [np.empty(0, np.uint32)], [np.empty(0, np.int64)]
        number = int(np.searchsorted(self._starts, start, side="right")) - 1
        while start < stop:
            if self._cached is None or self._cached[0] != number:
                second, count = self._read_group(number, "second", "count")
                self._check_rows(number, second, count)
                self._cached = (number, second.astype(np.uint32), count)
            offset = self._starts[number]
            here = slice(start - offset, stop - offset)
            seconds.append(self._cached[1][here])
            counts.append(self._cached[2][here])
            number += 1
            start = int(self._starts[number])
        return np.concatenate(seconds), np.concatenate(counts)

    def largest_count(self) -> int:
        """Return the largest count, from the statistics of the row groups, or what none can exceed."""
        return min(self._bigrams, max(map(self._largest_of, range(len(self._groups))), default=0))

    def _largest_of(self, number: int) -> int:
        _, file, group = self._groups[number]
        found = file.metadata.row_group(group).column(2).statistics
        return self._bigrams if found is None or not found.has_min_max else found.max

    def _check_rows(self, number: int, second: np.ndarray, count: np.ndarray) -> None:
        """Raise `FormatError` unless a row group's counts are positive and the second tokens of each row ascend."""
        if count.min(initial=1) < 1:
            raise self._refused(number, f"a count of {count.min()}")
        if count.max(initial=1) > (most := min(self._bigrams, self._largest_of(number))):
            raise self._refused(number, f"a count of {count.max():,}, more than the {most:,} that are recorded")
        falls = np.flatnonzero(second[1:] <= second[:-1]) + 1 + self._starts[number]
        if not np.isin(falls, self.indptr).all():
            raise self._refused(number, "rows out of order")

    def _refused(self, number: int, found: str) -> FormatError:
        return FormatError(f"{self._groups[number][0]}: {found}; {REBUILD}")

    def _read_group(self, number: int, *columns: str) -> list[np.ndarray]:
        path, file, group = self._groups[number]
        try:
            table = file.read_row_group(group, columns=list(columns))
        except (OSError, pa.ArrowException) as error:
            if is_short_of_threads(error):
                raise
            raise FormatError(f"{path}: row group {group} is damaged ({error}); {REBUILD}") from error
        if missing := [column for column in columns if table[column].null_count]:
            raise self._refused(number, f"{missing[0]} is null in a row")
        values = [as_numpy(table[column]) for column in columns]
        for column, ids in zip(columns, values, strict=True):
            if column != "count" and not 0 <= ids.min(initial=0) <= ids.max(initial=0) < self._vocab_size:
                raise self._refused(number, f"tokens outside 0..{self._vocab_size - 1}")
        return values


def open_part(path: Path, part: Part) -> pq.ParquetFile:
    """Open one part after checking its checksums, columns and rows. Raises `FormatError` naming the file."""
    checksums.check(path, part, REBUILD)
    try:
        file = pq.ParquetFile(for_pyarrow(path))
    except (OSError, pa.ArrowException) as error:
        raise FormatError(f"{path}: not readable as Parquet ({error}); {REBUILD}") from error
    if file.schema_arrow != SCHEMA:
        found, expected = (", ".join(f"{each.name} {each.type}" for each in of) for of in (file.schema_arrow, SCHEMA))
        raise FormatError(f"{path}: its columns are {found[:300]}; expected {expected}; {REBUILD}")
    if (rows := file.metadata.num_rows) != part.rows:
        raise FormatError(f"{path}: {rows:,} rows, where index.json records {part.rows:,}; {REBUILD}")
    return file
