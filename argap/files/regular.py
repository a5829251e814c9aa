"""Open nothing but files: a named pipe blocks for ever, and a device may have no end."""

import stat
from pathlib import Path

from argap.errors import FormatError

LARGEST_JSON = 2**28
"""Bytes of a file that is read whole as JSON."""
KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISDIR, "a folder"),
)


def check_regular(path: Path, most: int | None = None) -> None:
    """Raise `FormatError` if ``path``, links followed, is anything but a file, or has more than ``most`` bytes.

    What does not exist is left to the caller, and so is an object of a remote store.
    """
    if not isinstance(path, Path):
        return
    try:
        found = path.stat()
    except (OSError, ValueError):
        return
    if what := next((name for is_kind, name in KINDS if is_kind(found.st_mode)), None):
        raise FormatError(f"{path}: {what}; expected a file, which can be read twice")
    if most is not None and found.st_size > most:
        raise FormatError(f"{path}: {found.st_size:,} bytes; expected at most {most:,}")
