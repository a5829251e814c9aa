"""Allow one writer per folder: a lock that the system releases when its process dies.

The lock is filelock's, ``flock`` on ``.argap.lock`` in the folder; the file is removed on release. Linux NFS passes
such locks to the server, which releases those of a crashed machine when its lease ends (a minute or two). On a file
system without locks the work continues unlocked, and one line says so.
"""

import functools
import inspect
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from argap.errors import ArgapError, FormatError
from argap.files.atomic import remove_leftovers
from argap.files.regular import check_regular
from argap.runtime.progress import say

if TYPE_CHECKING:
    from filelock import FileLock

LOCK = ".argap.lock"

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


@contextmanager
def alone_in(folder: Path, *, main: bool = True, wait: float = 0.0) -> Iterator[None]:
    """Hold the lock of ``folder`` in the ``with`` block, after removing leftovers of killed processes.

    ``main`` False does nothing: under ``torchrun``, the main process holds the lock for all. ``wait``: seconds for
    another holder to end. A folder that the block leaves empty is removed. Raises `ArgapError` that names the process
    holding the lock.
    """
    if not main:
        yield
        return
    folder = Path(folder)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    lock = _acquire(folder, wait)
    try:
        if lock is not None:
            remove_leftovers(folder)
        yield
    finally:
        if lock is not None:
            with suppress(OSError):  # Windows, which removes it with the release
                (folder / LOCK).unlink(missing_ok=True)  # before the release: no one else's lock is removed
            lock.release()
        with suppress(OSError):
            for path in made:
                path.rmdir()


def one_writer(parameter: str) -> Callable[[Callable[Parameters, Returned]], Callable[Parameters, Returned]]:
    """Decorate a function to hold the lock of the folder given as its argument ``parameter`` (`alone_in`).

    With several processes (argument ``parallel``), the main one holds it.
    """

    def decorate(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def locked(*arguments: Parameters.args, **options: Parameters.kwargs) -> Returned:
            given = signature.bind(*arguments, **options).arguments
            parallel = given.get("parallel")
            with alone_in(Path(given[parameter]), main=parallel is None or parallel.is_main):
                return function(*arguments, **options)

        return locked

    return decorate


def _acquire(folder: Path, wait: float) -> "FileLock | None":
    """Return the held lock; None if the folder has no locks or is not writable, which its writer will report."""
    from filelock import FileLock, Timeout  # imported late: 40 ms

    path = folder / LOCK
    lock = FileLock(path, timeout=wait, thread_local=False, on_acquired=_sign)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise ArgapError(
            f"{folder}: in use by {_holder(path)}; wait until it has ended, or choose another folder"
        ) from None
    except OSError as error:
        if path.is_file():  # writable, but cannot be locked
            say(f"{folder}: no lock ({error.strerror}); do not run two commands on it at once")
            with suppress(OSError):
                path.unlink()
        return None
    return lock


def _sign(handle: int) -> None:
    """Write into the lock file who holds it."""
    with suppress(OSError):  # a full disk
        os.ftruncate(handle, 0)
        since = time.strftime("%Y-%m-%d %H:%M:%S %z")
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()} since {since}".encode(), 0)


def _holder(path: Path) -> str:
    with suppress(OSError, FormatError):
        check_regular(path)
        with path.open("rb") as file:
            text = file.read(200).decode(errors="replace")
        return "".join(sign for sign in text if sign.isprintable()) or "another process"
    return "another process"
