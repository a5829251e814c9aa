"""Turn any failure of the command line into one line and an exit code.

1: an expected failure, one of the machine (no memory, no space, no permission), or one in the user's own mixer. 70: a
bug in argap; the traceback goes to a file. 130: interrupted. ``ARGAP_TRACEBACK=1`` prints the traceback of any failure
to stderr.
"""

import errno
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from pathlib import Path

from argap.errors import ArgapError, first_line, is_short_of_threads, with_flags
from argap.runtime.signals import INTERRUPTED, was_interrupted
from argap.runtime.streams import print_last
from argap.runtime.trust import own_files

INTERNAL = 70
"""Exit code of an internal error: EX_SOFTWARE of sysexits.h."""
MACHINE = {
    getattr(errno, name)
    for name in (
        *("EACCES", "EBUSY", "EDQUOT", "EEXIST", "EFBIG", "EINVAL", "EIO", "EISDIR", "ELOOP", "EMFILE"),
        *("ENAMETOOLONG", "ENFILE", "ENODEV", "ENOSPC", "ENOTDIR", "ENOTEMPTY", "ENXIO", "EPERM", "EROFS", "ESTALE"),
        *("ETIMEDOUT", "ETXTBSY"),
    )
    if hasattr(errno, name)
}
"""Errors caused by the machine, by missing permissions or by what lies in a folder, not by argap."""
NO_MEMORY = ("OutOfMemoryError", "OutOfMemoryException")
"""The errors of torch and of DuckDB, neither of which is a `MemoryError`."""
TOO_LARGE = re.compile(
    r"can't allocate memory|not enough memory|Storage size calculation overflowed|Maximum allowed dimension exceeded"
    r"|array is too big|(CUDA error|Triton Error \[CUDA\]): out of memory"
)
"""How NumPy, and torch where it raises no ``OutOfMemoryError``, refuse a size."""
OF_PATHS = {
    "Symlink loop from": "remove the link",
    "Could not determine home directory": "set HOME",
    "No usable temporary directory": "set TMPDIR to a folder that can be written",
}
"""What errors of the standard library about paths begin with, and what to do."""
LOST = re.compile(r"Connection (closed|reset) by|[Bb]roken pipe|NCCL (error|communicator was aborted)|remote peer")
"""How torch's process groups report that another process is gone."""
SECRET = re.compile(r"\bhf_\w{8,}|(?<=Bearer )\S+|(?<=://)[^\s/@]+(?=@)")
"""Tokens of the hub and of servers, and credentials in a URL."""
SIGNATURE = re.compile(
    r"([?&][^=&\s]*(?:sig|signature|token|key|secret|password|credential)=)[^&\s'\"]+", re.IGNORECASE
)
"""A signature or key in the query of a URL."""
HOLDS_SECRET = re.compile(r"(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?$", re.IGNORECASE)
"""The names of environment variables whose values are never printed."""
SHORTEST_SECRET = 8
ROOT = Path(__file__).parents[1]
"""The folder of argap's own code."""
LONGEST_LINE = 2000
"""Characters of a line to print; a name that it quotes may have any number."""
TO_SCORE = ("torch", "transformers", "numba", "triton", "liger_kernel")
"""Packages of the extra ``score``, which reading results does not need."""


def fail(error: BaseException, flags: Mapping[str, str]) -> int:
    """Print one line about ``error`` to stderr and return the exit code. ``flags``: as in `with_flags`."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if os.environ.get("ARGAP_TRACEBACK", "0") not in ("", "0"):
        print_last(_traceback(error))
    if was_interrupted():
        return INTERRUPTED
    code, line = 1, expected(error, flags)
    if line is None:
        code, line = INTERNAL, f"internal error ({_reason(error)}), please report it{_written(error)}"
    print_last(f"argap: {shortened(_without_secrets(line))}")
    return code


def shortened(line: str) -> str:
    """Return a line without the middle of what is too long to print."""
    half = LONGEST_LINE // 2 - 10
    return line if len(line) < LONGEST_LINE - 10 else f"{line[:half]} … {line[-half:]}"


def expected(error: BaseException, flags: Mapping[str, str]) -> str | None:
    """Return the line to print for a failure that is not a bug in argap; None for a bug."""
    if isinstance(error, ArgapError):
        return with_flags(" ".join(str(error).splitlines()), flags)
    if (line := _of_machine(error)) is not None:
        return line
    if "WORLD_SIZE" in os.environ and LOST.search(str(error)):
        return "another process of torchrun has ended; run the same command again to resume"
    if type(error).__name__ == "PanicException":  # a BaseException, of a library in Rust
        return f"a library could not handle what it was given ({_reason(error)})"
    if isinstance(error, ModuleNotFoundError) and (package := (error.name or "").partition(".")[0]) in TO_SCORE:
        return f"{package} is not installed; run `pip install 'argap[score]'`"
    if isinstance(error, UnicodeEncodeError):
        return (
            f"a name or text contains {error.object[error.start : error.end]!r}, which is not Unicode; expected UTF-8"
        )
    if isinstance(error, FileNotFoundError) and _is_nowhere():
        return "the working directory has been removed; run the command in another"
    if isinstance(error, OSError) and error.errno in MACHINE:
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror}"
    return _of_foreign_code(error)


def _of_foreign_code(error: BaseException) -> str | None:
    """Return the line for a failure in code that the user named, or in a library's while it is imported; else None."""
    frames = traceback.extract_tb(error.__traceback__)
    if own := [frame for frame in frames if frame.filename in own_files]:
        where = f"{own[-1].filename}, line {own[-1].lineno}"
        return f"{where}: {_reason(error)}; ARGAP_TRACEBACK=1 shows the traceback"
    files = [frame.filename for frame in frames]
    files = [name for name in files if Path(name) != ROOT / "runtime" / "signals.py"]  # its loader
    last = max((k for k, name in enumerate(files) if name.startswith("<frozen importlib")), default=len(files))
    inner = [Path(name) for name in files[last + 1 :]]
    if not inner or any(path.is_relative_to(ROOT) for path in inner):
        return None
    _, installed, below = inner[0].as_posix().rpartition("site-packages/")
    library = below.partition("/")[0].removesuffix(".py") if installed else inner[0].stem
    return f"{library} cannot be loaded ({_reason(error)}); check the environment variables that it reads"


def _of_machine(error: BaseException) -> str | None:
    """Return the line for a failure because memory or threads are short, or paths lead nowhere; None for any other."""
    if isinstance(error, MemoryError) or type(error).__name__ in NO_MEMORY or TOO_LARGE.search(str(error)):
        reason = (str(error).splitlines() or [""])[0]
        return f"out of memory{reason and f' ({reason})'}; use less text, shorter windows or a smaller batch"
    if is_short_of_threads(error):
        return f"no thread could be started ({first_line(error)}); raise the limits `ulimit -u` and `ulimit -v`"
    said = str(getattr(error, "strerror", None) or error).rstrip(".")
    remedy = next((do for start, do in OF_PATHS.items() if said.startswith(start)), None)
    return f"{said}; {remedy}" if isinstance(error, RuntimeError | FileNotFoundError) and remedy else None


def _is_nowhere() -> bool:
    """Return whether the working directory has been removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def _reason(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _written(error: BaseException) -> str:
    """Write the traceback to a new file, here or in the folder for temporary files, and return where it is."""
    name = f"argap-traceback-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    for of_folder in (Path.cwd, tempfile.gettempdir):
        try:
            folder = Path(of_folder())
            handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "w", encoding="utf-8", errors="replace") as file:
                file.write(_traceback(error))
        except OSError:
            continue
        return f"; the traceback is in {folder / name}"
    return "; ARGAP_TRACEBACK=1 shows the traceback"


def _traceback(error: BaseException) -> str:
    command = " ".join(["argap", *sys.argv[1:]])
    return _without_secrets(f"{command}\n\n{''.join(traceback.format_exception(error))}")


def _without_secrets(text: str) -> str:
    for name, value in os.environ.items():
        if HOLDS_SECRET.search(name) and len(value) >= SHORTEST_SECRET:
            text = text.replace(value, "***")
    return SECRET.sub("***", SIGNATURE.sub(r"\1***", text))
