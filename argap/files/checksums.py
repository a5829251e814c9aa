"""Checksums of the files of a folder: ``checksums.json``, beside the record that says the folder is whole.

A bit that flips on a disk or on the way to it can leave a file readable with other numbers in it. The checksum is the
CRC-32 of every mebibyte, as in an index. A file may also record BLAKE2b of 256 bits, which takes three times as long.
A folder without ``checksums.json``, as beside a ``gap.json`` of format 1, is read unchecked.
"""

import hashlib
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from argap.errors import FormatError
from argap.files.record import Record, read_record, write_record
from argap.files.remedies import remedy_for
from argap.runtime.interrupt import current

FILE = "checksums.json"
BLOCK = 2**20
"""Bytes with a CRC-32 of their own."""
Algorithm = Literal["crc32", "blake2b-256"]


class FileChecksums(Record, frozen=True):
    """What `FILE` holds."""

    algorithm: Algorithm
    files: dict[str, str]
    """The checksum of each file, by its name below the folder: hex, of CRC-32 eight digits for each mebibyte."""


class Checksum(NamedTuple):
    """What was recorded of one file."""

    algorithm: Algorithm
    digest: str


def sha256_of(path: Path) -> str:
    """Of a file's content, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_checksums(folder: Path, paths: Iterable[Path]) -> None:
    """Record the checksums of ``paths``, files below ``folder``, in place of those recorded before."""
    files = {path.relative_to(folder).as_posix(): _digest(path, "crc32") for path in paths}
    write_record(folder / FILE, FileChecksums("crc32", files))


def are_recorded(folder: Path, paths: Iterable[Path]) -> bool:
    """Whether all of ``paths`` below ``folder`` have a checksum. Raises `FormatError` for a broken file of them."""
    recorded = read_checksums(folder)
    return all(path.relative_to(folder).as_posix() in recorded for path in paths)


def check_files(folder: Path, paths: Iterable[Path]) -> None:
    """Raise `FormatError` for the first of ``paths`` that is damaged."""
    for _ in checked(folder, paths):
        pass


def checked(folder: Path, paths: Iterable[Path]) -> Iterator[Path]:
    """``paths`` below ``folder``, each once it was found to be as it was written; see `check_files`.

    A file is checked once in a process as long as its size and time of change stay. Raises `Interrupted` where that is
    asked for.
    """
    recorded, interrupt = read_checksums(folder), current()
    for path in paths:
        interrupt.check()
        if path.is_file():
            check_file(path, recorded.get(path.relative_to(folder).as_posix()))
        yield path


def check_file(path: Path, checksum: Checksum | None) -> None:
    """Raise `FormatError` for a file whose checksum is another than the recorded one; None: none was recorded."""
    if checksum is None:
        return
    status = path.stat()
    version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, checksum.digest)
    if version not in _whole and _digest(path, checksum.algorithm) != checksum.digest:
        raise FormatError(f"{path}: damaged, its checksum is not the one in {FILE}{remedy_for(path)}")
    _whole.add(version)


_whole: set[tuple[int, int, int, int, str]] = set()
"""Versions of files that were checked."""


def read_checksums(folder: Path) -> dict[str, Checksum]:
    """The checksum of each file, by its name below ``folder``; empty where there are none."""
    if not (folder / FILE).is_file():
        return {}
    record = read_record(folder / FILE, FileChecksums)
    return {name: Checksum(record.algorithm, digest) for name, digest in record.files.items()}


def crc32_of_blocks(path: Path) -> Iterator[str]:
    """Hex of the CRC-32 of each `BLOCK` bytes of a file."""
    block = memoryview(bytearray(BLOCK))
    with path.open("rb") as file:
        while size := file.readinto(block):
            yield f"{zlib.crc32(block[:size]):08x}"


def _digest(path: Path, algorithm: Algorithm) -> str:
    if algorithm == "crc32":
        return "".join(crc32_of_blocks(path))
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
