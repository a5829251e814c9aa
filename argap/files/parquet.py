"""Read and write Parquet files, with a one-line error if one is missing or broken.

Pages are written with a CRC-32 that every read checks, so a flipped bit is an error; files without one are read too.
"""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, get_args, get_origin

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from argap.errors import FormatError, first_line, is_short_of_threads
from argap.files.atomic import replacing
from argap.files.regular import check_regular, for_pyarrow
from argap.files.remedies import remedy_for

if TYPE_CHECKING:
    import pandas as pd

R = TypeVar("R", bound=msgspec.Struct)
TYPES = {int: pa.int32(), float: pa.float32(), str: pa.string(), bool: pa.bool_()}
ROWS = 2**20
"""Rows per row group, and per portion."""
WHOLE = frozenset({"window", "pos", "token"})
"""Integer columns without nulls."""
LABELLED = frozenset({"repeated", "distance", "occurrences", "domain", "opportunity", "match_length"})
"""Columns of labels without nulls."""
INTEGERS = WHOLE | {"top1", "rank", "distance", "occurrences", "train_count", "match_length", "segment_bytes"}
NUMBERS = frozenset({"logprob", "kl", "entropy"})
SUM = "logprob/"
"""What the columns of sums begin with, one for each model."""
STORED_LOGPROB = 1e-2
"""Highest stored log-prob: kernels compute a target's logit apart from the others, and logits can be large."""
BOOLEANS = frozenset({"opportunity", "induction", "content"})
"""Columns that are of one kind in whatever table of argap's they are."""
COUNTED = INTEGERS | {
    "document",
    "n",
    "high",
    "position",
    "frequency",
    "copy",
    "step",
    "tokens",
    "n_ar_hits",
    "n_other",
}
LEAST = {"copy": -1}
"""The least value of a counted column, where it is not 0."""
MEASURED = NUMBERS | {"log_distance", "loss", "lr", "grad_norm", "tokens_per_s", "nll_ar_hits", "nll_other"}
TEXTS = frozenset({"domain", "source", "model"})
"""Columns of data frames; others of the same names, as in answers or a text, may hold something else."""


def schema_of(record_type: type[msgspec.Struct]) -> pa.Schema:
    """Return a column for each field of a record: whole numbers as int32, numbers as float32, and lists of these."""
    return pa.schema([(field.name, _arrow_type(field.type)) for field in msgspec.structs.fields(record_type)])


def _arrow_type(hint: Any) -> pa.DataType:
    if get_origin(hint) is Literal:
        return pa.string()
    if get_origin(hint) is list:
        return pa.list_(_arrow_type(get_args(hint)[0]))
    (kind,) = [each for each in get_args(hint) if each is not NoneType] or [hint]
    return TYPES[kind] if kind in TYPES else _arrow_type(kind)


def read_parquet(path: Path, columns: Sequence[str] | None = None, *, schema: pa.Schema | None = None) -> pa.Table:
    """Read a file, or some of its columns. Raises `FormatError`, one line that names the file.

    ``schema``: the types to read them as. Only types that hold the same are converted: 1.0 or true is no text.
    """
    expected = schema.names if columns is None and schema is not None else columns or ()
    if expected:
        found = read_schema(path)
        check_columns(path, found, expected)
        for wanted in [] if schema is None else map(schema.field, expected):
            check_type(path, wanted.name, found.field(wanted.name).type, _held_by(wanted.type))
    with readable(path):
        names = None if columns is None else list(columns)
        return pq.read_table(for_pyarrow(path), columns=names, schema=schema, page_checksum_verification=True)


def check_columns(path: Path, found: pa.Schema, expected: Sequence[str]) -> None:
    """Raise `FormatError` if a file lacks one of the ``expected`` columns, has it twice, or of another type."""
    if missing := [name for name in expected if name not in found.names]:
        raise FormatError(f"{path}: no column {missing[0]}; expected {', '.join(expected)}{remedy_for(path)}")
    check_once(path, found, expected)
    for name in expected:
        check_type(path, name, found.field(name).type, _of_table(name))


def check_type(path: Path, name: str, of_type: pa.DataType, wanted: str | None) -> None:
    """Raise `FormatError` if the column ``name`` is not of what is ``wanted``, one of `CHECKS`; None: anything."""
    if wanted and not _holds(of_type, wanted):
        raise FormatError(f"{path}: {name} is {str(of_type)[:100]}; expected {wanted}{remedy_for(path)}")


def check_once(path: Path, found: pa.Schema, names: Sequence[str]) -> None:
    """Raise `FormatError` if a file has one of the columns ``names`` twice."""
    if twice := [name for name in names if len(found.get_all_field_indices(name)) > 1]:
        raise FormatError(f"{path}: two columns {twice[0]}{remedy_for(path)}")


def _of_table(name: str) -> str | None:
    """Return what a column of argap's holds, in words; None: anything."""
    if name in INTEGERS:
        return "integers"
    if name in NUMBERS or name.startswith(SUM):
        return "numbers"
    return "booleans" if name in BOOLEANS else None


def _held_by(of_type: pa.DataType) -> str:
    """Return what a type of `schema_of` holds, in words."""
    if pa.types.is_list(of_type):
        return LISTS + _held_by(of_type.value_type)
    return next(wanted for wanted in CHECKS if _holds(of_type, wanted))


def check_whole(path: Path, table: "pa.Table | pa.RecordBatch") -> None:
    """Raise `FormatError` if the window, position or token of a row is null or negative, or a label of it is null.

    Training counts are those of all rows or of none; an induction is null where there is no opportunity.
    """
    for name in LABELLED & {*table.schema.names}:
        if missing := table.column(name).null_count:
            raise FormatError(f"{path}: {name} is null in {missing} rows{remedy_for(path)}")
    if "train_count" in table.schema.names and 0 < (missing := table.column("train_count").null_count) < len(table):
        raise FormatError(f"{path}: train_count is null in {missing} rows of {len(table)}{remedy_for(path)}")
    if "domain" in table.schema.names:
        check_type(path, "domain", table.schema.field("domain").type, TEXT)
    if {"induction", "opportunity"} <= {*table.schema.names}:
        known, needed = table.column("induction").is_valid(), table.column("opportunity")
        if wrong := int((_bools(known) != _bools(needed)).sum()):
            found = "null with an opportunity, or not null without one,"
            raise FormatError(f"{path}: induction is {found} in {wrong} rows{remedy_for(path)}")
    for name in WHOLE & {*table.schema.names}:
        if missing := table.column(name).null_count:
            raise FormatError(f"{path}: {name} is null in {missing} rows{remedy_for(path)}")
        if (least := table.column(name).to_numpy().min(initial=0)) < 0:
            raise FormatError(f"{path}: {name} is {least} in a row{remedy_for(path)}")


def _holds(of_type: pa.DataType, wanted: str) -> bool:
    """Return whether a type is one of `CHECKS`, or a list of it; a dictionary of strings holds strings."""
    if wanted.startswith(LISTS):
        return _is_list(of_type) and _holds(of_type.value_type, wanted.removeprefix(LISTS))
    kind = of_type.value_type if wanted == TEXT and pa.types.is_dictionary(of_type) else of_type
    return any(check(kind) for check in CHECKS[wanted])


def _bools(column: pa.Array | pa.ChunkedArray) -> np.ndarray:
    """Return a column of a batch, or of a table, as bools ``[N]``."""
    return column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy()


def _is_list(of_type: pa.DataType) -> bool:
    return pa.types.is_list(of_type) or pa.types.is_large_list(of_type)


def check_below(path: Path, numbers: np.ndarray, count: int, found: str) -> None:
    """Raise `FormatError` with the text ``found`` if a number is not from 0 to ``count`` - 1."""
    if not 0 <= numbers.min(initial=0) <= numbers.max(initial=0) < count:
        raise FormatError(f"{path}: {found}{remedy_for(path)}")


def check_types(path: Path, found: pa.Schema) -> None:
    """Raise `FormatError` for a column of sums or of a log that is of another type."""
    for name, of_type in zip(found.names, found.types, strict=True):
        check_type(path, name, of_type, _of_frame(name, found.names))


def check_frame(path: Path, table: pa.Table) -> None:
    """Raise `FormatError` as `check_types`, and for such a column that is null in a row, or out of range.

    Integers are at least `LEAST`, sums of log-probs at most 0 up to the rounding of ``n`` of them.

    The upper bound of a bin is null in the last one. A column without rows may have no type: pandas gives it none.
    """
    check_types(path, pa.schema([each for each in table.schema if len(table) or not pa.types.is_null(each.type)]))
    for name, column in zip(table.column_names, table.columns, strict=True):
        wanted = _of_frame(name, table.column_names)
        if wanted and column.null_count and not (wanted == COUNTS and name.endswith("_high")):
            raise FormatError(f"{path}: {name} is null in {column.null_count} rows{remedy_for(path)}")
        if wanted == COUNTS and (least := column.drop_null().to_numpy().min(initial=0)) < LEAST.get(name, 0):
            raise FormatError(f"{path}: {name} is {least} in a row{remedy_for(path)}")
        if name.startswith(SUM) and "n" in table.column_names:
            sums = column.to_numpy()
            wrong = sums[~(sums <= STORED_LOGPROB * table["n"].to_numpy())]
            if len(wrong):
                found = f"{name} is {wrong[0]} in {len(wrong)} rows"
                raise FormatError(f"{path}: {found}; expected at most 0{remedy_for(path)}")


def check_rows(path: Path, table: pa.Table) -> None:
    """Raise `FormatError` for a table without rows."""
    if not len(table):
        raise FormatError(f"{path}: no rows{remedy_for(path)}")


def _of_frame(name: str, beside: Sequence[str]) -> str | None:
    """Return what a column of a data frame holds ``beside`` others, in words; None: anything."""
    counts = "content" in beside  # a table of how many tokens are repeated; others have whether those of a row are
    if name in MEASURED or name.startswith(SUM):  # also of a model whose name ends as that of a bound
        return "numbers"
    if name in COUNTED or name.endswith(("_low", "_high")) or (name == "repeated" and counts):
        return COUNTS
    if name in BOOLEANS or name == "repeated":
        return "booleans"
    return TEXT if name in TEXTS else None


COUNTS = "integers below 2^63"
"""Unsigned ones of 64 bits are refused: NumPy adds them to signed ones as floats."""
TEXT = "strings"
LISTS = "lists of "
CHECKS: Mapping[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "integers": (pa.types.is_integer,),
    "numbers": (pa.types.is_integer, pa.types.is_floating),
    "booleans": (pa.types.is_boolean,),
    COUNTS: (pa.types.is_signed_integer, pa.types.is_uint8, pa.types.is_uint16, pa.types.is_uint32),
    TEXT: (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
}


def read_frame(path: Path, *, needed: Sequence[str] = (), may_be_empty: bool = False) -> "pd.DataFrame":
    """Read a file as a pandas data frame, with the types that pandas wrote. Raises as `read_parquet` does.

    ``needed``: columns that must be among those of the file. ``may_be_empty``: it may have no rows.
    """
    table = read_parquet(path)
    for names in (needed, table.column_names):
        check_columns(path, table.schema, names)
    check_frame(path, table)
    if not may_be_empty:
        check_rows(path, table)
    with readable(path):  # what the file says of pandas' types may not fit its columns
        return table.to_pandas()


def read_records(path: Path, record_type: type[R]) -> list[R]:
    """Read the rows of a file with the columns of `schema_of` as records. Raises as `read_parquet` does."""
    rows = read_parquet(path, schema=schema_of(record_type)).to_pylist()
    try:
        return msgspec.convert(rows, list[record_type])
    except msgspec.ValidationError as error:
        raise FormatError(f"{path}: {error}{remedy_for(path)}") from None


def read_schema(path: Path) -> pa.Schema:
    """Return the schema of a file. Raises `FormatError` as `read_parquet` does."""
    with opened(path) as file:
        return file.schema_arrow


def count_rows(path: Path, needed: Sequence[str] = ()) -> int:
    """Return the number of rows of a file, from its footer. Raises `FormatError` as `check_columns` does.

    ``needed``: columns that must be among those of the file.
    """
    with opened(path) as file:
        check_columns(path, file.schema_arrow, needed)
        check_columns(path, file.schema_arrow, file.schema_arrow.names)
        return file.metadata.num_rows


@contextmanager
def opened(path: Path, *, pages: bool = True) -> Iterator[pq.ParquetFile]:
    """Open a file; ``pages``: check each page's CRC-32. Raises `FormatError` inside the block, as `readable` does."""
    with readable(path), pq.ParquetFile(for_pyarrow(path), page_checksum_verification=pages) as file:
        yield file


def read_portions(
    path: Path,
    columns: Sequence[str],
    *,
    rows: int = ROWS,
    threads: bool = True,
    pages: bool = True,
) -> Iterator[pa.Table]:
    """Yield some columns of a file, at most ``rows`` rows at a time.

    ``threads``: decode columns in threads, not only in the caller's. ``pages``: check each page's CRC-32; not needed if
    the whole file was checked. Raises `FormatError` as `read_parquet` and `check_whole` do, and for a missing column.
    """
    with opened(path, pages=pages) as file:
        check_columns(path, file.schema_arrow, columns)
        for batch in file.iter_batches(rows, columns=list(columns), use_threads=threads):
            check_whole(path, batch)
            yield pa.Table.from_arrays(batch.columns, names=batch.schema.names)  # files differ in `required`


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn read errors inside the block into `FormatError`, and refuse anything but a file."""
    check_regular(path)
    try:
        yield
    except (OSError, KeyError, TypeError, ValueError, pa.ArrowException) as error:
        if is_short_of_threads(error):
            raise
        reason = f"not a complete Parquet file ({first_line(error)})" if path.exists() else "no such file"
        raise FormatError(f"{path}: {reason}{remedy_for(path)}") from error


def whole_column(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array; a single chunk is not copied."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def required(table: pa.Table, names: Collection[str]) -> pa.Table:
    """Return the table with columns ``names`` declared free of nulls in the schema, which makes reading faster."""
    return table.cast(pa.schema([field.with_nullable(field.name not in names) for field in table.schema]))


def write_parquet(path: Path, table: "pa.Table | pd.DataFrame", *, split_by_byte: Sequence[str] = ()) -> None:
    """Write a file whole or not at all (`argap.files.atomic.replacing`), with LZ4 and a checksum per page.

    LZ4 decodes in half the time of zstd; runs and cells are a tenth larger, labels a fifth to a third.

    ``split_by_byte``: columns stored as in `ParquetPortions`.
    """
    if not isinstance(table, pa.Table):
        table = pa.Table.from_pandas(table, preserve_index=False)
    with ParquetPortions(path, split_by_byte=lambda name: name in split_by_byte) as file:
        file.add(table)


class ParquetPortions:
    """A writer like `write_parquet` that takes some rows at a time and gathers them into groups of `ROWS` rows.

    ``split_by_byte``: returns whether a float column is stored with BYTE_STREAM_SPLIT, which compresses log-probs
    better. A block that ends without a portion is an error.
    """

    def __init__(self, path: Path, *, split_by_byte: Callable[[str], bool] = lambda name: False) -> None:
        self._path = path
        self._split = split_by_byte
        self._open = ExitStack()
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []
        self._written = False

    def __enter__(self) -> Self:
        self._temporary = self._open.enter_context(replacing(self._path))
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            if error[0] is None and (self._waiting or not self._written):
                self._write()
        except BaseException:
            self._open.__exit__(*sys.exc_info())
            raise
        self._open.__exit__(*error)

    def add(self, table: pa.Table) -> None:
        self._waiting.append(table)
        if sum(map(len, self._waiting)) >= ROWS:
            self._write()

    def _write(self) -> None:
        table = pa.concat_tables(self._waiting).unify_dictionaries()
        self._waiting = []
        if self._writer is None:
            split = [name for name in table.column_names if self._split(name)]
            self._writer = self._open.enter_context(
                pq.ParquetWriter(
                    for_pyarrow(self._temporary),
                    table.schema,
                    compression="lz4",
                    write_page_checksum=True,
                    use_dictionary=[name for name in table.column_names if name not in split],  # pyright: ignore[reportArgumentType]
                    column_encoding=dict.fromkeys(split, "BYTE_STREAM_SPLIT") or None,
                )
            )
        if len(table) or not self._written:
            self._writer.write_table(table, row_group_size=ROWS)
            self._written = True
