"""The files of several runs and of their labels, read in lockstep: the same tokens of each, some windows at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from argap.errors import FormatError
from argap.parquet import check_columns, read_parquet
from argap.runs import SCHEMA, token_parts

REMEDY = "repeat its `argap score` command"
KEYS = ["window", "pos"]


@dataclass(frozen=True)
class Rows:
    """Some windows, position 0 included. Legend: N tokens."""

    labels: pa.Table
    runs: tuple[pa.Table, ...]
    """Of each run, the columns that were asked for."""

    @cached_property
    def window(self) -> np.ndarray:
        """int32 ``[N]``."""
        return self.labels["window"].to_numpy()

    @cached_property
    def pos(self) -> np.ndarray:
        """int32 ``[N]``."""
        return self.labels["pos"].to_numpy()

    @cached_property
    def tokens(self) -> np.ndarray:
        """int32 ``[N]``: ids, where they were asked for."""
        return self.runs[0]["token"].to_numpy()


def read_rows(
    runs: Sequence[Path], labels: Path, *, of_runs: Sequence[Sequence[str]], of_labels: Sequence[str]
) -> Iterator[Rows]:
    """The rows of run folders and of a folder of labels, a part of the first run at a time: whole windows.

    ``of_runs``, ``of_labels``: the columns wanted of each. Raises `FormatError` naming the file that is broken, or
    whose rows are not the same tokens.
    """
    parts = token_parts(runs[0])
    described = _Reader(labels, [labels / "labels.parquet"], [*KEYS, *of_labels])
    others = [_Reader(run, token_parts(run), [*KEYS, *names]) for run, names in zip(runs[1:], of_runs[1:], strict=True)]
    for path in parts:
        columns = [*KEYS, *of_runs[0]]
        first = read_parquet(path, columns, schema=SCHEMA, remedy=f"remove it and {REMEDY}").combine_chunks()
        if len(first) and first["pos"][0].as_py() != 0:
            raise FormatError(f"{path}: begins inside a window; expected whole windows; remove it and {REMEDY}")
        taken = [reader.take(first) for reader in (described, *others)]
        if len(first):
            yield Rows(taken[0], (first, *taken[1:]))
    for reader in (described, *others):
        reader.expect_end()


class _Reader:
    """Consecutive rows of some Parquet files, in portions of any size."""

    def __init__(self, folder: Path, files: Sequence[Path], columns: Sequence[str]) -> None:
        self._folder = folder
        self._batches = self._read(files, list(columns))
        self._left: list[pa.RecordBatch] = []

    def _read(self, files: Sequence[Path], columns: list[str]) -> Iterator[pa.RecordBatch]:
        for path in files:
            try:
                with pq.ParquetFile(path, page_checksum_verification=True) as file:
                    check_columns(path, file.schema_arrow.names, columns, remedy=REMEDY)
                    yield from file.iter_batches(2**17, columns=columns)
            except (OSError, KeyError, ValueError, pa.ArrowException) as error:
                reason = str(error).splitlines()[0]
                raise FormatError(f"{path}: not a complete Parquet file ({reason}); {REMEDY}") from error

    def take(self, like: pa.Table) -> pa.Table:
        """The next rows, as many as ``like`` has, and the same windows and positions: else a `FormatError`."""
        rows = sum(batch.num_rows for batch in self._left)
        while rows < len(like) and (batch := next(self._batches, None)) is not None:
            self._left.append(batch)
            rows += batch.num_rows
        if rows < len(like):
            raise FormatError(f"{self._folder}: fewer rows than the runs beside it; {REMEDY}")
        if not len(like):
            return like
        table = pa.Table.from_batches(self._left)
        rest, table = table.slice(len(like)), table.slice(0, len(like)).unify_dictionaries().combine_chunks()
        self._left = rest.to_batches()
        for name in KEYS:
            if not table[name].equals(like[name]):
                raise FormatError(
                    f"{self._folder}: its rows are other tokens than those of the runs beside it; {REMEDY}"
                )
        return table

    def expect_end(self) -> None:
        """Raise `FormatError` where rows are left."""
        if any(batch.num_rows for batch in self._left) or next(self._batches, None) is not None:
            raise FormatError(f"{self._folder}: more rows than the runs beside it; {REMEDY}")
