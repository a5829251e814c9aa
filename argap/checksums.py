"""Checksums of the files of a folder: ``checksums.json``, beside the record that says the folder is whole.

A bit that flips on a disk or on the way to it can leave a file readable with other numbers in it. The checksum is
BLAKE2b of 256 bits over the whole file. Folders of an earlier argap have none and are read without.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from argap.atomic import read_json, write_json
from argap.errors import FormatError

FILE = "checksums.json"


def write_checksums(folder: Path, paths: Iterable[Path]) -> None:
    """Record the checksums of ``paths``, files below ``folder``, in place of those recorded before."""
    files = {path.relative_to(folder).as_posix(): _digest(path) for path in paths}
    write_json(folder / FILE, {"algorithm": "blake2b-256", "files": files})


def is_damaged(folder: Path, path: Path) -> bool:
    """Whether the file ``path`` below ``folder`` has another checksum than recorded; False where none is recorded.

    Raises `FormatError` for a broken ``checksums.json``.
    """
    if not (folder / FILE).is_file():
        return False
    files = read_json(folder / FILE).get("files")
    if not isinstance(files, dict):
        raise FormatError(f"{folder / FILE}: files: expected an object; remove the file to read the folder unchecked")
    recorded = files.get(path.relative_to(folder).as_posix())
    return recorded is not None and recorded != _digest(path)


def check_files(folder: Path, paths: Iterable[Path], *, remedy: str = "") -> None:
    """Raise `FormatError` for the first of ``paths`` that is damaged. ``remedy``: what to do about it."""
    for path in paths:
        if path.is_file() and is_damaged(folder, path):
            raise FormatError(f"{path}: damaged, its checksum is not the one in {FILE}{remedy and f'; {remedy}'}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()
