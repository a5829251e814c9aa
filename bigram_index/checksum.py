"""Checksums by block: a damaged file is refused, and the message says where it is damaged.

CRC-32 of every mebibyte. It guards against truncation and bit rot, not against a forger.
"""

import zlib
from pathlib import Path
from typing import Any

from argap.errors import FormatError

BLOCK = 2**20


def describe(path: Path) -> dict[str, Any]:
    """``{"bytes": size, "crc32": [hex of each block]}`` of a file, as the manifests record it."""
    sums = []
    size = 0
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            size += len(block)
            sums.append(f"{zlib.crc32(block):08x}")
    return {"bytes": size, "crc32": sums}


def check_size(path: Path, expected: dict[str, Any], remedy: str) -> None:
    """Compare the size alone: cheap enough for every opening. Raises `FormatError`."""
    if not path.is_file():
        raise FormatError(f"{path}: no such file, but the index lists it; {remedy}")
    size = path.stat().st_size
    if size != expected["bytes"]:
        what = f"truncated at byte {size}" if size < expected["bytes"] else f"{size} bytes long"
        raise FormatError(f"{path}: {what}, expected {expected['bytes']} bytes; {remedy}")


def check(path: Path, expected: dict[str, Any], remedy: str) -> None:
    """Compare size and every block. Raises `FormatError` naming the first damaged block."""
    check_size(path, expected, remedy)
    with open(path, "rb") as file:
        for number, crc32 in enumerate(expected["crc32"]):
            if f"{zlib.crc32(file.read(BLOCK)):08x}" != crc32:
                start = number * BLOCK
                end = min(start + BLOCK, expected["bytes"])
                raise FormatError(f"{path}: damaged between bytes {start} and {end}; {remedy}")
