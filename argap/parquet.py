"""Parquet files, read whole and written whole, with one line where one is missing or broken."""

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
    try:
        return pq.read_table(path, columns=None if columns is None else list(columns), schema=schema)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise FormatError(f"{path}: not a complete Parquet file ({reason}){remedy and f'; {remedy}'}") from error


def read_frame(path: Path, *, remedy: str = "") -> "pd.DataFrame":
    """`read_parquet` as a pandas data frame, with the types that pandas wrote."""
    return read_parquet(path, remedy=remedy).to_pandas()


def write_parquet(path: Path, table: "pa.Table | pd.DataFrame") -> None:
    """Write a file whole or not at all (`argap.atomic.replacing`), compressed with zstd."""
    with replacing(path) as temporary:
        if isinstance(table, pa.Table):
            pq.write_table(table, temporary, compression="zstd")
        else:
            table.to_parquet(temporary, index=False, compression="zstd")
