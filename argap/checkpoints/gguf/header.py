"""Read the header of a GGUF file: metadata and the table of tensors. The layout is that of ggml-org/ggml, docs/gguf.md.

The package ``gguf`` makes several arrays of each entry of a vocabulary, which takes seconds and was done again by every
reader; here lists are read when somebody asks for them.
"""

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from argap.errors import ArgapError, FormatError, extra, first_line
from argap.files.regular import check_regular

SUFFIX = ".gguf"
ALIGNMENT = 32
"""Tensors begin at a multiple of this number of bytes unless ``general.alignment`` says otherwise."""
NUMBERS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
"""Types of values, as `struct` writes them."""
TEXT, LIST = 8, 9
"""Types of the other values."""
READABLE = (2, 3)
"""Versions of the layout; the first, of 2023, has shorter counts."""
MOST_AXES = 4
BROKEN = (struct.error, ArithmeticError, LookupError, MemoryError, OSError, RecursionError, TypeError, ValueError)
"""What reading a header made by chance raises."""
LONGEST_TEXT = 2**26
"""Bytes of a text; a chat template has some thousand."""


class Listed(NamedTuple):
    """Where a list is in the file."""

    kind: int
    length: int
    offset: int


class Stored(NamedTuple):
    """A tensor in the file."""

    name: str
    shape: tuple[int, ...]
    """As in torch: the last axis is contiguous."""
    kind: int
    """ggml's number of the type."""
    offset: int
    """Bytes from the start of the data."""


@dataclass(frozen=True)
class Header:
    """What a file says of itself."""

    path: Path
    values: Mapping[str, Any]
    """Numbers, truth values and texts by key."""
    lists: Mapping[str, Listed]
    tensors: tuple[Stored, ...]
    start: int
    """Offset of the tensors' data."""

    @property
    def architecture(self) -> str:
        """Return llama.cpp's name for the model's architecture."""
        return str(self.values.get("general.architecture"))

    def read(self, key: str) -> list[Any] | None:
        """Read a list of the file; None if there is none under ``key``."""
        if (listed := self.lists.get(key)) is None:
            return None
        with open(self.path, "rb") as file, _whole(self.path):
            file.seek(listed.offset)
            if listed.kind == TEXT:
                return [_text(file) for _ in range(listed.length)]
            one = struct.calcsize(f"<{NUMBERS[listed.kind]}")
            return list(struct.unpack(f"<{listed.length}{NUMBERS[listed.kind]}", file.read(one * listed.length)))


def is_gguf(source: str | Path) -> bool:
    """Return whether ``source`` names a GGUF file."""
    return str(source).lower().endswith(SUFFIX)


def check_gguf(path: Path) -> None:
    """Raise `FormatError` for a file that is not GGUF, `ArgapError` for a part of one.

    Raises `ArgapError` also without the package ``gguf``.
    """
    check_regular(path)
    with open(path, "rb") as file:
        if (magic := file.read(4)) != b"GGUF":
            raise FormatError(f"{path}: not a GGUF file (begins with {magic!r})")
        version = int.from_bytes(file.read(4), "little")
    if version not in READABLE:
        raise FormatError(f"{path}: version {version} of GGUF; expected little-endian files of version 2 or 3")
    with extra("large"):
        import gguf  # noqa: F401
    if (parts := read_header(path).values.get("split.count", 1)) > 1:
        raise ArgapError(f"{path}: one of {parts} parts; join them with `llama-gguf-split --merge FIRST OUT`")


@cache
def read_header(path: Path) -> Header:
    """Read the header of a file. Raises `FormatError` for one that ends early or has values of an unknown type."""
    with open(path, "rb") as file, _whole(path):
        (_, version, tensors, count), found = struct.unpack("<4sIQQ", file.read(24)), {}
        for _ in range(count if version in READABLE else 0):
            key = _text(file)
            found[key] = _value(file, *struct.unpack("<I", file.read(4)))
        table = tuple(_stored(file) for _ in range(tensors if version in READABLE else 0))
        aligned = int(found.get("general.alignment", ALIGNMENT))
        if aligned < 1:
            raise FormatError(f"{path}: general.alignment: expected a positive number, found {aligned}")
        start = -(-file.tell() // aligned) * aligned
    lists = {key: value for key, value in found.items() if isinstance(value, Listed)}
    return Header(path, {key: found[key] for key in found if key not in lists}, lists, table, start)


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Turn errors of a file that ends early, or has unknown types, into `FormatError`."""
    try:
        yield
    except BROKEN as error:
        raise FormatError(f"{path}: its header is not one of a GGUF file ({first_line(error)[:200]})") from None


def _stored(file: BinaryIO) -> Stored:
    name = _text(file)
    (axes,) = struct.unpack("<I", file.read(4))
    if axes > MOST_AXES:
        raise OverflowError(f"{name[:100]} has {axes} axes")
    *shape, kind, offset = struct.unpack(f"<{axes}QIQ", file.read(8 * axes + 12))
    return Stored(name, tuple(reversed(shape)), kind, offset)


def _value(file: BinaryIO, kind: int) -> Any:
    """Read a value of type ``kind``, or pass over a list and return where it is."""
    if kind == TEXT:
        return _text(file)
    if kind != LIST:
        number = f"<{NUMBERS[kind]}"
        return struct.unpack(number, file.read(struct.calcsize(number)))[0]
    inner, length = struct.unpack("<IQ", file.read(12))
    listed = Listed(inner, length, file.tell())
    if inner in NUMBERS:
        file.seek(length * struct.calcsize(f"<{NUMBERS[inner]}"), 1)
        return listed
    for _ in range(length):
        _value(file, inner)
    return listed


def _text(file: BinaryIO) -> str:
    (length,) = struct.unpack("<Q", file.read(8))
    found = file.read(length) if length <= LONGEST_TEXT else b""
    if len(found) < length:
        raise OverflowError(f"a text of {length} bytes")
    return found.decode("utf-8", "replace")
