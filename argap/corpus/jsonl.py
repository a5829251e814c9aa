"""JSON, plain or compressed: an object on each line, or one array of objects or texts.

A file of objects over several lines each, as ``jq`` prints them, is read too. No more than a value, and what was read
with it, is in memory.
"""

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from argap.corpus.document import Tally, TextDocument, domain_of
from argap.corpus.packed import opened
from argap.errors import FormatError
from argap.files.atomic import parse_json
from argap.files.regular import LONGEST_LINE, lines_of

PIECE = 2**20
MARGIN = 16
"""Characters before the end of what was read in which an error can mean that the item goes on."""
SPACE = re.compile(r"[ \t\r\n]*")


class Row(NamedTuple):
    """An object of a JSON file, or a text in an array."""

    place: str
    """``line N`` or ``item N``, from 1."""
    number: int
    value: dict[str, Any] | str


def read(path: Path, domain: str, text_column: str, tally: Tally, keep: Sequence[str]) -> Iterator[TextDocument]:
    """Read the documents of one file; a row's own ``domain`` (or the Pile's set name) takes precedence.

    ``keep``: columns kept with each document; null in a row without one. Raises `FormatError` as `rows` and
    `argap.corpus.document.Tally.text_of` do.
    """
    for place, number, value in rows(path, tally):
        row = {text_column: value} if isinstance(value, str) else value
        text = tally.text_of(row, text_column, f"{path}, {place}", "`text_column`")
        yield TextDocument(text, domain_of(row, domain), f"{path}:{number}", tally.kept(row, keep))


def rows(path: Path, tally: Tally) -> Iterator[Row]:
    """Read the rows of one file, skipping blank lines.

    Raises `FormatError` naming file and line, or item, for what is not JSON or no row, and as
    `argap.corpus.packed.opened` does.
    """
    with opened(path) as text:
        start, before = text.head.lstrip(), tally.bytes_read
        if start.startswith(b"[") or start.partition(b"\n")[0].strip() == b"{":
            unit, pieces, kinds = "item", _items(text.file, path), (dict, str)
        else:
            unit, pieces, kinds = "line", enumerate(lines_of(text.file, path), start=1), (dict,)
        for number, piece in pieces:
            tally.bytes_read = before + text.position()
            if not piece.strip():
                continue
            place = f"{unit} {number}"
            try:
                value = parse_json(tally.decode_json(piece))
            except ValueError as error:
                raise FormatError(f"{path}, {place}: not JSON ({error})") from None
            if not isinstance(value, kinds):
                raise FormatError(f"{path}, {place}: expected an object, found {type(value).__name__}")
            yield Row(place, number, value)
        tally.bytes_read = before + text.position()


def valid_rows(path: Path) -> list[dict[str, Any]]:
    """Read the objects of one file. Raises `FormatError` as `rows` does, for texts, and for invalid UTF-8."""
    found, tally = [], Tally()
    for place, _, value in rows(path, tally):
        if tally.invalid_utf8:
            raise FormatError(f"{path}, {place}: not valid UTF-8")
        if isinstance(value, str):
            raise FormatError(f"{path}, {place}: expected an object, found str")
        found.append(value)
    return found


def first_object(file: BinaryIO) -> dict[str, Any] | None:
    """Return the object on the first line of a file; None if it is not one."""
    try:
        value = parse_json(Tally().decode_json(file.readline(LONGEST_LINE)))
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


class _Text:
    """The text of a file from a position on, read in pieces."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogateescape").decode
        self._scan = json.JSONDecoder().raw_decode
        self._text, self._at = "", 0

    def next(self) -> str:
        """Skip white space and return the next character; none at the end of the file."""
        self._skip_space()
        while self._at == len(self._text) and self._more():
            self._skip_space()
        return self._text[self._at : self._at + 1]

    def skip(self) -> None:
        """Skip the character that `next` returned."""
        self._at += 1

    def value(self) -> bytes:
        """Return the JSON of the value that begins here, and go on after it. Raises `ValueError` for anything else."""
        while True:
            try:
                _, end = self._scan(self._text, self._at)
                break
            except json.JSONDecodeError as error:
                goes_on = error.pos >= len(self._text) - MARGIN or error.msg.startswith("Unterminated string")
                if len(self._text) - self._at > LONGEST_LINE or not (goes_on and self._more()):
                    raise ValueError(error.msg) from None
            except RecursionError:
                raise ValueError("nested too deeply") from None
        start, self._at = self._at, end
        return self._text[start:end].encode("utf-8", "surrogateescape")

    def _skip_space(self) -> None:
        if space := SPACE.match(self._text, self._at):
            self._at = space.end()

    def _more(self) -> bool:
        """Read as much as is waiting, and at least a piece, so that a long value is scanned twice at most."""
        left = len(self._text) - self._at
        data = self._file.read(min(max(PIECE, left), LONGEST_LINE + 1 - left))
        self._text, self._at = self._text[self._at :] + self._decode(data, final=not data), 0
        return bool(data)


def _items(file: BinaryIO, path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the JSON of each item of an array, or of each object of a file, with its number."""
    text, number = _Text(file), 0
    if array := text.next() == "[":
        text.skip()
    while (sign := text.next()) not in ("", "]"):
        number += 1
        try:
            if array and number > 1:
                if sign != ",":
                    raise ValueError("expected a comma before it")
                text.skip()
                text.next()
            value = text.value()
        except ValueError as error:
            raise FormatError(f"{path}, item {number}: not JSON ({error})") from None
        yield number, value
    if array and not sign:
        raise FormatError(f"{path}: the array does not end after item {number}; is the file truncated?")
    if array:
        text.skip()
    if left := text.next():
        raise FormatError(f"{path}: {left!r} after item {number}; expected one array, or objects")
