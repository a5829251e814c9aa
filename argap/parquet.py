"""Parquet files, read whole and written whole, with one line where one is missing or broken.

Pages are written with a CRC-32 that every read checks, so that a flipped bit is an error; files without are read too.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from argap.atomic import replacing
from argap.errors import FormatError

if TYPE_CHECKING:
    import pandas as pd


def read_parquet(
    path: Path, columns: Sequence[str] | None = None, *, schema: pa.Schema | None = None, remedy: str = ""
) -> pa.Table:
    """Read a file, or some of its columns. ``remedy``: what to do about a broken one (`` run `argap score` again ``).

    Raises `FormatError`, one line that names the file.
    """
    expected = schema.names if columns is None and schema is not None else columns or ()
    try:
        names = None if columns is None else list(columns)
        check_columns(path, pq.read_schema(path).names if expected else (), expected, remedy=remedy)
        return pq.read_table(path, columns=names, schema=schema, page_checksum_verification=True)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise FormatError(f"{path}: not a complete Parquet file ({reason}){remedy and f'; {remedy}'}") from error


def read_schema(path: Path) -> pa.Schema:
    """The columns of a file. Raises `FormatError` as `read_parquet`."""
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowException) as error:
        raise FormatError(f"{path}: not a complete Parquet file ({str(error).splitlines()[0]})") from error


def check_columns(path: Path, found: Sequence[str], expected: Sequence[str], *, remedy: str = "") -> None:
    """Raise `FormatError` where a file lacks one of the columns ``expected``."""
    if missing := [name for name in expected if name not in found]:
        raise FormatError(f"{path}: no column {missing[0]}; expected {', '.join(expected)}{remedy and f'; {remedy}'}")


def read_frame(path: Path, *, needed: Sequence[str] = (), remedy: str = "") -> "pd.DataFrame":
    """`read_parquet` as a pandas data frame, with the types that pandas wrote. ``needed``: columns that must be there,
    beside others."""
    table = read_parquet(path, remedy=remedy)
    check_columns(path, table.column_names, needed, remedy=remedy)
    return table.to_pandas()


def write_parquet(path: Path, table: "pa.Table | pd.DataFrame", *, split_by_byte: Sequence[str] = ()) -> None:
    """Write a file whole or not at all (`argap.atomic.replacing`), compressed with zstd, each page with a checksum.

    ``split_by_byte``: columns of floats whose bytes are stored apart (BYTE_STREAM_SPLIT), which compress better so.
    """
    if not isinstance(table, pa.Table):
        table = pa.Table.from_pandas(table, preserve_index=False)
    with replacing(path) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            write_page_checksum=True,
            use_dictionary=[name for name in table.column_names if name not in split_by_byte],  # pyright: ignore[reportArgumentType]
            column_encoding=dict.fromkeys(split_by_byte, "BYTE_STREAM_SPLIT") or None,
        )
