"""Plain text, compressed or not: one file, one document.

A file over `PIECE` bytes is read in pieces that end at a line end, each a separate document, so that a huge file need
not fit in memory; a bigram across a cut is not counted.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from argap.corpus.document import Tally, TextDocument
from argap.corpus.packed import opened
from argap.files.regular import lines_of

PIECE = 16 * 2**20


def read(path: Path, domain: str, text_column: str, tally: Tally, keep: Sequence[str]) -> Iterator[TextDocument]:
    """Read the documents of a text file, which has no columns: ``text_column`` and ``keep`` are ignored.

    Raises `FormatError` as `argap.corpus.packed.opened` does.
    """
    with opened(path) as text:
        before = tally.bytes_read
        for number, piece in enumerate(_pieces(text.file, path)):
            tally.bytes_read = before + text.position()
            yield TextDocument(tally.decode(piece), domain, f"{path}#{number}" if number else str(path))


def _pieces(file: IO[bytes], path: Path) -> Iterator[bytes]:
    piece = file.read(PIECE)
    while True:
        if len(piece) == PIECE:
            piece += next(lines_of(file, path), b"")
        yield piece
        piece = file.read(PIECE)
        if not piece:
            return
