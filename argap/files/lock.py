"""One writer to a folder: a lock that the system releases when its process dies.

The lock is ``flock`` on ``.argap.lock`` in the folder, which is removed with it. NFS of Linux passes such locks to
the server, which releases those of a machine that crashed when its lease ends (a minute or two). On a file system
without locks the work continues unlocked, and one line says so.
"""

import errno
import functools
import inspect
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from argap.errors import ArgapError
from argap.files.atomic import remove_leftovers
from argap.runtime.progress import say

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

LOCK = ".argap.lock"
HELD = (errno.EWOULDBLOCK, errno.EACCES)
"""How ``flock`` says that another process has the lock."""

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")


@contextmanager
def alone_in(folder: Path, *, main: bool = True) -> Iterator[None]:
    """Hold the lock of ``folder`` in the ``with`` block; what killed processes left there is removed first.

    ``main`` False does nothing: of the processes of ``torchrun``, the main one holds the lock for all. A folder that
    the block leaves empty is removed. Raises `ArgapError` that names the process which holds the lock.
    """
    if not main or fcntl is None:
        yield
        return
    folder = Path(folder)
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    handle = _acquire(folder)
    try:
        if handle is not None:
            remove_leftovers(folder)
        yield
    finally:
        if handle is not None:
            (folder / LOCK).unlink(missing_ok=True)  # before the release, so that no one else's lock is removed
            os.close(handle)
        with suppress(OSError):
            for path in made:
                path.rmdir()


def one_writer(parameter: str) -> Callable[[Callable[Parameters, Returned]], Callable[Parameters, Returned]]:
    """Decorate a function to hold the lock of the folder in its argument ``parameter`` (`alone_in`).

    With several processes (the argument ``parallel``), the main one holds it.
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


def _acquire(folder: Path) -> int | None:
    """The open lock; None where the folder cannot be written, which its writer reports, or has no locks."""
    assert fcntl is not None
    path = folder / LOCK
    while True:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        except OSError:
            return None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(path).st_ino == os.fstat(handle).st_ino:
                _sign(handle)
                return handle
        except FileNotFoundError:
            pass  # its holder has removed it meanwhile
        except OSError as error:
            holder = "".join(sign for sign in os.read(handle, 200).decode(errors="replace") if sign.isprintable())
            os.close(handle)
            if error.errno in HELD:
                raise ArgapError(
                    f"{folder}: in use by {holder or 'another process'}; wait until it has ended, or choose another "
                    "folder"
                ) from None
            path.unlink(missing_ok=True)
            say(f"{folder}: no lock ({error.strerror}); do not run two commands on it at once")
            return None
        os.close(handle)


def _sign(handle: int) -> None:
    """Say in the lock who holds it."""
    with suppress(OSError):  # a full disk
        os.ftruncate(handle, 0)
        since = time.strftime("%Y-%m-%d %H:%M:%S %z")
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()} since {since}".encode(), 0)
