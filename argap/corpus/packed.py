"""Open a file of text as UTF-8, whatever it is packed in and encoded as.

Both are recognised by first bytes, never by name: gzip, bzip2, xz, zstd and LZ4 frames are unpacked as they are read,
a byte-order mark is removed, and UTF-16 and UTF-32 are recoded.
"""

import bz2
import codecs
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, cast

from argap.errors import FormatError, first_line
from argap.files.regular import check_unpacked

PACKED = {
    "gzip": rb"\x1f\x8b\x08[\0-\x1f]",
    "bzip2": rb"BZh[1-9](1AY&SY|\x17rE8P\x90)",
    "xz": rb"\xfd7zXZ\0",
    "zstd": rb"\x28\xb5\x2f\xfd",
    "lz4": rb"\x04\x22\x4d\x18",
}
"""Patterns of the first bytes of compressed files."""
MARKS = {
    b"\xef\xbb\xbf": "utf-8",
    b"\xff\xfe\0\0": "utf-32",
    b"\0\0\xfe\xff": "utf-32",
    b"\xff\xfe": "utf-16",
    b"\xfe\xff": "utf-16",
}
"""Encodings by byte-order mark; the first that fits counts."""
HEAD = 4096
"""First bytes that tell what a file is."""
CHUNK = 2**20
STORED = 2**16
"""Packed bytes read at once; of many short streams, what is left of them is copied for each."""
PADDING = 2**20
"""Zeros that may be behind the end of a packed file."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A file open for reading, as UTF-8."""

    file: BinaryIO
    """The text, from its start."""
    head: bytes
    """The first bytes of the text; they are still to be read from ``file``."""
    packed: str | None
    """The compression."""
    _raw: BinaryIO

    def position(self) -> int:
        """Return the number of bytes read so far of the file as stored; the measure of progress."""
        return self._raw.tell()


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """Open the text of ``path``.

    Raises `FormatError` for a file that cannot be read and, while it is read, for damaged or truncated compression, for
    an incomplete character of UTF-16, and for a file that unpacks to far more bytes than text would.
    """
    with _refused(path), path.open("rb") as raw:
        stored = raw if isinstance(raw, io.BufferedReader) else _buffered(_chunks(raw))
        start = stored.peek(HEAD)
        packed = compression_of(start)
        text = stored if packed is None else _buffered(_unpacked(stored, packed, path, raw))
        head = text.peek(HEAD)[:HEAD]
        if (encoding := encoding_of(head)) not in (None, "utf-8"):
            text = _buffered(_recoded(text, encoding, path))
            head = text.peek(HEAD)[:HEAD]
        elif encoding == "utf-8":
            head = head[len(text.read(3)) :]
        yield Opened(text, head, packed, cast(BinaryIO, raw))


def compression_of(head: bytes) -> str | None:
    """Return the compression that first bytes name."""
    return next((name for name, pattern in PACKED.items() if re.match(pattern, head)), None)


def encoding_of(head: bytes) -> str | None:
    """Return the encoding that first bytes name or betray; None: not said, so UTF-8.

    Without a mark, UTF-16 of mostly Latin letters is told from every other byte, which is 0.
    """
    for mark, name in MARKS.items():
        if head.startswith(mark):
            return name
    for zero, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        zeros, others = head[zero::2], head[1 - zero :: 2]
        if len(head) >= 4 and zeros.count(0) > 0.7 * len(zeros) and not others.count(0):
            decoded = head[: len(head) // 2 * 2].decode(encoding, errors="replace")
            return encoding if all(character.isprintable() or character.isspace() for character in decoded) else None
    return None


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """Turn the system's refusals to open or read ``path`` into `FormatError`."""
    try:
        yield
    except OSError as error:
        raise FormatError(f"{path}: not readable ({error.strerror or first_line(error)})") from error


class _Chunks(io.RawIOBase):
    """Chunks of bytes as a file to read."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            if (chunk := next(self._chunks, None)) is None:
                return 0
            self._rest = memoryview(chunk)
        size = min(len(buffer), len(self._rest))
        buffer[:size] = self._rest[:size]
        self._rest = self._rest[size:]
        return size


def _buffered(chunks: Iterator[bytes]) -> io.BufferedReader:
    return io.BufferedReader(_Chunks(chunks), CHUNK)


def _chunks(file: Any) -> Iterator[bytes]:
    return iter(lambda: file.read(CHUNK), b"")


def _unpacked(stored: io.BufferedReader, packed: str, path: Path, raw: Any) -> Iterator[bytes]:
    """Yield the unpacked bytes. Raises `FormatError` naming the file and how far it is whole."""
    size = 0
    try:
        for chunk in UNPACK[packed](stored):
            size += len(chunk)
            check_unpacked(path, size, raw.tell())
            yield chunk
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise FormatError(
            f"{path}: truncated or damaged {packed} after {size:,} bytes of text ({first_line(error)})"
        ) from error


class _Gzip:
    """A gzip stream with the interface of `bz2.BZ2Decompressor`. Python's own file skips padding byte by byte."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(wbits=31)
        self.needs_input = True

    def decompress(self, data: bytes, size: int) -> bytes:
        made = self._stream.decompress(self._stream.unconsumed_tail + data, size)
        self.needs_input = len(made) < size and not self.eof
        return made

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data


def _arrow(codec: str) -> Callable[[BinaryIO], Iterator[bytes]]:
    def unpack(stored: BinaryIO) -> Iterator[bytes]:
        import pyarrow

        return _chunks(pyarrow.input_stream(_buffered(_chunks(stored)), compression=codec))  # it closes what it reads

    return unpack


def _streams(new: Callable[[], Any]) -> Callable[[BinaryIO], Iterator[bytes]]:
    """Return a function that unpacks consecutive streams; Python's own files take garbage behind one for the end."""

    def unpack(stored: BinaryIO) -> Iterator[bytes]:
        stream = new()
        data = stored.read(STORED)
        while data or not stream.needs_input:
            yield stream.decompress(data, CHUNK)
            data = b""
            if stream.eof:
                padding = len(stream.unused_data)
                data = stream.unused_data.lstrip(b"\0")  # xz pads with zeros, and tapes pad gzip
                while not data and (more := stored.read(STORED)):
                    if (padding := padding + len(more)) > PADDING:
                        raise EOFError(f"over {PADDING:,} zeros behind the end of the stream")
                    data = more.lstrip(b"\0")
                if not data:
                    return
                stream = new()
            elif stream.needs_input:
                data = stored.read(STORED)
        raise EOFError("the end of the stream is missing")

    return unpack


UNPACK: dict[str, Callable[[BinaryIO], Iterator[bytes]]] = {
    "gzip": _streams(_Gzip),
    "bzip2": _streams(bz2.BZ2Decompressor),
    "xz": _streams(lzma.LZMADecompressor),
    "zstd": _arrow("zstd"),
    "lz4": _arrow("lz4"),
}


def _recoded(text: BinaryIO, encoding: str, path: Path) -> Iterator[bytes]:
    """Yield text as UTF-8; half a surrogate pair stays invalid. Raises `FormatError` for an incomplete character."""
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    try:
        for chunk in chain(_chunks(text), [b""]):
            yield decoder.decode(chunk, final=not chunk).encode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not complete {encoding.upper()} ({error.reason})") from error
