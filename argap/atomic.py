"""Files and folders that are whole or absent: write to a temporary name beside the target, then rename.

A reader never sees half a file, and a kill at any moment leaves the old file or the new one.
"""

import glob
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from argap.errors import ArgapError, FormatError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of ``path``; on success it becomes ``path``.

    The data is synced before the rename, so a crash cannot leave an empty file under the final name.
    On an exception the temporary file is removed. Raises `ArgapError` where the disk refuses.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise ArgapError(
            f"{path}: could not be written ({error.strerror or error}); nothing was left half-written. "
            "Free some space or choose another folder and run the same command again"
        ) from error
    finally:
        with suppress(OSError):  # where even the folder could not be made, there is nothing to remove
            temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(target: Path, *, remedy: str = "", sole_writer: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder beside ``target``; on success it becomes ``target``, else it is removed.

    Every file is synced before the rename. ``remedy``: what to do about a disk that refuses. ``sole_writer``: no other
    process writes ``target``, so temporary folders that killed processes left behind are removed first. Raises
    `ArgapError` where the disk refuses.
    """
    target = Path(target).absolute()
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    old = temporary.with_suffix(".old")
    try:
        for left in target.parent.glob(f".{glob.escape(target.name)}.*.tmp") if sole_writer else [temporary]:
            shutil.rmtree(left, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for path in temporary.rglob("*"):
            if path.is_file():
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
        if target.exists():
            os.rename(target, old)
        os.rename(temporary, target)
    except OSError as error:
        raise ArgapError(
            f"{target}: could not be written ({error.strerror or error}); nothing was left half-written. "
            f"{remedy or 'Free some space or choose another folder and run the same command again'}"
        ) from error
    finally:
        if old.exists() and not target.exists():  # the second rename failed
            os.rename(old, target)
        for path in (temporary, old):
            shutil.rmtree(path, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` in UTF-8, its lines ending alike on every system."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: Any, *, indent: int | None = 2) -> None:
    """Write ``value`` as JSON; NaN and infinity are refused, because JSON has neither. ``indent`` None: on one line."""
    write_text(path, json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises `FormatError` naming the file where it is missing or not an object."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(value, dict):
        raise FormatError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value
