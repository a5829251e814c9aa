"""Decide whether Python modules named in a file may be imported.

A checkpoint, a suite, a sweep or a training configuration can name a mixer as ``module:Class``, and importing a
module runs its code. So argap refuses modules outside its own registry unless the caller trusts the file: with
``--trust-remote-code`` on the command line, ``trust_remote_code=True`` in ``from_pretrained``, or `trusting` in
Python. A class that the caller registers with `argap.models.register_mixer` needs no trust.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

own_files: set[str] = set()
"""Files of the modules imported this way: a failure in one of them is not argap's."""
_trusted: ContextVar[bool] = ContextVar("argap_trusted", default=False)


@contextmanager
def trusting(trust: bool = True) -> Iterator[None]:
    """Allow modules named in files inside the ``with`` block, in this thread.

    Trust only ever grows: ``trusting(False)`` inside ``trusting()`` changes nothing.
    """
    token = _trusted.set(trust or _trusted.get())
    try:
        yield
    finally:
        _trusted.reset(token)


def is_trusted() -> bool:
    """Return whether the caller trusts the modules named in files."""
    return _trusted.get()


def call_with_trust(trust: bool, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call ``function`` with the trust of the parent process; a new process starts without any."""
    with trusting(trust):
        return function(*arguments)
