"""Corpora on object stores that fsspec reaches (``s3://``, ``gs://``), with the interface of local paths."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

from argap.errors import ArgapError


def is_remote(spec: str) -> bool:
    """Whether ``spec`` is ``protocol://...``."""
    return "://" in spec


def remote_path(spec: str) -> Path:
    """An object with the methods of `Path` that readers use: ``open``, ``rglob``, ``stat``.

    Raises `ArgapError` for a protocol that is unknown or whose package is not installed.
    """
    try:
        from upath import UPath
    except ImportError:
        raise ArgapError(
            f"{spec}: an object store is read with universal-pathlib; install it with `pip install argap[cluster]`"
        ) from None
    try:
        path = UPath(spec)
        path.exists()  # imports the protocol's package and asks the store
    except (ValueError, ImportError, OSError) as error:
        raise ArgapError(f"{spec}: cannot be reached ({str(error).splitlines()[0]})") from error
    return cast(Path, path)


@contextmanager
def local_file(path: Path) -> Iterator[Path]:
    """``path`` itself if it is local, else a copy that lasts as long as the block.

    A memory map of the copy outlives it, because the system keeps the file's blocks until the map is closed.
    """
    if isinstance(path, Path):
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=path.suffix) as copy:
        with path.open("rb") as file:
            shutil.copyfileobj(file, copy, 2**24)
        copy.flush()
        yield Path(copy.name)
