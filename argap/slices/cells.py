"""Cells: the sums from which every table, figure and interval is rebuilt without the tokens.

One row for each (document, window, domain, repeated, frequency bin, distance bin, position bin) that holds a scored
token, with its number of tokens and the sum of log p of each model (float64). Without training counts there is no
frequency. The file has the bounds of the bins beside their numbers, so that it can be read alone. Where the unit is the
byte, a row counts the bytes of segments (`argap.tokens.labels.Labels.shown` says which labels a segment has).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pyarrow as pa

from argap.errors import FormatError, first_line
from argap.files.checksums import check_files
from argap.files.parquet import ParquetPortions, read_frame, read_portions, read_schema
from argap.metric.bins import distance_bins, frequency_bins, position_bins
from argap.records import Bins
from argap.tokens.labels import Labels

KEYS = ["document", "window", "domain", "repeated", "frequency", "distance", "position"]
BINNED = ("frequency", "distance", "position")
BOUNDS = {f"{name}_{end}" for name in BINNED for end in ("low", "high")}
PREFIX = "logprob/"
REMEDY = "run the command that wrote it again: `argap score`, `argap compare` or `argap suite table`"


def build_cells(labels: Labels, logprobs: dict[str, np.ndarray], threshold: int | None) -> pd.DataFrame:
    """The cells of some models' log-probs (each float32 ``[N]``, in the order of ``labels``).

    Cells of different windows are apart, so that those of portions of whole windows are together those of all.
    """
    seq_len = labels.record.evaluation.seq_len
    rows, shown = np.flatnonzero(labels.weight), labels.shown
    window = labels.window[shown]
    keys = {
        "document": labels.document_of_window[window].astype(np.int32),
        "window": window.astype(np.int32),
        "domain": labels.domain[shown].astype(np.int32),
        "repeated": labels.repeated[shown],
        "frequency": None,
        "distance": distance_bins(seq_len).index(labels.distance[shown]),
        "position": position_bins(seq_len).index(labels.position[shown]),
    }
    if labels.train_count is not None and threshold is not None:
        keys["frequency"] = frequency_bins(threshold).index(labels.train_count[shown])
    keys = {name: values for name, values in keys.items() if values is not None}
    order, starts = _groups(list(keys.values()))
    columns: dict[str, Any] = {name: values[order[starts]] for name, values in keys.items()}
    columns["domain"] = pd.Categorical.from_codes(columns["domain"], pd.Index(labels.domains, dtype="str"))
    columns["n"] = np.add.reduceat(labels.weight[rows][order], starts)
    for model, values in logprobs.items():
        columns[PREFIX + model] = np.add.reduceat(values[rows].astype(np.float64)[order], starts)
    return pd.DataFrame(columns)


def _groups(keys: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """A stable order of the rows by ``keys``, and where in it each combination starts."""
    code = np.zeros(len(keys[0]), dtype=np.int64)
    for values in keys:
        low = int(values.min(initial=0))
        code = code * (int(values.max(initial=0)) - low + 1) + (values - low)
    order = np.argsort(code, kind="stable")
    return order, np.flatnonzero(np.diff(code[order], prepend=-1))


def sum_by(frame: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """The sums of all other columns over each group, in the order of ``by``, which stay columns."""
    return cast(pd.DataFrame, frame.groupby(by, sort=True, observed=True).sum()).reset_index()


def models_of(cells: "pd.DataFrame | CellFile") -> list[str]:
    """The models whose sums the cells hold, in order."""
    return [c.removeprefix(PREFIX) for c in cells.columns if c.startswith(PREFIX)]


def with_models(cells: pd.DataFrame, models: Sequence[str]) -> pd.DataFrame:
    """The columns of ``models`` alone, beside the keys and ``n``."""
    return cells.drop(columns=[PREFIX + model for model in models_of(cells) if model not in models])


def parts_of(cells: "pd.DataFrame | CellFile", columns: Sequence[str] | None = None) -> Iterable[pd.DataFrame]:
    """The cells, some rows at a time; ``columns``: some of them."""
    if isinstance(cells, CellFile):
        return cells.parts(columns)
    return [cells if columns is None else cast(pd.DataFrame, cells[list(columns)])]


def ar_hits(cells: pd.DataFrame, threshold: int | None) -> np.ndarray:
    """bool: which cells are AR hits at the threshold that the cells were made for; without one, all repeated ones."""
    if threshold is None:
        return cells["repeated"].to_numpy()
    highest = frequency_bins(threshold).index(np.array([threshold]))[0]
    return (cells["repeated"] & (cells["frequency"] <= highest)).to_numpy()


def keys_of(path: Path) -> tuple[str, ...]:
    """The keys of the cells in a file. Raises `FormatError` for a missing or broken file."""
    names = read_schema(path, remedy=REMEDY).names
    return tuple(name for name in KEYS if name in names)


def sum_cells(path: Path, by: Sequence[str], models: Sequence[str]) -> pd.DataFrame:
    """The cells of a file summed over all keys but ``by``, with the sums of ``models``, in the order of ``by``.

    They are never all in memory: those of 100 M tokens take gigabytes. Raises `FormatError` for a missing or damaged
    file, and for one without those columns.
    """
    import duckdb

    from argap.slices.conditions import quoted

    check_files(path.parent, [path], remedy=REMEDY)
    keys = ", ".join(map(quoted, by))
    sums = ", ".join(f"sum({name})::DOUBLE AS {name}" for name in map(quoted, (PREFIX + model for model in models)))
    query = f"SELECT {keys}, sum(n)::BIGINT AS n, {sums} FROM read_parquet(?) GROUP BY {keys} ORDER BY {keys}"
    with duckdb.connect() as connection:
        try:
            return connection.execute(query, [str(path)]).df()
        except duckdb.Error as error:
            raise FormatError(f"{path}: not a complete file of cells ({first_line(error)})") from None


def write_cells(cells: pd.DataFrame, path: Path, bins: Bins) -> None:
    """Write Parquet that pandas, Polars and DuckDB read, with ``NAME_low`` and ``NAME_high`` (null: no upper end)
    behind the number ``NAME`` of each bin."""
    with CellWriter(path, bins) as writer:
        writer.add_cells(cells)


class CellWriter(ParquetPortions):
    """A file of cells, written some rows at a time, whole or not at all.

    The sums are split by byte before compression: sums of few float32 numbers end in zeros, and the file is a third
    smaller.
    """

    def __init__(self, path: Path, bins: Bins) -> None:
        super().__init__(path, split_by_byte=lambda name: name.startswith(PREFIX))
        self._bins = bins

    def add_cells(self, cells: pd.DataFrame) -> None:
        """Append cells, of windows that are not there yet."""
        columns: dict[str, Any] = {}
        for name in cells.columns:
            columns[name] = cells[name]
            if name in BINNED:
                described = getattr(self._bins, name)
                number = cells[name].to_numpy()
                for end in ("low", "high"):
                    bounds = pd.array([getattr(each, end) for each in described], dtype="Int64")
                    columns[f"{name}_{end}"] = bounds[number]
        self.add(pa.Table.from_pandas(pd.DataFrame(columns), preserve_index=False))


@dataclass(frozen=True)
class CellFile:
    """The cells of a file, read some rows at a time; ``models``: those to read (None: all)."""

    path: Path
    models: tuple[str, ...] | None = None

    @cached_property
    def columns(self) -> list[str]:
        """Without the bounds of the bins. Raises `FormatError` for a missing or broken file."""
        kept = None if self.models is None else {PREFIX + model for model in self.models}
        names = [name for name in read_schema(self.path, remedy=REMEDY).names if name not in BOUNDS]
        return [name for name in names if kept is None or not name.startswith(PREFIX) or name in kept]

    def parts(self, columns: Sequence[str] | None = None) -> Iterator[pd.DataFrame]:
        for table in read_portions(self.path, self.columns if columns is None else columns):
            yield table.to_pandas()


def read_cells(path: Path) -> pd.DataFrame:
    """The cells of a file, without the bounds of the bins. Raises `FormatError` for a missing or broken file."""
    check_files(path.parent, [path], remedy=REMEDY)
    cells = read_frame(path, needed=("document", "domain", "repeated", "n"), remedy=REMEDY)
    return cells.drop(columns=[name for name in cells.columns if name in BOUNDS])
