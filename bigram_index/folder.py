"""Folders that are whole or absent: everything is written into a sibling, which is then renamed."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from argap.bigram_index import manifest
from argap.errors import ArgapError


def refuse_existing(out: Path, *, overwrite: bool, marker: str = manifest.FILE) -> None:
    """Raise `ArgapError` where ``out`` must not be replaced: before any work is done, not after it.

    An index, which a file named ``marker`` tells, is replaced with ``overwrite`` only; any other folder never.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / marker).is_file():
        raise ArgapError(f"{out}: exists and is no index; choose another --out")
    if not overwrite:
        raise ArgapError(f"{out}: an index is already there; add --overwrite to replace it")


@contextmanager
def replacing_folder(out: Path, *, overwrite: bool, marker: str = manifest.FILE) -> Iterator[Path]:
    """Yield an empty temporary folder beside ``out``; on success it becomes ``out``, else it is removed."""
    out = Path(out).absolute()
    refuse_existing(out, overwrite=overwrite, marker=marker)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        if out.exists():
            old = out.with_name(f".{out.name}.{os.getpid()}.old")
            os.rename(out, old)
            os.rename(temporary, out)
            shutil.rmtree(old, ignore_errors=True)
        else:
            os.rename(temporary, out)
    except OSError as error:
        raise ArgapError(
            f"{out}: could not be written ({error.strerror or error}); nothing was left half-written. "
            "Choose another --out or free some space"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
