"""Write and check the checksums of a folder's files: ``checksums.json``, beside the record of the finished folder.

A bit that flips on a disk, or on the way to it, can leave a file readable but with other numbers in it. The checksum is
the CRC-32 of every mebibyte, as in an index. A file may also record 256-bit BLAKE2b, which takes three times as long.
A folder without ``checksums.json``, as beside a ``gap.json`` of format 1, is read unchecked.
"""

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from argap.errors import FormatError
from argap.files.record import Record, read_record, write_record
from argap.runtime.interrupt import current

FILE = "checksums.json"
BLOCK = 2**20
"""Bytes per CRC-32."""
Algorithm = Literal["crc32", "blake2b-256"]


class FileChecksums(Record, frozen=True):
    """The contents of `FILE`."""

    algorithm: Algorithm
    files: dict[str, str]
    """The checksum of each file in hex, by its path below the folder; CRC-32 has eight digits per mebibyte."""


class Checksum(NamedTuple):
    """The recorded checksum of one file."""

    algorithm: Algorithm
    digest: str


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path, paths: Iterable[Path]) -> None:
    """Record the checksums of ``paths``, files below ``folder``, and replace those recorded before."""
    files = {path.relative_to(folder).as_posix(): _digest(path, "crc32") for path in paths}
    write_record(folder / FILE, FileChecksums("crc32", files))


def are_recorded(folder: Path, paths: Iterable[Path]) -> bool:
    """Return whether all of ``paths`` below ``folder`` have a checksum. Raises `FormatError` for a broken `FILE`."""
    recorded = read_checksums(folder)
    return all(path.relative_to(folder).as_posix() in recorded for path in paths)


def check_files(folder: Path, paths: Iterable[Path], *, remedy: str = "") -> None:
    """Raise `FormatError` for the first of ``paths`` that is damaged. ``remedy``: what the user can do about it."""
    for _ in checked(folder, paths, remedy=remedy):
        pass


def checked(folder: Path, paths: Iterable[Path], *, remedy: str = "") -> Iterator[Path]:
    """Yield each of ``paths`` below ``folder`` after checking it; see `check_files`.

    A process checks a file again only if its size or modification time has changed. Raises `Interrupted` if asked to
    stop.
    """
    recorded, interrupt = read_checksums(folder), current()
    for path in paths:
        interrupt.check()
        if path.is_file():
            check_file(path, recorded.get(path.relative_to(folder).as_posix()), remedy=remedy)
        yield path


def check_file(path: Path, checksum: Checksum | None, *, remedy: str = "") -> None:
    """Raise `FormatError` if a file does not match its recorded checksum; None: none was recorded."""
    if checksum is None:
        return
    status = path.stat()
    version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, checksum.digest)
    if version not in _whole and _digest(path, checksum.algorithm) != checksum.digest:
        raise FormatError(f"{path}: damaged, its checksum is not the one in {FILE}{remedy and f'; {remedy}'}")
    _whole.add(version)


_whole: set[tuple[int, int, int, int, str]] = set()
"""File versions already checked."""


def read_checksums(folder: Path) -> dict[str, Checksum]:
    """Return the checksum of each file by its path below ``folder``; empty without a `FILE`."""
    if not (folder / FILE).is_file():
        return {}
    record = read_record(folder / FILE, FileChecksums, remedy="remove the file to read the folder unchecked")
    return {name: Checksum(record.algorithm, digest) for name, digest in record.files.items()}


def crc32_of_blocks(path: Path) -> Iterator[str]:
    """Yield the CRC-32 of every `BLOCK` bytes of a file in hex."""
    block = memoryview(bytearray(BLOCK))
    with path.open("rb") as file:
        while size := file.readinto(block):
            yield f"{zlib.crc32(block[:size]):08x}"


def _digest(path: Path, algorithm: Algorithm) -> str:
    if algorithm == "crc32":
        return "".join(crc32_of_blocks(path))
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
