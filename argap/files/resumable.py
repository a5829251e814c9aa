"""Resume work of a killed process: a folder's ``run.json`` gets ``finished`` only once the work is done."""

import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from argap.errors import ArgapError, FormatError, MismatchError
from argap.files.atomic import read_json, write_json
from argap.files.checksums import write_checksums
from argap.files.lock import LOCK
from argap.files.record import AnyRecord, Record, as_json, write_record
from argap.files.regular import is_there

VERSIONS = (
    *("argap", "torch", "transformers", "tokenizers", "numpy", "pyarrow", "triton", "flash-linear-attention"),
    *("vllm", "sglang"),
)
PARTS = ("tokens", "samples")
"""Folders of a run that hold its parts."""
FINGERPRINT = re.compile("[0-9a-f]{64}")


def folder_name(name: str) -> str:
    """Turn the name of a model or task into a folder name: one plain path component.

    Raises `ArgapError` for a name of which nothing remains, such as ``..``.
    """
    folder = re.sub(r"[^\w.+-]+", "-", name).strip("-")
    if not folder.strip("."):
        raise ArgapError(f"{name!r}: the name of a model or task becomes a folder; rename it")
    return folder


def case_aside(name: str, other: str) -> str:
    """Return what a line on two models of one name adds if the names differ in case.

    DuckDB, which reads conditions, and some file systems ignore it, so it tells no models apart.
    """
    return "" if name == other else f" (case aside: {other})"


PLAIN = re.compile(r"[^\W_][^/\\\x00-\x1f\x7f]*")
LONGEST_NAME = 200
"""Bytes of a name that becomes a folder; file systems allow 255, including the temporary suffix."""


def plain_name(what: str, name: object) -> str:
    """Return ``name``, read from a file, if it can name a folder or file unchanged.

    It must be text that begins with a letter or digit and contains no slash or control character, so that the folder
    lies directly below its parent. Raises `ArgapError` otherwise, saying ``what`` the name belongs to.
    """
    if not isinstance(name, str) or not PLAIN.fullmatch(name) or len(name.encode()) > LONGEST_NAME:
        raise ArgapError(
            f"{what} {name!r}: the name becomes a folder; expected text that begins with a letter or digit, without "
            f"slashes, of at most {LONGEST_NAME} bytes"
        )
    return name


class Environment(TypedDict):
    """The installation that did some work, as fields of its record."""

    versions: dict[str, str]
    git: str | None


def check_resumable(folder: Path, identity: Record, *, overwrite: bool) -> None:
    """Raise unless work of this ``identity`` can begin or resume in ``folder``; changes nothing.

    Raises `MismatchError` that names the first difference from the work already there, and `ArgapError` for a folder
    that holds something else.
    """
    path = folder / "run.json"
    if is_there(path):
        if overwrite:
            return
        recorded, wanted = read_json(path), msgspec.json.decode(msgspec.json.encode(identity))
        old = recorded.get("identity", {})
        if not isinstance(old, dict):
            raise FormatError(f"{path}: identity: expected an object, found {old!r}; discard it with `overwrite=True`")
        for field in msgspec.structs.fields(identity):  # those with their default value are not written
            key, default = field.encode_name, None if field.default is msgspec.NODEFAULT else field.default
            found, asked = (values.get(key, default) for values in (old, wanted))
            if found != asked:
                held = f"{shortened(found)}{_text_of(recorded) if key == 'evaluation set' else ''}"
                raise MismatchError(
                    f"{folder}: holds a run with {key} {held}, asked for {shortened(asked)}; choose another `out`, "
                    "or discard it with `overwrite=True`"
                )
    elif parts := [name for name in PARTS if (folder / name).exists()]:
        raise ArgapError(f"{folder}: holds {parts[0]} but no run.json; choose another `out`")
    elif not overwrite and folder.is_dir() and any(path.name != LOCK for path in folder.iterdir()):
        raise ArgapError(f"{folder}: not empty, and not a run; choose another `out`, or `overwrite=True`")


def shortened(value: object) -> object:
    """Shorten a fingerprint to its first digits, and write an object's values; return anything else unchanged.

    >>> shortened({"checkpoint": "ab" * 32, "dtype": "float32"})
    'checkpoint abababababab, dtype float32'
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {shortened(each)}" for key, each in value.items())
    return value[:12] if isinstance(value, str) and FINGERPRINT.fullmatch(value) else value


def _text_of(recorded: Mapping[str, Any]) -> str:
    """Return the options that chose a run's text, which say more than its fingerprint: `` (data …, seq_len 1024)``."""
    source = recorded.get("source")
    chosen = source.items() if isinstance(source, dict) else ()
    options = [f"{key} {value}" for key, value in chosen if value and key not in ("tokenizer", "index")]
    return f" ({', '.join(options)})" if options else ""


def begin(folder: Path, record: Record, identity: Record, *, overwrite: bool) -> None:
    """Start the work of ``record``, or resume it if the folder holds part of it; its ``run.json`` then stays.

    ``identity``: of the record; equal identities mean the same work. ``overwrite`` removes the parts of the run already
    there (`discard_parts`). Raises what `check_resumable` raises.
    """
    check_resumable(folder, identity, overwrite=overwrite)
    path = folder / "run.json"
    if is_there(path) and not overwrite:
        if read_json(path).get("finished"):
            return
    elif overwrite:
        for name in PARTS:
            discard_parts(folder / name)
    write_json(path, as_json(record) | {"finished": None})


def discard_parts(folder: Path, pattern: str = "part-*.parquet") -> None:
    """Remove the parts that argap wrote in ``folder``, and the folder itself if nothing else is in it.

    Raises `ArgapError` for a symbolic link: its target may belong to something else.
    """
    if folder.is_symlink():
        raise ArgapError(f"{folder}: a symbolic link, whose files `overwrite=True` does not remove; remove the link")
    for path in folder.glob(pattern):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    with suppress(OSError):  # absent, or not empty
        folder.rmdir()


def finish(folder: Path, record: AnyRecord, result: Record) -> AnyRecord:
    """Record the result of finished work and the checksums of its parts; return the new record."""
    write_checksums(folder, sorted(path for name in PARTS for path in (folder / name).glob("part-*.parquet")))
    record = msgspec.structs.replace(record, finished=result)
    write_record(folder / "run.json", record)
    return record


def environment() -> Environment:
    """Return the package versions and git revision of this installation."""
    return {"versions": {**_versions()}, "git": _git_revision()}


@cache
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in VERSIONS:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


@cache
def _git_revision() -> str | None:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None
