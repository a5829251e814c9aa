"""Tables as text, plain or compressed: CSV and TSV with a header.

Fields may be quoted and then hold delimiters and line ends; an empty field is null. The delimiter is the one with which
the header names the text column.
"""

import csv
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from threading import Lock

from argap.corpus.document import NoText, Tally, TextDocument, domain_of, listed
from argap.corpus.packed import opened
from argap.errors import FormatError
from argap.files.regular import LONGEST_LINE, lines_of

DELIMITERS = (",", "\t", ";", "|")


class _LongFields:
    """Raises the limit of a field, Python's 131,072 characters, while any file is read: the limit is of the process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._readers = self._before = 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._readers:
                self._before = csv.field_size_limit(LONGEST_LINE)
            self._readers += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._readers -= 1
            if not self._readers:
                csv.field_size_limit(self._before)


_long_fields = _LongFields()


def read(path: Path, domain: str, text_column: str, tally: Tally, keep: Sequence[str]) -> Iterator[TextDocument]:
    """Read the documents of one file; a row's own ``domain`` takes precedence.

    ``keep``: columns kept with each document, as text. Raises `FormatError` for a header without the text column or one
    to keep, for a row with more or fewer fields, for misplaced quotes, and as `argap.corpus.packed.opened` does.
    """
    with _long_fields, opened(path) as text:
        before = tally.bytes_read
        lines = (line.decode("utf-8", "surrogateescape") for line in lines_of(text.file, path))
        first = next(lines, "")
        delimiter, header = _header(path, first, text_column)
        if missing := [name for name in keep if name not in header]:
            raise FormatError(f"{path}: no column {missing[0]!r} to `keep`; its columns are {listed(header)}")
        if twice := [name for name in (text_column, "domain", "source", *keep) if header.count(name) > 1]:
            raise FormatError(f"{path}: two columns {twice[0]}")
        rows = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
        try:
            for fields in rows:
                tally.bytes_read = before + text.position()
                if rows.line_num == 1 or not fields:
                    continue
                where = f"{path}, line {rows.line_num}"
                if len(fields) != len(header):
                    raise FormatError(f"{where}: {len(fields)} fields; expected {len(header)}, as in the header")
                row = {name: _replaced(field) or None for name, field in zip(header, fields, strict=True)}
                if row[text_column]:
                    row[text_column] = tally.decode(_bytes(fields[header.index(text_column)]))
                document = tally.text_of(row, text_column, where)
                yield TextDocument(document, domain_of(row, domain), f"{path}:{rows.line_num}", tally.kept(row, keep))
        except csv.Error as error:
            raise FormatError(f"{path}, line {rows.line_num}: not CSV ({error})") from None


def _header(path: Path, line: str, text_column: str) -> tuple[str, list[str]]:
    """Return the delimiter and the columns of a table by its first line.

    Raises `NoText` without the text column, and `FormatError` for a line that is not CSV.
    """
    try:
        headers = {each: next(csv.reader([line], delimiter=each), []) for each in DELIMITERS}
    except csv.Error as error:
        raise FormatError(f"{path}, line 1: not CSV ({error})") from None
    for delimiter, header in headers.items():
        if text_column in header:
            return delimiter, header
    raise NoText(str(path), text_column, max(headers.values(), key=len))


def _bytes(field: str) -> bytes:
    return field.encode("utf-8", "surrogateescape")


def _replaced(field: str) -> str:
    return _bytes(field).decode("utf-8", "replace")
