"""Read the files of several runs and their labels in lockstep, in portions of whole windows."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from argap.errors import FormatError
from argap.files.checksums import are_recorded, checked
from argap.files.parquet import count_rows, read_portions
from argap.files.remedies import SCORED
from argap.runtime.threads import lazy, read_ahead
from argap.tokens.runs import check_scores, token_parts
from argap.tokens.weights import weights_of

KEYS = ["window", "pos"]
ROWS = 2**17
"""Rows of one read."""
GAP = 2**14
"""Tokens that are cheaper to read than to cut out."""


@dataclass(frozen=True)
class Rows:
    """Rows of whole windows, including position 0. Legend: N tokens."""

    labels: pa.Table
    runs: Sequence[pa.Table]
    """The columns requested from each run."""
    start: int = 0
    """Tokens of the evaluation set before these."""
    later: Sequence[Callable[[Sequence[str]], pa.Table]] = ()
    """Functions that read columns requested for later from each run."""

    @lazy
    def window(self) -> np.ndarray:
        """int32 ``[N]``."""
        return self.labels["window"].to_numpy()

    @lazy
    def pos(self) -> np.ndarray:
        """int32 ``[N]``."""
        return self.labels["pos"].to_numpy()

    @lazy
    def weight(self) -> np.ndarray:
        """int32 ``[N]``: what a row counts (`argap.tokens.weights.weights`)."""
        return weights_of(self.labels)

    @lazy
    def tokens(self) -> np.ndarray:
        """Return the ids, int32 ``[N]``, if they were requested."""
        return self.runs[0]["token"].to_numpy()

    def among(self, wanted: np.ndarray) -> Iterator["Rows"]:
        """Yield the stretches that begin and end with a wanted window (bool ``[W]``, by window).

        Stretches less than `GAP` tokens apart are merged, with the windows between them.
        """
        starts = np.flatnonzero(self.pos == 0)
        held = wanted[self.window[starts]]
        if held.all() or not held.any():
            yield from [self] if held.all() else []
            return
        changes = np.append(starts, len(self.pos))[np.flatnonzero(np.diff(held, prepend=False, append=False))]
        firsts, ends = changes[::2], changes[1::2]
        apart = firsts[1:] - ends[:-1] >= GAP
        for first, end in zip(firsts[np.append(True, apart)], ends[np.append(apart, True)], strict=True):
            yield Rows(
                self.labels.slice(first, end - first),
                _Deferred([partial(self._slice, k, int(first), int(end - first)) for k in range(len(self.runs))]),
                self.start + int(first),
            )

    def _slice(self, run: int, first: int, count: int) -> pa.Table:
        return self.runs[run].slice(first, count)


class _Deferred(Sequence[pa.Table]):
    """Tables read on first access, by the thread that uses them."""

    def __init__(self, reads: list[Callable[[], pa.Table]]) -> None:
        self._reads = reads
        self._tables: dict[int, pa.Table] = {}

    def append(self, read: Callable[[], pa.Table]) -> None:
        self._reads.append(read)

    def __len__(self) -> int:
        return len(self._reads)

    def __getitem__(self, k: int) -> pa.Table:  # pyright: ignore[reportIncompatibleMethodOverride]
        if k not in self._tables:
            self._tables[k] = self._reads[k]()
        return self._tables[k]


def read_rows(
    runs: Sequence[Path],
    labels: Path,
    *,
    of_runs: Sequence[Sequence[str]],
    of_labels: Sequence[str],
    later: Sequence[str] = (),
) -> Generator[Rows, None, None]:
    """Yield the rows of runs and their labels, whole windows, one part of the first run at a time.

    ``of_runs``, ``of_labels``: the columns to read from each; ``later``: columns of runs that are seldom used, and read
    only then (`Rows.later`). Raises `FormatError`, naming a file that is damaged or
    holds other tokens. Files with recorded checksums were written from one evaluation set; without checksums, the keys
    of every row are compared.
    """
    parts = [token_parts(run) for run in runs]
    described = [labels / "labels.parquet"]
    known = are_recorded(labels, described) and all(map(are_recorded, runs, parts))
    readers = [
        _Parts(run, files, [*(() if known and names else KEYS), *names], later, checked_whole=known)
        for run, files, names in zip(runs, parts, of_runs, strict=True)
    ]
    described_by = _Reader(labels, described, [*KEYS, *of_labels], checked_whole=known)
    start = 0
    for path in parts[0]:
        count = count_rows(path)
        if not count:
            continue
        reads: list[Callable[[Sequence[str]], pa.Table]] = []
        tables = _Deferred([])
        for reader in readers:
            reads.append(reader.take(count, None if known or not reads else tables[0]))
            tables.append(partial(reads[-1], reader.columns))
        of_all = described_by.take(count, None if known else tables[0])
        if of_all["pos"][0].as_py() != 0:
            raise FormatError(f"{path}: begins inside a window; expected whole windows; remove it and {SCORED}")
        rows = Rows(of_all, _Deferred([]), start)
        checked = [partial(_scores, rows, run, read) for run, read in zip(runs, reads, strict=True)]
        tables = _Deferred([partial(read, reader.columns) for read, reader in zip(checked, readers, strict=True)])
        yield Rows(of_all, tables, start, checked)
        start += count
    for reader in (*readers, described_by):
        reader.expect_end()


def _scores(rows: Rows, run: Path, read: Callable[[Sequence[str]], pa.Table], columns: Sequence[str]) -> pa.Table:
    """Read columns of a run and check those of its scores, by what the labels say is scored."""
    table = read(columns)
    check_scores(run, table, rows.weight > 0, rows.start)
    return table


class _Parts:
    """Consecutive rows of the parts of a run; each part is read by the thread that uses it.

    Parts should hold as many rows as the first run's; from the first that does not, a `_Reader` reads them in order.
    """

    def __init__(
        self, folder: Path, files: Sequence[Path], columns: Sequence[str], later: Sequence[str], *, checked_whole: bool
    ) -> None:
        self._folder, self.columns, self._all = folder, columns, [*columns, *later]
        self._files = deque(files)
        self._checked = checked(folder, files)
        self._rest = None if checked_whole else _Reader(folder, files, self._all, checked_whole=False)

    def take(self, count: int, like: pa.Table | None) -> Callable[[Sequence[str]], pa.Table]:
        """Return a function that reads columns of the next ``count`` rows; see `_Reader.take`."""
        if self._rest is None and self._files and count_rows(next(self._checked)) == count:
            return partial(self._read, self._files.popleft())
        if self._rest is None:
            self._rest = _Reader(self._folder, self._files, self._all, checked_whole=True)
        return self._rest.take(count, like).select

    def _read(self, path: Path, columns: Sequence[str]) -> pa.Table:
        tables = read_portions(path, columns, rows=ROWS, threads=False, pages=False)
        return pa.concat_tables(tables).combine_chunks()

    def expect_end(self) -> None:
        """Raise `FormatError` if rows are left."""
        (self._rest or _Reader(self._folder, self._files, self._all, checked_whole=True)).expect_end()


class _Reader:
    """Consecutive rows of Parquet files, in portions of any size."""

    def __init__(self, folder: Path, files: Sequence[Path], columns: Sequence[str], *, checked_whole: bool) -> None:
        self._folder = folder
        self._tables = read_ahead(_read(folder, files, list(columns), pages=not checked_whole), 2)
        self._left: list[pa.Table] = []

    def take(self, count: int, like: pa.Table | None = None) -> pa.Table:
        """Return the next ``count`` rows. Raises `FormatError` unless windows and positions equal those of ``like``."""
        rows = sum(map(len, self._left))
        while rows < count and (table := next(self._tables, None)) is not None:
            self._left.append(table)
            rows += len(table)
        if rows < count:
            raise FormatError(f"{self._folder}: fewer rows than the runs beside it; {SCORED}")
        table = self._left[0] if len(self._left) == 1 else pa.concat_tables(self._left)
        self._left = [table.slice(count)] if rows > count else []
        table = table.slice(0, count).unify_dictionaries().combine_chunks()
        if like is not None and not all(table[name].equals(like[name]) for name in KEYS):
            raise FormatError(f"{self._folder}: its rows are other tokens than those of the runs beside it; {SCORED}")
        return table

    def expect_end(self) -> None:
        """Raise `FormatError` if rows are left."""
        if any(map(len, self._left)) or any(map(len, self._tables)):
            raise FormatError(f"{self._folder}: more rows than the runs beside it; {SCORED}")


def _read(folder: Path, files: Sequence[Path], columns: list[str], *, pages: bool) -> Iterator[pa.Table]:
    """Yield files in portions small enough for a CPU cache, after checking their checksums.

    ``pages``: also check the checksums of pages.
    """
    for path in checked(folder, files):
        yield from read_portions(path, columns, rows=ROWS, threads=False, pages=pages)
