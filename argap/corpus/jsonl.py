"""JSON lines, plain or compressed: one object per line, with its text in one column."""

import gzip
import io
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

from argap.corpus.document import Tally, TextDocument, text_of
from argap.errors import FormatError
from argap.files.atomic import parse_json

SUFFIXES = tuple(base + packed for base in (".jsonl", ".ndjson") for packed in (".gz", ".zst", ""))

LARGEST_RATIO = 1000
"""Most bytes that a compressed byte may unpack to; text reaches 20, repeated text a few hundred."""
MOST_UNPACKED = 2**30
"""Most bytes that a file may unpack to."""
LONGEST_LINE = 2**30
"""Bytes of the longest line, since a whole line is in memory."""


def read(path: Path, domain: str, text_column: str, tally: Tally, keep: Sequence[str]) -> Iterator[TextDocument]:
    """Read the documents of one file; a row's own ``domain`` (or the Pile's set name) takes precedence.

    ``keep``: columns kept with each document; null in a row without one. Raises `FormatError` as `rows` and
    `argap.corpus.document.text_of` do.
    """
    for number, row in rows(path, tally):
        text = text_of(row, text_column, f"{path}, line {number}", "`text_column`")
        yield TextDocument(text, _domain(row, domain), f"{path}:{number}", tally.kept(row, keep))


def rows(path: Path, tally: Tally) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read the objects of one file with their line numbers, skipping blank lines.

    Raises `FormatError` naming file and line for a line that is not a JSON object, for a truncated archive, and for one
    that unpacks to far more bytes than text would.
    """
    number = unpacked = 0
    try:
        with path.open("rb") as raw, _unpacked(raw, path.suffix) as file:
            before = tally.bytes_read
            for number, line in enumerate(_lines(file, path), start=1):
                unpacked += len(line)
                check_unpacked(f"{path}, line {number}", unpacked, raw.tell())
                tally.bytes_read = before + raw.tell()
                if not line.strip():
                    continue
                yield number, _parse(line, path, number, tally)
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{path}: truncated or unreadable after line {number} ({error})") from error


def check_unpacked(where: str, unpacked: int, packed: int) -> None:
    """Raise `FormatError` if ``packed`` bytes of a file became far more bytes than text would."""
    if unpacked > max(MOST_UNPACKED, LARGEST_RATIO * packed):
        raise FormatError(f"{where}: unpacks to more than {LARGEST_RATIO:,} times its size; expected text")


def valid_rows(path: Path) -> list[dict[str, Any]]:
    """Read the objects of one file. Raises `FormatError` as `rows` does, and for invalid UTF-8."""
    found, tally = [], Tally()
    for number, row in rows(path, tally):
        if tally.invalid_utf8:
            raise FormatError(f"{path}, line {number}: not valid UTF-8")
        found.append(row)
    return found


def _lines(file: BinaryIO, path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, none longer than `LONGEST_LINE`."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise FormatError(f"{path}: a line of more than {LONGEST_LINE:,} bytes; expected one document per line")
        yield line


def _unpacked(raw: BinaryIO, suffix: str) -> BinaryIO:
    if suffix == ".gz":
        return cast(BinaryIO, gzip.open(raw, "rb"))
    if suffix == ".zst":
        import pyarrow

        return io.BufferedReader(pyarrow.input_stream(raw, compression="zstd"))
    return raw


def _parse(line: bytes, path: Path, number: int, tally: Tally) -> dict[str, Any]:
    try:
        row = parse_json(tally.decode_json(line))
    except ValueError as error:
        raise FormatError(f"{path}, line {number}: not JSON ({error})") from None
    if not isinstance(row, dict):
        raise FormatError(f"{path}, line {number}: expected an object, found {type(row).__name__}")
    return row


def _domain(row: dict[str, Any], default: str) -> str:
    meta = row.get("meta")
    pile = meta.get("pile_set_name") if isinstance(meta, dict) else None
    return str(row.get("domain") or pile or default)
