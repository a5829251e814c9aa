"""Plain text: one file, one document.

A file over `PIECE` bytes is read in pieces that end at a line end, each a separate document, so that a huge file need
not fit in memory; a bigram across a cut is not counted.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from argap.corpus.document import Tally, TextDocument
from argap.errors import ArgapError

SUFFIXES = (
    ".txt", ".text", ".md", ".rst", ".tex", ".html", ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu",
    ".java", ".js", ".ts", ".go", ".rs", ".rb", ".sh", ".sql",
)  # fmt: skip
PIECE = 16 * 2**20


def read(path: Path, domain: str, text_column: str, tally: Tally, keep: Sequence[str]) -> Iterator[TextDocument]:
    """Read the documents of a text file, which has no columns: ``text_column`` and ``keep`` are ignored."""
    try:
        with path.open("rb") as file:
            for number, piece in enumerate(_pieces(file)):
                tally.bytes_read += len(piece)
                source = f"{path}#{number}" if number else str(path)
                yield TextDocument(tally.decode(piece), domain, source)
    except OSError as error:
        raise ArgapError(f"{path}: not readable ({error.strerror})") from error


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    piece = file.read(PIECE)
    while True:
        if len(piece) == PIECE:
            piece += file.readline()
        yield piece
        piece = file.read(PIECE)
        if not piece:
            return
