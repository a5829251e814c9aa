"""Parquet and Arrow with a text column, read in batches of rows.

Arrow is the IPC format, as a file (Feather of version 2) or as the stream that `datasets` writes.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from argap.corpus.document import NoText, Tally, TextDocument, domain_of, listed
from argap.errors import FormatError, first_line
from argap.files.regular import check_unpacked, for_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

ROWS = 256  # rows decoded at once; documents can be long


def read_parquet(
    path: Path, domain: str, text_column: str, tally: Tally, keep: Sequence[str]
) -> Iterator[TextDocument]:
    """Read the documents of a Parquet file; its columns ``domain`` and ``source`` name each document's, if present.

    ``keep``: more columns kept with each document. Raises `FormatError` for a broken file, for a missing column
    (listing the columns), and for a file that unpacks to far more bytes than text would.
    """
    with _complete(path, "Parquet"), _open(path) as file:
        columns = _columns(path, file.schema_arrow, text_column, keep)
        a_row = path.stat().st_size / max(file.metadata.num_rows, 1)
        batches = ((batch, a_row * len(batch)) for batch in file.iter_batches(batch_size=ROWS, columns=columns))
        yield from _documents(path, batches, domain, text_column, tally, keep)


def check_parquet(path: Path, text_column: str, keep: Sequence[str]) -> None:
    """Raise the `FormatError` of `read_parquet` that the footer of a file tells, without reading a row."""
    with _complete(path, "Parquet"), _open(path) as file:
        _columns(path, file.schema_arrow, text_column, keep)


def read_arrow(path: Path, domain: str, text_column: str, tally: Tally, keep: Sequence[str]) -> Iterator[TextDocument]:
    """Read the documents of an Arrow file or stream as `read_parquet` reads those of Parquet; raise the same errors."""
    import pyarrow as pa

    with _complete(path, "Arrow"), path.open("rb") as raw:
        stream = raw.read(6) != b"ARROW1"
        raw.seek(0)
        file = pa.memory_map(str(for_pyarrow(path))) if isinstance(path, Path) else pa.PythonFile(raw)
        reader = pa.ipc.open_stream(file) if stream else pa.ipc.open_file(file)
        columns = _columns(path, reader.schema, text_column, keep)
        batches = _stream(reader, file) if stream else _file(reader, path.stat().st_size)
        cut = (
            (batch.slice(start, ROWS), stored * min(ROWS, len(batch) - start) / len(batch))
            for batch, stored in ((_sound(batch.select(columns)), stored) for batch, stored in batches)
            for start in range(0, len(batch), ROWS)
        )
        yield from _documents(path, cut, domain, text_column, tally, keep)


def _documents(
    path: Path,
    batches: "Iterable[tuple[pa.RecordBatch, float]]",
    domain: str,
    text_column: str,
    tally: Tally,
    keep: Sequence[str],
) -> Iterator[TextDocument]:
    """Yield the documents of batches of rows, each with the bytes that it takes of the file."""
    import pyarrow as pa

    size = path.stat().st_size
    number = unpacked = 0
    for batch, stored in batches:
        # As bytes: Arrow does not check that a string column is UTF-8.
        texts = batch.column(text_column).cast(pa.large_string()).cast(pa.large_binary())
        unpacked += texts.nbytes
        check_unpacked(path, unpacked, size)
        names = [c for c in ("domain", "source") if c in batch.schema.names]
        named = batch.select(names).to_pylist() if names else [{}] * len(texts)
        rows = batch.select(list(keep)).to_pylist() if keep else ({} for _ in texts)
        tally.bytes_read += stored
        for raw, row, kept in zip(texts, named, rows, strict=True):
            text = None if raw.as_py() is None else tally.decode(raw.as_py())
            read = tally.text_of({text_column: text}, text_column, str(path))
            source = row.get("source")
            yield TextDocument(read, domain_of(row, domain), f"{path if source is None else source}#{number}", kept)
            number += 1


def _sound(batch: "pa.RecordBatch") -> "pa.RecordBatch":
    """Return a batch whose values lie in the file. Raises `pa.ArrowInvalid`: Arrow itself reads what is beyond it.

    Text that is not UTF-8 is none of that.
    """
    import pyarrow as pa

    as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    for column in batch.columns:
        (column.view(as_bytes[column.type]) if column.type in as_bytes else column).validate(full=True)
    return batch


def _stream(reader: "pa.RecordBatchStreamReader", file: "pa.NativeFile") -> "Iterator[tuple[pa.RecordBatch, float]]":
    before = 0
    for batch in reader:
        yield batch, file.tell() - before
        before = file.tell()


def _file(reader: "pa.RecordBatchFileReader", size: int) -> "Iterator[tuple[pa.RecordBatch, float]]":
    for k in range(reader.num_record_batches):
        yield reader.get_batch(k), size / reader.num_record_batches


@contextmanager
def _complete(path: Path, what: str) -> Iterator[None]:
    """Turn errors of reading a file of the format ``what`` into `FormatError`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: not a complete {what} file ({first_line(error)})") from error


def _open(path: Path) -> "pq.ParquetFile":
    import pyarrow.parquet as pq

    return pq.ParquetFile(for_pyarrow(path)) if isinstance(path, Path) else pq.ParquetFile(path.open("rb"))


def _columns(path: Path, schema: "pa.Schema", text_column: str, keep: Sequence[str]) -> list[str]:
    """Return the columns to read. Raises `FormatError` for one missing or there twice, and for text of no strings."""
    import pyarrow as pa

    from argap.files.parquet import check_once

    if text_column not in schema.names:
        raise NoText(str(path), text_column, schema.names)
    columns = list(dict.fromkeys([text_column, *(c for c in ("domain", "source") if c in schema.names), *keep]))
    check_once(path, schema, columns)
    found = schema.field(text_column).type
    if pa.types.is_dictionary(found):
        found = found.value_type
    if not (pa.types.is_string(found) or pa.types.is_large_string(found) or pa.types.is_string_view(found)):
        raise FormatError(f"{path}: column {text_column!r} has type {found}, expected strings")
    if missing := [name for name in keep if name not in schema.names]:
        raise FormatError(f"{path}: no column {missing[0]!r} to `keep`; its columns are {listed(schema.names)}")
    return columns
