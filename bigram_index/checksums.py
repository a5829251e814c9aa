"""Checksums by block: a damaged file is refused with a message that locates the damage.

CRC-32 of every mebibyte. It guards against truncation and bit rot, not against a forger.
"""

from itertools import zip_longest
from pathlib import Path
from typing import Protocol

from argap.errors import FormatError
from argap.files.checksums import BLOCK, crc32_of_blocks
from argap.records import Record


class Checksums(Record, frozen=True):
    """Size and checksums of a file."""

    bytes: int
    crc32: tuple[str, ...]
    """Hex of the CRC-32 of each block."""


class Checksummed(Protocol):
    """Any record with the fields of `Checksums`."""

    @property
    def bytes(self) -> int: ...

    @property
    def crc32(self) -> tuple[str, ...]: ...


def checksums_of(path: Path) -> Checksums:
    """Read a file once to compute its size and checksums."""
    return Checksums(path.stat().st_size, tuple(crc32_of_blocks(path)))


def check_size(path: Path, expected: Checksummed, remedy: str) -> None:
    """Compare only the size, which is cheap enough for every opening. Raises `FormatError`."""
    if not path.is_file():
        raise FormatError(f"{path}: no such file, but the index lists it; {remedy}")
    size = path.stat().st_size
    if size != expected.bytes:
        what = f"truncated at byte {size}" if size < expected.bytes else f"{size} bytes long"
        raise FormatError(f"{path}: {what}, expected {expected.bytes} bytes; {remedy}")


def check(path: Path, expected: Checksummed, remedy: str) -> None:
    """Compare size and every block. Raises `FormatError` naming the first damaged block."""
    check_size(path, expected, remedy)
    for number, (found, crc32) in enumerate(zip_longest(crc32_of_blocks(path), expected.crc32)):
        if found != crc32:
            start = number * BLOCK
            end = min(start + BLOCK, expected.bytes)
            raise FormatError(f"{path}: damaged between bytes {start} and {end}; {remedy}")
