"""Open nothing but files, and no line without end: a pipe blocks for ever, and a device or its copy may have no end.

Nor a file that says very much more than it stores, compressed or sparse.
"""

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import IO

from argap.errors import FormatError

LARGEST_JSON = 2**28
"""Bytes of a file that is read whole as JSON."""
LONGEST_LINE = 2**28
"""Bytes of a line of text, or an item of JSON, since the whole of it is in memory, up to four times as CSV."""
LARGEST_RATIO = 1000
"""Most bytes that a stored byte may unpack to; text reaches 20, repeated text a few hundred."""
MOST_UNPACKED = 2**30
"""Bytes that any file may unpack to, however small."""
PIECE = 2**20
"""Bytes of a line read at a time; a long line is joined in place, so that refusing it takes no second copy."""
KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISDIR, "a folder"),
)


def check_regular(path: Path, most: int | None = None) -> None:
    """Raise `FormatError` if ``path``, links followed, is anything but a file, or has more than ``most`` bytes.

    A sparse file, a link to nothing or to itself, and a path below a file raise it too. What does not exist is left to
    the caller, as are objects of a remote store.
    """
    if not isinstance(path, Path):
        return
    try:
        found = _status(path)
    except OSError:
        return  # opening it says why
    if found is None:
        return
    if most is not None and found.st_size > most:
        raise FormatError(f"{path}: {found.st_size:,} bytes; expected at most {most:,}")
    if _far_more(size := found.st_size, 0) and _far_more(size, stored := _stored(path, size)):
        raise FormatError(f"{path}: a sparse file, of whose {size:,} bytes {stored:,} are stored; expected all of them")


def _status(path: Path) -> os.stat_result | None:
    """Return what the system says of the file ``path``, links followed; None if nothing is there.

    Raises `FormatError` if anything else is, for a link to nothing or to itself and for a path below a file, and
    `OSError` if the system does not say.
    """
    found = None
    try:
        found = path.stat()
    except NotADirectoryError:
        above = next(folder for folder in path.parents if folder.exists())
        raise FormatError(f"{above}: expected a folder, with {path.relative_to(above)} in it") from None
    except FileNotFoundError:
        if path.is_symlink():
            raise FormatError(f"{path}: a link to nothing; expected a file, or no link") from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise FormatError(f"{path}: a link to itself; expected a file, or no link") from None
    except ValueError:  # no name of a file
        pass
    if found and (what := _other_kind(found)):
        raise FormatError(f"{path}: {what}; expected a file, which can be read twice")
    if found and found.st_dev == _of_processes():
        raise FormatError(f"{path}: made by the system as it is read, perhaps without end; expected a file on a disk")
    return found


def _other_kind(found: os.stat_result) -> str | None:
    """Return what is there if it is no file."""
    return next((name for is_kind, name in KINDS if is_kind(found.st_mode)), None)


def check_unpacked(path: Path, unpacked: int, packed: int) -> None:
    """Raise `FormatError` if ``packed`` bytes of a file became far more bytes than text would."""
    if _far_more(unpacked, packed):
        raise FormatError(f"{path}: unpacks to more than {LARGEST_RATIO:,} times its size; expected text")


def _far_more(unpacked: int, stored: int) -> bool:
    return unpacked > max(MOST_UNPACKED, LARGEST_RATIO * stored)


def _stored(path: Path, size: int) -> int:
    """Return the bytes of ``path`` outside its holes, counted no further than `_far_more` asks.

    All are, compressed or not, where the system or the file system knows no holes, or the file is not readable.
    """
    if not hasattr(os, "SEEK_DATA"):
        return size
    stored = end = 0
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return size
    try:
        while end < size and _far_more(size, stored):
            start = os.lseek(descriptor, end, os.SEEK_DATA)
            end = os.lseek(descriptor, start, os.SEEK_HOLE)
            stored += end - start
    except OSError as error:
        return stored if error.errno == errno.ENXIO else size  # ENXIO: nothing but a hole is left
    finally:
        os.close(descriptor)
    return stored


@cache
def _of_processes() -> int | None:
    """Return the device number of the file system of /proc; None without one."""
    return os.stat("/proc").st_dev if os.path.ismount("/proc") else None


def is_there(path: Path) -> bool:
    """Return whether an optional file is there. Raises `FormatError` if something else has its name.

    Raises `OSError` where the system does not say: `Path.is_file` of Python 3.14 would call that absent.
    """
    return _status(path) is not None if isinstance(path, Path) else path.is_file()


def for_pyarrow(path: Path) -> Path:
    """Return a path as pyarrow takes it for that file: absolute.

    It reads one that begins with ``run:1`` as an address, and one with ``~`` as below the user's home.
    """
    return path.absolute()


def check_replaceable(paths: Iterable[Path]) -> None:
    """Raise `FormatError` unless each of ``paths`` is a file or absent, before the first of them is replaced."""
    for path in paths:
        is_there(path)


def is_folder(path: Path) -> bool:
    """Return whether an optional folder is there. Raises `FormatError` if something else has its name."""
    if path.is_dir():
        return True
    if is_local(path):
        raise FormatError(f"{path}: {_other_kind(path.stat()) or 'a file'}; expected a folder")
    return False


def is_local(source: str | Path) -> bool:
    """Return whether ``source`` is a path that exists, rather than a name or a hub id.

    Raises `FormatError` for a link to nothing or to itself.
    """
    path = Path(source)
    if path.exists():
        return True
    if path.is_symlink():
        raise FormatError(f"{path}: a link to nothing; expected a file or folder, or no link")
    return False


def found_in(folder: Path, pattern: str) -> list[Path]:
    """Return what in an optional folder matches ``pattern``, sorted. Raises what `is_folder` raises."""
    return sorted(folder.glob(pattern)) if is_folder(folder) else []


def lines_of(file: IO[bytes], path: Path, most: int | None = None) -> Iterator[bytes]:
    """Yield the lines of the open file ``path``.

    Raises `FormatError` for one of more than ``most`` bytes; None: `LONGEST_LINE`.
    """
    most = LONGEST_LINE if most is None else most
    while piece := file.readline(min(PIECE, most + 1)):
        line = bytearray(piece) if len(piece) == PIECE else piece
        while len(piece) == PIECE and len(line) <= most and not piece.endswith(b"\n"):
            line += (piece := file.readline(PIECE))
        if len(line) > most:
            raise FormatError(f"{path}: a line of more than {most:,} bytes")
        yield bytes(line)
