"""Write files and folders whole or not at all: write to a temporary name beside the target, then rename.

A reader never sees half a file, and a kill at any moment leaves the old file or the new one. Temporary names are
created exclusively, so nothing planted under such a name is written through. They contain machine and process, and the
next run in the folder removes those left by a killed process (`remove_leftovers`).
"""

import errno
import glob
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from argap.errors import ArgapError, FormatError
from argap.files.regular import LARGEST_JSON, check_regular

LEFTOVER = re.compile(
    r"\.(?P<name>.+)\.(?P<process>\d+)(?:-(?P<machine>[0-9a-f]{8})[0-9a-f]{8})?\.(?:tmp|old)", re.DOTALL
)
ELSEWHERE = "Free some space, or choose a folder that can be written, and run the same command again"
STALE_SECONDS = 24 * 3600.0
"""Age at which a temporary name of another machine, whose processes are not visible here, counts as left behind."""
OS_ERROR = re.compile(r"\(os error (\d+)\)")
"""How libraries written in Rust report errors of the operating system."""
HALF_CHARACTER = re.compile(r"\\u[dD][89a-fA-F]")
"""The escape of a surrogate; two make one character, and one alone cannot be written as UTF-8."""
SEAL = "checksum"
"""Key of a JSON object whose value is a checksum over all other keys."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of ``path``; on success it becomes ``path``.

    The data is synced before the rename, so a crash cannot leave an empty file under the final name.
    On an exception the temporary file is removed. Raises `ArgapError` if the disk refuses.
    """
    path = Path(path)
    temporary = _temporary(path)
    try:
        _make_folder(path.parent)
        tidy(path.parent)
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        allowed = temporary.stat().st_mode
        yield temporary
        _settle(temporary, allowed)
        os.replace(temporary, path)
    except Exception as error:
        if (reason := _refused_by_disk(error)) is None:
            raise
        raise ArgapError(
            f"{_final(path)}: could not be written ({reason}); nothing was left half-written. {ELSEWHERE}"
        ) from error
    finally:
        with suppress(OSError):  # where even the folder could not be made, there is nothing to remove
            temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(target: Path, *, remedy: str = "", sole_writer: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder beside ``target``; on success it becomes ``target``, else it is removed.

    Every file is synced before the rename. Temporary folders left beside it by killed processes are removed first.
    ``remedy``: what to do if the disk refuses. ``sole_writer``: no other process writes ``target``, so every temporary
    folder is a leftover. Raises `ArgapError` if the disk refuses, and for a ``target`` that is a symbolic link.
    """
    target = _absolute(Path(target))
    if target.is_symlink():
        raise ArgapError(f"{target}: a symbolic link, which is not replaced; expected the folder itself")
    temporary = _temporary(target)
    old = temporary.with_suffix(".old")
    try:
        for left in _temporaries(target):
            if sole_writer or _is_left(left):
                _remove_left(left)
        _make_folder(target.parent)
        temporary.mkdir()
        allowed = temporary.stat().st_mode & 0o666
        yield temporary
        for path in temporary.rglob("*"):
            if path.is_file():
                _settle(path, allowed)
        _swap(target, temporary, old)
    except Exception as error:
        if (reason := _refused_by_disk(error)) is None:
            raise
        raise ArgapError(
            f"{target}: could not be written ({reason}); nothing was left half-written. {remedy or ELSEWHERE}"
        ) from error
    finally:
        if old.exists() and not target.exists():  # the second rename failed
            os.rename(old, target)
        for path in (temporary, old):
            shutil.rmtree(path, ignore_errors=True)


def _absolute(target: Path) -> Path:
    """Return an absolute path; without ``..``, which may lead through the folder that is moved away."""
    if ".." not in target.parts:
        return target.absolute()
    return Path(os.path.realpath(target.parent), target.name)


def _swap(target: Path, new: Path, old: Path) -> None:
    """Rename ``target``, if it exists, to ``old``, then ``new`` to ``target``."""
    if target.exists():
        os.rename(target, old)
    os.rename(new, target)


def _final(path: Path) -> Path:
    """Return the path of a file once the temporary folders that it lies in have their names."""
    return Path(*(match["name"] if (match := LEFTOVER.fullmatch(part)) else part for part in path.parts))


def _settle(path: Path, allowed: int) -> None:
    """Sync the file and give it the permissions of a new one: safetensors lets only the owner read its files."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    mode = stat.S_IMODE(allowed)
    if stat.S_IMODE(path.stat().st_mode) != mode:
        with suppress(OSError):  # a share with fixed permissions
            path.chmod(mode)


def _temporaries(target: Path) -> list[Path]:
    """Return the temporary folders of ``target``, of any process."""
    beside = target.parent.glob(f".{glob.escape(target.name)}.*")
    return [path for path in beside if LEFTOVER.fullmatch(path.name) and path.is_dir() and not path.is_symlink()]


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:  # a file is in the way
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from None


def tidy(folder: Path) -> None:
    """Remove what killed processes left directly in ``folder``, once per process."""
    if folder not in _tidied:
        _tidied.add(folder)
        with suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if LEFTOVER.fullmatch(entry.name) and entry.name.endswith(".tmp") and _is_left(Path(entry.path)):
                    _remove_left(Path(entry.path))


_tidied: set[Path] = set()


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files and folders below ``folder`` whose process was killed, without following links.

    A folder that was set aside but never replaced gets its name back.
    """
    for parent, folders, files in os.walk(folder):
        for name in [name for name in (*folders, *files) if LEFTOVER.fullmatch(name)]:
            if _is_left(path := Path(parent, name)):
                _remove_left(path)
        folders[:] = [name for name in folders if not LEFTOVER.fullmatch(name)]


def _remove_left(path: Path) -> None:
    """Remove a leftover of a killed process; a folder that it had set aside but not replaced gets its name back."""
    match = LEFTOVER.fullmatch(path.name)
    assert match is not None
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
    elif path.suffix == ".old" and not (target := path.with_name(match["name"])).exists():
        os.rename(path, target)  # killed between the two renames of `replacing_folder`
    else:
        shutil.rmtree(path, ignore_errors=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}-{_machine()}{secrets.token_hex(4)}.tmp")


@cache
def _machine() -> str:
    """Return eight hex digits for the machine, or container, whose process numbers this process sees."""
    with suppress(OSError):
        return hashlib.blake2b(
            f"{platform.node()} {os.readlink('/proc/self/ns/pid')}".encode(), digest_size=4
        ).hexdigest()
    return hashlib.blake2b(platform.node().encode(), digest_size=4).hexdigest()


def _is_left(path: Path) -> bool:
    """Return whether the process that made a temporary name is gone."""
    match = LEFTOVER.fullmatch(path.name)
    assert match is not None
    if match["machine"] != _machine():
        try:
            return time.time() - path.lstat().st_mtime > STALE_SECONDS
        except OSError:
            return False
    try:
        os.kill(int(match["process"]), 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False  # another user's process
    return False


def _refused_by_disk(error: Exception) -> str | None:
    """Return why the disk refused; None if the error has another cause."""
    if isinstance(error, OSError):
        return os.strerror(error.errno) if error.errno else str(error)
    code = OS_ERROR.search(str(error))
    return os.strerror(int(code[1])) if code and not isinstance(error, ArgapError) else None


def append_text(path: Path, text: str) -> None:
    """Append ``text`` as UTF-8. Raises `ArgapError` if the disk refuses; a part of the text may then be there."""
    try:
        with open(path, "a", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except OSError as error:
        raise ArgapError(f"{path}: could not be written ({_refused_by_disk(error)}). {ELSEWHERE}") from error


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8 with the same line endings on every system."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(
    path: Path, value: dict[str, Any], *, indent: int | None = 2, lines: str | None = None, seal: bool = True
) -> None:
    """Write ``value`` as JSON; raise `ValueError` for NaN and infinity, which JSON lacks. ``indent`` None: on one line.

    ``lines``: the key of a list whose elements are written one per line. ``seal``: add the key ``checksum``, so that
    `read_json` notices a damaged digit; False for formats of other tools.
    """
    value = _sealed(value) if seal else value
    if lines is None or not value[lines]:
        write_text(path, _json(value, indent))
        return
    listed = ",\n".join("    " + _json(row, None).rstrip("\n") for row in value[lines])
    text = _json({**value, lines: []}, indent)
    write_text(path, text.replace(f'"{lines}": []', f'"{lines}": [\n{listed}\n  ]', 1))


def write_json_lines(path: Path, values: Iterable[dict[str, Any]]) -> None:
    """Write one object per line, each with its own seal, so that a line does not change when others come or go."""
    write_text(path, "".join(_json(_sealed(value), None) for value in values))


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object and remove its seal; an object without one is read unchecked.

    Raises `FormatError`, naming the file, if it is missing, not an object, or does not match its checksum.
    """
    return _unsealed(path, _read_text(path))


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read the objects of `write_json_lines`. Raises `FormatError` as `read_json` does, with the line number."""
    lines = _read_text(path).removesuffix("\n").split("\n")
    return [_unsealed(f"{path}: line {number}", line) for number, line in enumerate(lines, 1) if lines != [""]]


def _read_text(path: Path) -> str:
    check_regular(Path(path), LARGEST_JSON)
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: not readable as JSON ({error})") from error


def _unsealed(where: object, text: str) -> dict[str, Any]:
    """Parse a JSON object and check it against its seal."""
    try:
        value = parse_json(text)
    except ValueError as error:
        raise FormatError(f"{where}: not readable as JSON ({error})") from error
    if not isinstance(value, dict):
        raise FormatError(f"{where}: expected a JSON object, found {type(value).__name__}")
    if SEAL in value and value.pop(SEAL) != _seal(value):
        raise FormatError(
            f"{where}: damaged, or changed by hand: its {SEAL} does not match its contents; without that "
            "key it is read unchecked"
        )
    return value


def parse_json(text: str) -> Any:
    """Parse a JSON value. Raises `ValueError`, also if it is nested too deeply or contains half a character."""
    try:
        value = json.loads(text)
        if HALF_CHARACTER.search(text):
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except UnicodeEncodeError as error:
        raise ValueError(f"{error.object[error.start]!r} is half a character") from None
    return value


def _json(value: dict[str, Any], indent: int | None) -> str:
    return json.dumps(value, indent=indent, allow_nan=False, ensure_ascii=False) + "\n"


def _sealed(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, SEAL: _seal(json.loads(json.dumps(value)))}


def _seal(value: dict[str, Any]) -> str:
    """Return a 128-bit BLAKE2b hash of the values, independent of key order and white space."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
