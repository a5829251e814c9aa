"""Checksums of the files of a folder: ``checksums.json``, beside the record that says the folder is whole.

A bit that flips on a disk or on the way to it can leave a file readable with other numbers in it. The checksum is
BLAKE2b of 256 bits over the whole file. Folders of an earlier argap have none and are read without.
"""

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from argap.errors import FormatError
from argap.records.record import Record, read_record, write_record

FILE = "checksums.json"


class FileChecksums(Record, frozen=True):
    """What `FILE` holds."""

    algorithm: str
    files: dict[str, str]
    """The checksum of each file, by its name below the folder."""


def write_checksums(folder: Path, paths: Iterable[Path]) -> None:
    """Record the checksums of ``paths``, files below ``folder``, in place of those recorded before."""
    files = {path.relative_to(folder).as_posix(): _digest(path) for path in paths}
    write_record(folder / FILE, FileChecksums("blake2b-256", files))


def are_recorded(folder: Path, paths: Iterable[Path]) -> bool:
    """Whether all of ``paths`` below ``folder`` have a checksum. Raises `FormatError` for a broken file of them."""
    recorded = read_checksums(folder)
    return all(path.relative_to(folder).as_posix() in recorded for path in paths)


def check_files(folder: Path, paths: Iterable[Path], *, remedy: str = "") -> None:
    """Raise `FormatError` for the first of ``paths`` that is damaged. ``remedy``: what to do about it."""
    for _ in checked(folder, paths, remedy=remedy):
        pass


def checked(folder: Path, paths: Iterable[Path], *, remedy: str = "") -> Iterator[Path]:
    """``paths`` below ``folder``, each once it was found to be as it was written; see `check_files`.

    A file is checked once in a process as long as its size and time of change stay.
    """
    recorded = read_checksums(folder)
    for path in paths:
        if path.is_file():
            check_file(path, recorded.get(path.relative_to(folder).as_posix()), remedy=remedy)
        yield path


def check_file(path: Path, checksum: str | None, *, remedy: str = "") -> None:
    """Raise `FormatError` for a file whose checksum is another than the recorded one; None: none was recorded."""
    if checksum is None:
        return
    status = path.stat()
    version = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, checksum)
    if version not in _whole and _digest(path) != checksum:
        raise FormatError(f"{path}: damaged, its checksum is not the one in {FILE}{remedy and f'; {remedy}'}")
    _whole.add(version)


_whole: set[tuple[int, int, int, int, str]] = set()
"""Versions of files that were checked."""


def read_checksums(folder: Path) -> dict[str, str]:
    """The checksum of each file, by its name below ``folder``; empty where there are none."""
    if not (folder / FILE).is_file():
        return {}
    return read_record(folder / FILE, FileChecksums, remedy="remove the file to read the folder unchecked").files


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
