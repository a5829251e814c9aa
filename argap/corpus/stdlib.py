"""Real text on every machine: the source of this Python's standard library.

The split is fixed: the modules of `HELD_OUT` are evaluation text (``stdlib:heldout``), the rest is training text
(``stdlib:train``). Test packages, site packages and generated tables are in neither. The held-out modules exist, as
single files, in Python 3.11 to 3.13.
"""

import sysconfig
from collections.abc import Iterator
from pathlib import Path

from argap.corpus.document import Tally, TextDocument
from argap.errors import ArgapError

HELD_OUT = (
    "argparse", "bisect", "calendar", "cmd", "colorsys", "configparser", "contextlib", "copy", "csv",
    "dataclasses", "filecmp", "fractions", "ftplib", "functools", "getopt", "graphlib", "gzip", "heapq",
    "imaplib", "mimetypes", "netrc", "pprint", "queue", "quopri", "sched", "selectors", "shelve", "shlex",
    "smtplib", "socketserver", "statistics", "string", "tabnanny", "textwrap", "timeit", "trace", "weakref",
    "zipapp",
)  # fmt: skip

SKIPPED_FOLDERS = {
    "site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "lib-dynload", "pydoc_data",
    "encodings", "ensurepip",
}  # fmt: skip
"""Tests (absent from many installations), other people's packages, and generated tables."""


def modules(split: str) -> list[Path]:
    """List the source files of a split, sorted by path. Raises `ArgapError` for an unknown split."""
    root = Path(sysconfig.get_path("stdlib"))
    held_out = [root / f"{name}.py" for name in HELD_OUT]
    if split == "heldout":
        files = [path for path in held_out if path.is_file()]
    elif split == "train":
        others = [path for path in sorted(root.rglob("*.py")) if path not in set(held_out)]
        files = [path for path in others if SKIPPED_FOLDERS.isdisjoint(path.relative_to(root).parts[:-1])]
    else:
        raise ArgapError(f"stdlib:{split}: unknown split; expected stdlib:heldout or stdlib:train")
    if not files:
        raise ArgapError(f"stdlib:{split}: {root} contains no Python source; give another text as `data`")
    return files


def read(files: list[Path], tally: Tally) -> Iterator[TextDocument]:
    """Read one document per module; its domain is ``stdlib``, its source the path below the library's root."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in files:
        yield TextDocument(tally.decode(path.read_bytes()), "stdlib", path.relative_to(root).as_posix())
