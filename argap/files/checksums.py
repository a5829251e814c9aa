"""Checksums by block: CRC-32 of every mebibyte, recorded where the record of a folder says that it is whole.

A bit that flips on a disk or on the way to it can leave a file readable with other numbers in it. The checksums guard
against that and against truncation, not against a forger. An index keeps them with the entry of each file
(`Checksums`); other folders keep them in ``checksums.json``. A folder without it is read unchecked.
"""

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Literal, Protocol

from argap.errors import FormatError, MismatchError
from argap.files.record import Record, read_record, write_record
from argap.files.regular import check_regular, is_there
from argap.files.remedies import remedy_for
from argap.runtime.interrupt import current

FILE = "checksums.json"
BLOCK = 2**20
"""Bytes with a CRC-32 of their own."""
DIGITS = 8
"""Hex digits of a CRC-32."""


Version = tuple[int, int, int, int]
"""Of a file: device, inode, size, and modification time in ns."""
Versions = Mapping[Path, Version | None]


class FileChecksums(Record, frozen=True):
    """The contents of `FILE`."""

    algorithm: Literal["crc32"]
    files: dict[str, str]
    """The checksums of each file, by its name below the folder: `DIGITS` hex digits for each block, without spaces."""


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


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content in hex. Raises `FormatError` for anything but a file."""
    check_regular(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path, paths: Iterable[Path]) -> None:
    """Record the checksums of ``paths``, files below ``folder``, in place of those recorded before."""
    files = {path.relative_to(folder).as_posix(): "".join(crc32_of_blocks(path)) for path in paths}
    write_record(folder / FILE, FileChecksums("crc32", files))


def are_recorded(folder: Path, paths: Iterable[Path]) -> bool:
    """Return whether all of ``paths`` below ``folder`` have a checksum. Raises `FormatError` for a broken `FILE`."""
    recorded = read_checksums(folder)
    return all(path.relative_to(folder).as_posix() in recorded for path in paths)


def check_files(folder: Path, paths: Iterable[Path]) -> None:
    """Raise `FormatError` for the first of ``paths`` that is damaged."""
    for _ in checked(folder, paths):
        pass


def checked(folder: Path, paths: Iterable[Path]) -> Iterator[Path]:
    """Yield ``paths`` below ``folder``, each once it was found to be as it was written; see `check_files`.

    A process checks a file again only if its size or modification time has changed. Raises `Interrupted` if asked to
    stop.
    """
    recorded, interrupt = read_checksums(folder), current()
    for path in paths:
        interrupt.check()
        if path.is_file():
            check_file(path, recorded.get(path.relative_to(folder).as_posix()))
        yield path


def version_of(path: Path) -> Version | None:
    """Return what changes when a file is written again; None for one that is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@contextmanager
def unchanged(paths: Iterable[Path]) -> Iterator[None]:
    """Raise `MismatchError` after the block if files that it reads, more than once, were exchanged meanwhile."""
    versions = versions_of(paths)
    yield
    check_unchanged(versions)


def versions_of(paths: Iterable[Path]) -> Versions:
    """Return the version of each file; take it before the file is read."""
    return {path: version_of(path) for path in paths}


def check_unchanged(versions: Versions) -> None:
    """Raise `MismatchError` for the first file that no longer has its version."""
    for path, version in versions.items():
        if version_of(path) != version:
            raise MismatchError(f"{path}: written again or removed while it was read; run the command again")


def check_file(path: Path, recorded: str | None) -> None:
    """Raise `FormatError` for a file whose checksums are not the ``recorded`` ones; None: none were recorded."""
    if recorded is None:
        return
    if (file := version_of(path)) is None:
        raise FormatError(f"{path}: no such file{remedy_for(path)}")
    if (version := (file, recorded)) not in _whole:
        _check_blocks(path, [recorded[at : at + DIGITS] for at in range(0, len(recorded), DIGITS)], remedy_for(path))
    _whole.add(version)


_whole: set[tuple[Version, str]] = set()
"""File versions already checked."""


def read_checksums(folder: Path) -> dict[str, str]:
    """Return the checksums of each file, by its name below ``folder``; empty where there are none."""
    if not is_there(folder / FILE):
        return {}
    return read_record(folder / FILE, FileChecksums).files


def checksums_of(path: Path) -> Checksums:
    """Read a file once for its size and checksums."""
    return Checksums(path.stat().st_size, tuple(crc32_of_blocks(path)))


def check_size(path: Path, expected: Checksummed, remedy: str) -> None:
    """Compare the size alone, which is cheap enough for every opening. Raises `FormatError`."""
    if not path.is_file():
        raise FormatError(f"{path}: no such file, but the index lists it; {remedy}")
    size = path.stat().st_size
    if size != expected.bytes:
        what = f"truncated at byte {size}" if size < expected.bytes else f"{size} bytes long"
        raise FormatError(f"{path}: {what}, expected {expected.bytes} bytes; {remedy}")


def check(path: Path, expected: Checksummed, remedy: str) -> None:
    """Compare size and every block. Raises `FormatError` naming the first damaged block."""
    check_size(path, expected, remedy)
    _check_blocks(path, expected.crc32, f"; {remedy}")


def crc32_of_blocks(path: Path) -> Iterator[str]:
    """Yield the CRC-32 of each `BLOCK` bytes of a file in hex."""
    check_regular(path)
    block = memoryview(bytearray(BLOCK))
    with path.open("rb") as file:
        while size := file.readinto(block):
            yield f"{zlib.crc32(block[:size]):0{DIGITS}x}"


def _check_blocks(path: Path, expected: Sequence[str], remedy: str) -> None:
    for number, (found, recorded) in enumerate(zip_longest(crc32_of_blocks(path), expected)):
        if found != recorded:
            start, size = number * BLOCK, path.stat().st_size
            between = f"damaged between bytes {start} and {min(start + BLOCK, size)}"
            what = between if found else f"truncated at byte {size}"
            raise FormatError(f"{path}: {what}{remedy}")
