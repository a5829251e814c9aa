"""Parquet with a text column, read in batches of rows."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from argap.corpus.document import Tally, TextDocument
from argap.corpus.jsonl import check_unpacked
from argap.errors import FormatError, first_line

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

SUFFIXES = (".parquet",)
ROWS = 256  # rows decoded at once; documents can be long


def read(path: Path, domain: str, text_column: str, tally: Tally, keep: Sequence[str]) -> Iterator[TextDocument]:
    """Read the documents of one file; its columns ``domain`` and ``source`` name each document's, if present.

    ``keep``: more columns kept with each document. Raises `FormatError` for a broken file, for a missing column
    (listing the columns), and for a file that unpacks to far more bytes than text would.
    """
    import pyarrow as pa

    try:
        with _open(path) as file:
            size = path.stat().st_size
            a_row = size / max(file.metadata.num_rows, 1)
            columns = _columns(path, file.schema_arrow, text_column, keep)
            number = unpacked = 0
            for batch in file.iter_batches(batch_size=ROWS, columns=columns):
                # As bytes: Arrow does not check that a string column is UTF-8.
                texts = batch.column(text_column).cast(pa.large_string()).cast(pa.large_binary())
                unpacked += texts.nbytes
                check_unpacked(str(path), unpacked, size)
                domains = batch.column("domain").to_pylist() if "domain" in columns else [None] * len(texts)
                sources = batch.column("source").to_pylist() if "source" in columns else [None] * len(texts)
                rows = batch.select(list(keep)).to_pylist() if keep else ({} for _ in texts)
                tally.bytes_read += a_row * len(batch)
                for text, own, source, kept in zip(texts, domains, sources, rows, strict=True):
                    position = f"{path}#{number}" if source is None else f"{source}#{number}"
                    yield TextDocument(tally.decode(text.as_py() or b""), str(own or domain), position, kept)
                    number += 1
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: not a complete Parquet file ({first_line(error)})") from error


def _open(path: Path) -> "pq.ParquetFile":
    import pyarrow.parquet as pq

    return pq.ParquetFile(path) if isinstance(path, Path) else pq.ParquetFile(path.open("rb"))


def _columns(path: Path, schema: "pa.Schema", text_column: str, keep: Sequence[str]) -> list[str]:
    """Return the columns to read. Raises `FormatError` for a missing column, and for a text column without strings."""
    import pyarrow as pa

    if text_column not in schema.names:
        raise FormatError(
            f"{path}: no column {text_column!r}; its columns are {', '.join(map(repr, schema.names))}: "
            "name one with `text_column`"
        )
    found = schema.field(text_column).type
    if pa.types.is_dictionary(found):
        found = found.value_type
    if not (pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found)):
        raise FormatError(f"{path}: column {text_column!r} has type {found}, expected strings")
    if missing := [name for name in keep if name not in schema.names]:
        known = ", ".join(map(repr, schema.names))
        raise FormatError(f"{path}: no column {missing[0]!r} to `keep`; its columns are {known}")
    return list(dict.fromkeys([text_column, *(c for c in ("domain", "source") if c in schema.names), *keep]))
