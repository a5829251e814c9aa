"""Corpora on object stores that fsspec reaches (``s3://``, ``gs://``), with the interface of local paths."""

import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

from argap.errors import ArgapError, first_line

CREDENTIALS = re.compile(
    r"^https?://[^/?#]*@|://[^/?#]*:[^/?#]*@|[?&][^=&]*(?:sig|signature|token|key|secret|password|credential)=",
    re.IGNORECASE,
)
"""A user name or password before the host, or a signature or key behind the path."""


def is_remote(spec: str) -> bool:
    """Return whether ``spec`` is ``protocol://...``."""
    return "://" in spec


def check_recordable(spec: str) -> None:
    """Raise `ArgapError`, without the address, if it has credentials: runs and indexes record what they read."""
    if is_remote(spec) and CREDENTIALS.search(spec):
        raise ArgapError(
            f"an address of {spec.partition('://')[0]} with credentials in it, which every record would keep; give "
            "them in the store's own configuration or environment variables"
        )


def remote_path(spec: str) -> Path:
    """Return an object with the methods of `Path` that readers use: ``open``, ``rglob``, ``stat``.

    Raises `ArgapError` for a protocol that is unknown or whose package is not installed, and as `check_recordable`
    does.
    """
    check_recordable(spec)
    try:
        from upath import UPath
    except ImportError:
        raise ArgapError(
            f"{spec}: an object store is read with universal-pathlib; install it with `pip install argap[cluster]`"
        ) from None
    try:
        path = UPath(spec)
        _ = path.is_dir() or path.is_file()  # imports the protocol's package and queries the store
    except (ValueError, ImportError, OSError, RuntimeError) as error:
        raise ArgapError(f"{spec}: cannot be reached ({first_line(error)})") from error
    return cast(Path, path)


@contextmanager
def local_file(path: Path, member: str | None = None) -> Iterator[Path]:
    """Yield ``path`` itself if it is local, else a copy that lasts as long as the block; a copy of an archive's member.

    A memory map of the copy outlives it, because the system keeps the file's blocks until the map is closed.
    """
    if isinstance(path, Path) and member is None:
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=path.suffix) as copy:
        with ExitStack() as opened:
            file = opened.enter_context(path.open("rb"))
            if member is not None:
                file = opened.enter_context(zipfile.ZipFile(file).open(member))
            shutil.copyfileobj(file, copy, 2**24)
        copy.flush()
        yield Path(copy.name)
