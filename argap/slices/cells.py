"""Cells: sums that suffice to rebuild every table, figure and interval without the tokens.

There is one row for each (document, window, domain, repeated, frequency bin, distance bin, position bin, copy,
induction) that holds a scored token, with its token count and each model's sum of log p (float64). ``copy`` is -1 for a
new key, 0 for a miss, and for a hit the smallest match length of its bin (`argap.records.COPIES`); ``induction`` is
true if copying after the longest suffix predicts the token. Without training counts there is no frequency, and labels
of format 1 have neither copy nor induction. The file stores bin bounds next to bin numbers, so it can be read on its
own. If the unit is the byte, a row counts the bytes of segments (`argap.tokens.labels.Labels.shown` and ``highest`` say
which labels a segment gets).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import pandas as pd
import pyarrow as pa

from argap.errors import FormatError
from argap.files.checksums import check_files
from argap.files.parquet import (
    SUM,
    ParquetPortions,
    check_columns,
    check_frame,
    read_frame,
    read_portions,
    read_schema,
)
from argap.files.remedies import remedy_for
from argap.metric.bins import recorded_bins
from argap.records import COPIES, COPY, INDUCTION, NEW_KEY, Bins, Gap
from argap.slices.tally import PENDING, tally
from argap.tokens.labels import Labels

KEYS = ["document", "window", "domain", "repeated", "frequency", "distance", "position", COPY, INDUCTION]
BINNED = ("frequency", "distance", "position")
BOUNDS = {f"{name}_{end}" for name in BINNED for end in ("low", "high")}
PREFIX = SUM
ROUNDING = 1e-6
"""Most relative difference of one sum added up in two orders, in float64."""
OF_MATCH = np.array([max(low for low in COPIES.values() if low <= n) for n in range(max(COPIES.values()) + 1)], np.int8)
"""The number of the bin of `COPIES` of each match length; 0 for a miss."""


class HasColumns(Protocol):
    """Cells, or sums of them."""

    @property
    def columns(self) -> list[str]: ...


def build_cells(labels: Labels, logprobs: Mapping[str, np.ndarray], bins: Bins) -> pd.DataFrame:
    """Return the cells of some models' log-probs (each float32 ``[N]``, in the order of ``labels``).

    ``bins``: those of the result, `argap.metric.bins.bins_of`, with bins by frequency only if the labels have counts.
    Every window has its own cells, so the cells of portions of whole windows concatenate to the cells of the text.
    """
    rows, shown = np.flatnonzero(labels.weight > 0), labels.shown
    keys = {
        "window": labels.window[shown].astype(np.int32),
        "domain": labels.domain[shown].astype(np.int32),
        "repeated": labels.repeated[shown],
        "frequency": None,
        "distance": recorded_bins(bins.distance).index(labels.distance[shown]),
        "position": recorded_bins(bins.position).index(labels.position[shown]),
        COPY: None,
        INDUCTION: None,
    }
    if labels.train_count is not None and bins.frequency:
        keys["frequency"] = recorded_bins(bins.frequency).index(labels.train_count[shown])
    if labels.opportunity is not None and labels.match_length is not None and labels.induction is not None:
        opportunity, length = labels.highest(labels.opportunity), labels.highest(labels.match_length)
        keys[COPY] = np.where(opportunity, OF_MATCH.take(length, mode="clip"), np.int8(COPIES[NEW_KEY]))
        keys[INDUCTION] = labels.highest(labels.induction)
    keys = {name: values for name, values in keys.items() if values is not None}
    weight = None if labels.segment_bytes is None else labels.weight[rows].astype(np.int64)
    groups = tally(list(keys.values()), [values[rows] for values in logprobs.values()], weight)
    columns: dict[str, Any] = dict(zip(keys, groups.keys, strict=True))
    document = labels.document_of_window[columns["window"]].astype(np.int32)
    columns["domain"] = pd.Categorical.from_codes(columns["domain"], pd.Index(labels.domains, dtype="str"))
    columns |= {"n": groups.n, **{PREFIX + model: sums for model, sums in zip(logprobs, groups.sums, strict=True)}}
    return pd.DataFrame({"document": document, **columns}, copy=False)


def sum_by(frame: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Sum all other columns within each group of ``by``; rows are sorted by ``by``, which stay columns."""
    others = [name for name in frame.columns if name not in by]
    coded = [_coded(cast(pd.Series, frame[name])) for name in by]
    groups = tally([code for code, _ in coded], [frame[name].to_numpy() for name in others])
    keys = [code if values is None else values.take(code) for code, (_, values) in zip(groups.keys, coded, strict=True)]
    with np.errstate(invalid="ignore"):  # counts beyond an int64, which are not those of the result
        sums = {
            name: each if frame[name].dtype.kind == "f" else each.astype(np.int64)
            for name, each in zip(others, groups.sums, strict=True)
        }
    return pd.DataFrame(dict(zip(by, keys, strict=True)) | sums)


def _coded(column: pd.Series) -> tuple[np.ndarray, pd.Index | None]:
    """Return integer codes for a column and the values they number, ascending; None if the codes are the values."""
    if column.dtype.kind in "iub" and isinstance(column.dtype, np.dtype):
        return column.to_numpy(), None
    code, values = pd.factorize(column, sort=True, use_na_sentinel=False)
    return code, pd.Index(values)


def models_of(cells: "pd.DataFrame | CellFile | HasColumns") -> list[str]:
    """Return the models whose sums the cells hold, in order."""
    return [c.removeprefix(PREFIX) for c in cells.columns if c.startswith(PREFIX)]


def with_models(cells: pd.DataFrame, models: Sequence[str]) -> pd.DataFrame:
    """Keep the sums of ``models`` only, with the keys and ``n``."""
    return cells.drop(columns=[PREFIX + model for model in models_of(cells) if model not in models])


def mean_over_seeds(cells: pd.DataFrame, seeds: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Replace the columns of each model's seeds, itself among them, by one column of their mean."""
    keys = [name for name in cells.columns if not name.startswith(PREFIX)]
    sums = {PREFIX + model: cells[[PREFIX + name for name in of]].mean(axis=1) for model, of in seeds.items()}
    return pd.concat([cells[keys], pd.DataFrame(sums)], axis=1)  # at once: pandas warns of 100 insertions


def parts_of(cells: "pd.DataFrame | CellFile", columns: Sequence[str] | None = None) -> Iterable[pd.DataFrame]:
    """Return the cells in portions; ``columns``: those to keep (None: all)."""
    if isinstance(cells, CellFile):
        return cells.parts(columns)
    return [cells if columns is None else cast(pd.DataFrame, cells[list(columns)])]


def ar_hits(cells: pd.DataFrame, threshold: int | None, bins: Bins) -> np.ndarray:
    """Return which cells (bool) are AR hits at a threshold; without one, all repeated cells.

    ``bins``: those that the cells refer to; the threshold is the upper bound of one by frequency.
    """
    if threshold is None:
        return cells["repeated"].to_numpy()
    highest = next(k for k, each in enumerate(bins.frequency) if each.high == threshold)
    return (cells["repeated"] & (cells["frequency"] <= highest)).to_numpy()


def columns_of(gap: Gap | None) -> list[str]:
    """Return the columns that the cells of a result must have; None: of any result."""
    columns = ["document", "domain", "repeated", "distance", "n"]
    if gap is None:
        return columns
    counted = [] if gap.threshold is None else ["frequency"]
    return [*columns, *counted, *(PREFIX + name for names in gap.seeds.values() for name in names)]


def keys_of(path: Path, gap: Gap | None = None) -> tuple[str, ...]:
    """Return the keys of the cells in a result's file. Raises `FormatError` for a missing or broken file."""
    schema = read_schema(path)
    check_columns(path, schema, columns_of(gap))
    return tuple(name for name in KEYS if name in schema.names)


def check_bins(path: Path, cells: pd.DataFrame, bins: Bins) -> None:
    """Raise `FormatError` if a row of cells is in a bin that the result does not have."""
    for name in [name for name in BINNED if name in cells]:
        last = len(getattr(bins, name)) - 1
        if (highest := cells[name].to_numpy().max(initial=0)) > last:
            raise FormatError(f"{path}: {name} is {highest}; the last bin of gap.json is {last}{remedy_for(path)}")


def check_cells(path: Path, cells: pd.DataFrame, gap: Gap) -> None:
    """Raise `FormatError` unless cells, of all tokens, have the bins, the tokens and the NLLs of their result."""
    check_bins(path, cells, gap.bins)
    n = int(cells["n"].to_numpy().sum())
    if n != gap.on_all.n:
        raise FormatError(f"{path}: {n:,} {gap.unit}s, where gap.json has {gap.on_all.n:,}{remedy_for(path)}")
    for model, seeds in gap.seeds.items():
        names, nll = [PREFIX + seed for seed in seeds], gap.on_all[model].nll
        if nll is None or not set(names) <= set(cells.columns):
            continue
        with np.errstate(over="ignore"):
            found = -float(cells[names].to_numpy().sum()) / (n * len(names))
        if not math.isclose(found, nll, rel_tol=ROUNDING):
            raise FormatError(f"{path}: {model} has NLL {found:.6f}, where gap.json has {nll:.6f}{remedy_for(path)}")


def sum_cells(path: Path, by: Sequence[str], models: Sequence[str], gap: Gap | None = None) -> pd.DataFrame:
    """Sum the cells of a result's file over all keys except ``by``, for ``models``, sorted by ``by``.

    The cells are never all in memory: for 100 M tokens they take gigabytes. Raises `FormatError` for a missing or
    damaged file, as `read_frame` for those columns, and as `check_cells`.
    """
    check_files(path.parent, [path])
    sums: list[pd.DataFrame] = []
    waiting = 0
    for part in CellFile(path).parts([*by, "n", *(PREFIX + model for model in models)]):
        sums.append(sum_by(part, by))
        waiting += len(sums[-1])
        if waiting > PENDING:
            sums, waiting = [sum_by(pd.concat(sums, ignore_index=True), by)], 0
    if not sums:
        raise FormatError(f"{path}: no rows{remedy_for(path)}")
    cells = sum_by(pd.concat(sums, ignore_index=True), by)
    if gap is not None:
        check_cells(path, cells, gap)
    return cells


def write_cells(cells: pd.DataFrame, path: Path, bins: Bins) -> None:
    """Write cells as Parquet that pandas, Polars and DuckDB can read.

    Each bin number ``NAME`` is followed by its bounds ``NAME_low`` and ``NAME_high`` (null: no upper bound).
    """
    with CellWriter(path, bins) as writer:
        writer.add_cells(cells)


class CellWriter(ParquetPortions):
    """Write a file of cells in portions; the file appears only when complete.

    Sums are byte-split before compression: sums of a few float32 numbers end in zeros, so the file is a third smaller.
    """

    def __init__(self, path: Path, bins: Bins) -> None:
        super().__init__(path, split_by_byte=lambda name: name.startswith(PREFIX))
        self._bounds = {
            name: {
                f"{name}_{end}": pa.array([getattr(each, end) for each in getattr(bins, name)], pa.int64())
                for end in ("low", "high")
            }
            for name in BINNED
        }
        self._metadata: dict[bytes, bytes] | None = None

    def add_cells(self, cells: pd.DataFrame) -> None:
        """Append the cells of windows not added before."""
        columns: dict[str, pa.Array] = {}
        for name in cells.columns:
            values = cells[name]
            columns[name] = pa.array(values if name == "domain" else values.to_numpy())
            for bound, ends in self._bounds.get(name, {}).items():
                columns[bound] = ends.take(columns[name])
        table = pa.table(columns)
        if self._metadata is None:  # pandas reads dtypes from here: a bound is a nullable integer
            first = table.slice(0, 1).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
            described = first.astype({name: cells[name].dtype for name in cells.columns})
            self._metadata = pa.Schema.from_pandas(described, preserve_index=False).metadata
        self.add(table.replace_schema_metadata(self._metadata))


@dataclass(frozen=True)
class CellFile:
    """The cells of a file, read in portions; ``models``: those to read (None: all)."""

    path: Path
    models: tuple[str, ...] | None = None

    @cached_property
    def columns(self) -> list[str]:
        """Return the columns except bin bounds. Raises `FormatError` for a missing or broken file."""
        kept = None if self.models is None else {PREFIX + model for model in self.models}
        names = [name for name in read_schema(self.path).names if name not in BOUNDS]
        return [name for name in names if kept is None or not name.startswith(PREFIX) or name in kept]

    def parts(self, columns: Sequence[str] | None = None) -> Iterator[pd.DataFrame]:
        for table in read_portions(self.path, self.columns if columns is None else columns):
            check_frame(self.path, table)
            yield table.to_pandas()


def read_cells(path: Path, gap: Gap | None = None) -> pd.DataFrame:
    """Read the cells of a result without bin bounds.

    Raises `FormatError` for a missing or broken file, and as `check_cells`.
    """
    check_files(path.parent, [path])
    cells = read_frame(path, needed=columns_of(gap))
    if gap is not None:
        check_cells(path, cells, gap)
    return cells.drop(columns=[name for name in cells.columns if name in BOUNDS])
