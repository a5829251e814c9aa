"""Sorted runs: the bigram counts of one chunk of tokens in compressed sparse rows.

Row ``f`` of a run holds the bigrams that begin with token ``f``: their second tokens, ascending, and their counts. No
bigram needs a key, and any range of rows can be read alone, as a k-way merge does.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np


class Rows(NamedTuple):
    """Consecutive rows of a run, from row ``start`` on."""

    start: int
    indptr: np.ndarray
    """`[rows + 1]` int64: row ``start + r`` lies at ``indptr[r]:indptr[r + 1]``."""
    seconds: np.ndarray
    """`[entries]`, an unsigned integer type, ascending within each row."""
    counts: np.ndarray
    """`[entries]`, an integer type, at least 1."""


class Run(Protocol):
    """Bigrams sorted by (first, second) that can be read by position."""

    @property
    def indptr(self) -> np.ndarray:
        """`[vocab + 1]` int64."""
        ...

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Read the second tokens and counts of entries ``start:stop``."""
        ...


@dataclass(frozen=True)
class MemoryRun:
    """A run in memory."""

    indptr: np.ndarray
    second: np.ndarray
    count: np.ndarray

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return views, not copies."""
        return self.second[start:stop], self.count[start:stop]


class FileRun:
    """A run spilled to disk. It is read, not mapped: mapped pages would count towards the process's memory."""

    def __init__(self, folder: Path, indptr: np.ndarray, second: np.dtype, count: np.dtype) -> None:
        self.indptr = indptr
        self._second = (folder / "second", second)
        self._count = (folder / "count", count)

    def read(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Read into new arrays."""
        (second, second_type), (count, count_type) = self._second, self._count
        return (
            np.fromfile(second, second_type, stop - start, offset=start * second_type.itemsize),
            np.fromfile(count, count_type, stop - start, offset=start * count_type.itemsize),
        )


def spill(run: MemoryRun, folder: Path) -> FileRun:
    """Write ``run`` below ``folder`` and return the run on disk."""
    folder.mkdir(parents=True)
    write_array(run.second, folder / "second")
    write_array(run.count, folder / "count")
    return FileRun(folder, run.indptr, run.second.dtype, run.count.dtype)


def write_array(array: np.ndarray, path: Path) -> None:
    """Write the bytes of an array. `ndarray.tofile` does not see errors on closing: a full disk cuts its file short."""
    with path.open("wb") as file:
        file.write(np.ascontiguousarray(array).data)


def row_ranges(indptr: np.ndarray, entries: int) -> list[tuple[int, int]]:
    """Cut the rows of ``indptr`` into ranges of at most ``entries`` entries, or of one row."""
    ranges = []
    start, rows = 0, len(indptr) - 1
    while start < rows:
        stop = int(np.searchsorted(indptr, indptr[start] + entries, side="right")) - 1
        stop = min(max(stop, start + 1), rows)
        if indptr[stop] > indptr[start]:
            ranges.append((start, stop))
        start = stop
    return ranges
