"""What stdout and stderr do where they are not UTF-8, and when the reader of stdout goes away.

Signs that a stream's encoding lacks are written as ASCII: ``Δ`` as ``d``, a dash as ``-``, ``τ`` as ``tau``, a
superscript after ``^``, letters without their accents, and others as ``\\u65e5``. So no result is lost to a sign in
argap's own tables.
"""

import codecs
import encodings.ascii
import io
import os
import select
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PIPE_CLOSED = 141
"""Exit code after the reader of stdout has gone: 128 + SIGPIPE, as a shell shows it for git or cat."""
SIGNS = {
    "Δ": "d",
    "∞": "inf",
    "×": "x",
    "·": "*",
    "±": "+/-",
    "≤": "<=",
    "≥": ">=",
    "→": "->",
    "‖": "||",
    "\N{FRACTION SLASH}": "/",
    **dict.fromkeys("−–—‐‑", "-"),
    **dict.fromkeys("“”„", '"'),
    **dict.fromkeys("‘’", "'"),
}
HANDLER = "argap.in_ascii"
ASCII = "argap_ascii"
"""ASCII under a name that the command-line library does not take for a misconfiguration and overrule with UTF-8."""


def in_ascii(sign: str) -> str:
    """Return ASCII for a character.

    >>> [in_ascii(sign) for sign in "Δ–τ²é½日"]
    ['d', '-', 'tau', '^2', 'e', '1/2', '\\\\u65e5']
    """
    if sign in SIGNS:
        return SIGNS[sign]
    if (name := unicodedata.name(sign, "")).startswith("GREEK") and " LETTER " in name:
        return name.partition(" LETTER ")[2].split(" ")[0].lower()
    mark = {"<super>": "^", "<sub>": "_"}.get(unicodedata.decomposition(sign).partition(" ")[0], "")
    letters = "".join(SIGNS.get(each, each) for each in unicodedata.normalize("NFKD", sign))
    folded = letters.encode("ascii", "ignore").decode()
    return mark + folded if folded else sign.encode("ascii", "backslashreplace").decode()


def is_unicode(stream: object) -> bool:
    """Return whether a stream can write every character."""
    return codecs.lookup(getattr(stream, "encoding", None) or "utf-8").name.startswith("utf")


def degrade_streams() -> None:
    """Let stdout and stderr write what their encoding lacks as ASCII."""
    codecs.register_error(HANDLER, _replaced)
    codecs.register(_ascii)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not is_unicode(stream):
            plain = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding=ASCII if plain else None, errors=HANDLER)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(in_ascii, error.object[error.start : error.end])), error.end


def _ascii(name: str) -> codecs.CodecInfo | None:
    if name != ASCII:
        return None
    codec = encodings.ascii.getregentry()
    codec.name = name
    return codec


@contextmanager
def ending_with_pipe() -> Iterator[None]:
    """End silently with `PIPE_CLOSED` if the reader of stdout or stderr goes away, as ``head`` does.

    A pipe to a server can break too, so it is the streams that are asked. Raises `OSError` if what was printed cannot
    be written, for instance on a full disk.
    """
    before = _statuses()
    try:
        try:
            yield
        except SystemExit:
            _flush()
            raise
        _flush()
    except (BrokenPipeError, SystemExit) as end:
        broken = end if isinstance(end, BrokenPipeError) else end.__context__  # typer and rich exit with 1
        if not isinstance(broken, BrokenPipeError):
            raise
        if not _reader_gone(before):
            raise broken from None
        _silence()
        sys.exit(PIPE_CLOSED)


def _flush() -> None:
    """Write what was printed; if that fails, nothing is left for the interpreter to try again."""
    try:
        sys.stdout.flush()
    except OSError:
        _silence()
        raise


def _silence() -> None:
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), sys.__stdout__.fileno())  # pyright: ignore[reportOptionalMemberAccess]


def _statuses() -> list[tuple[int, int] | None]:
    """Return device and inode of stdout and stderr."""
    found: list[tuple[int, int] | None] = []
    for number in (1, 2):
        with suppress(OSError):
            status = os.fstat(number)
            found.append((status.st_dev, status.st_ino))
    return found


def _reader_gone(before: list[tuple[int, int] | None]) -> bool:
    """Return whether a stream is a pipe without a reader, or was one: rich puts the null device in its place."""
    if _statuses() != before:
        return True
    poll = select.poll()
    for number in (1, 2):
        poll.register(number, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
