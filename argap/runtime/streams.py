"""What stdout and stderr write: no control sequence of a foreign text, and ASCII for what their encoding lacks.

Names of models, domains and slices, pieces of text and other libraries' messages come from files that anyone may have
made. Each stream encodes through `_Visible`, which writes control characters and direction marks as ``\\u001b``: one
gate for whatever prints. What argap itself draws with such sequences goes through `OwnSequences`.

Signs that a stream's encoding lacks are written as ASCII: ``Δ`` as ``d``, a dash as ``-``, ``τ`` as ``tau``, a
superscript after ``^``, letters without their accents, and others as ``\\u65e5``. So no result is lost to a sign in
argap's own tables.
"""

import codecs
import io
import os
import re
import select
import sys
import threading
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

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
VISIBLE = "-visible"
"""End of the name of an encoding that shows control characters. (The command-line library overrules plain ASCII.)"""
MARKS = (0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""Separators of lines, and marks that change the direction of text."""
SHOWN = {code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0), *MARKS) if chr(code) not in "\t\n"}
"""What is written for control characters: JSON's escapes, so that JSON stays what it is."""
REDRAWN = re.compile(r"\r|(\x1b\[A)+\Z")
"""What a progress bar of another library begins with to return to its line, or writes alone to go up to it."""
_drawing = threading.local()


def visible(text: str) -> str:
    """Return text whose control characters and direction marks are written out; newlines and tabs stay.

    >>> visible("a\\x1b[31mb\\u202ec")
    'a\\\\u001b[31mb\\\\u202ec'
    """
    return text.translate(SHOWN)


def on_one_line(text: str) -> str:
    """Return `visible` text with its newlines written out too."""
    return visible(text).replace("\n", r"\u000a")


class Shown:
    """A stream that shows control characters, for one that is not guarded itself."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(visible(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class OwnSequences(Shown):
    """A stream for what argap draws with control sequences itself; foreign parts of it must be `visible`."""

    def write(self, text: str) -> int:
        _drawing.own = True
        try:
            return self._stream.write(text)
        finally:
            _drawing.own = False


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


def guard_streams() -> None:
    """Let stdout and stderr show control characters, and write what their encoding lacks as ASCII."""
    _open_closed()
    if isinstance(getattr(sys.stdout, "buffer", None), io.RawIOBase):  # `python -u`, which drops what a disk cuts off
        _open("stdout", 1, "w", sys.stdout.encoding, sys.stdout.errors)
    codecs.register_error(HANDLER, _replaced)
    codecs.register(_visible)
    with suppress(OSError, ValueError, AttributeError):
        if sys.stderr.fileno() == 2:  # a descriptor that `native_stderr_closed` does not close
            own = open(os.dup(2), "w", encoding=sys.stderr.encoding, errors=sys.stderr.errors, buffering=1)  # noqa: SIM115
            sys.stderr = own
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.endswith(VISIBLE):
            errors = stream.errors if is_unicode(stream) else HANDLER
            stream.reconfigure(encoding=_encoding_of(stream, errors) + VISIBLE, errors=errors)


def _encoding_of(stream: TextIO, errors: str | None) -> str:
    """Return the encoding of a stream; ASCII for one that is none of texts, such as ``idna``."""
    try:
        "Δ".encode(stream.encoding, errors or "strict")
    except (UnicodeError, LookupError) as error:
        return stream.encoding if isinstance(error, UnicodeEncodeError) else "ascii"
    return stream.encoding


def _open_closed() -> None:
    """Open the null device for streams that the caller closed, as ``argap … >&-`` does.

    Otherwise the next file that is opened takes the stream's number, and libraries write their messages into it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number
        if getattr(sys, name) is None:
            _open(name, number, mode)


def _open(name: str, number: int, mode: str, encoding: str = "utf-8", errors: str | None = None) -> None:
    """Open a descriptor as a standard stream of Python, which writes each line when it ends."""
    stream = open(number, mode, 1, encoding=encoding, errors=errors, closefd=False)  # noqa: SIM115
    setattr(sys, name, stream)
    setattr(sys, f"__{name}__", stream)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(in_ascii, error.object[error.start : error.end])), error.end


def _visible(name: str) -> codecs.CodecInfo | None:
    """Find the encoding ``name``, as spelt by `codecs.lookup`, if it ends in `VISIBLE`."""
    inner, found, rest = name.replace("_", "-").rpartition(VISIBLE)
    if not found or rest:
        return None
    codec = codecs.lookup(inner)

    class Encoder(codecs.IncrementalEncoder):
        def encode(self, input: str, final: bool = False) -> bytes:
            drawn = getattr(_drawing, "own", False)
            kept = 0 if drawn or not (bar := REDRAWN.match(input)) else bar.end()
            text = input if drawn else input[:kept] + visible(input[kept:])
            return codec.encode(text, self.errors)[0]

    return codecs.CodecInfo(
        codec.encode, codec.decode, codec.streamreader, codec.streamwriter, Encoder, codec.incrementaldecoder,
        name=codec.name + VISIBLE,
    )  # fmt: skip


_native = threading.Lock()
_closed: list[int] = []
"""The real stderr, once for each block of `native_stderr_closed` in progress."""


@contextmanager
def native_stderr_closed() -> Iterator[None]:
    """Discard what libraries write to file descriptor 2 themselves, as reports of panics, in any thread.

    What Python prints is still shown: `guard_streams` gave it a descriptor of its own.
    """
    with _native:
        if not _closed:
            real = os.dup(2)
            with open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), 2)
        else:
            real = _closed[0]
        _closed.append(real)
    try:
        yield
    finally:
        with _native:
            _closed.pop()
            if not _closed:
                os.dup2(real, 2)
                os.close(real)


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
        except BaseException:
            with suppress(OSError):
                _flush()
            raise
        _flush()
    except (BrokenPipeError, SystemExit) as end:
        broken = end if isinstance(end, BrokenPipeError) else end.__context__  # typer and rich exit with 1
        if not isinstance(broken, BrokenPipeError):
            raise
        if not _reader_gone(before):
            raise broken from None
        _silence(sys.__stdout__)
        sys.exit(PIPE_CLOSED)


def print_last(line: str) -> None:
    """Print a line to stderr, or nothing if it cannot be written; the interpreter does not try again at its end."""
    with suppress(OSError):
        print(line, file=sys.stderr)
    end_stderr()


def end_stderr() -> None:
    """Write what was printed to stderr; what cannot be written is dropped, so that the exit code stays what it is."""
    try:
        sys.stderr.flush()
    except OSError:
        _silence(sys.stderr)


def _flush() -> None:
    """Write what was printed; if that fails, nothing is left for the interpreter to try again."""
    try:
        sys.stdout.flush()
    except OSError:
        _silence(sys.__stdout__)
        raise


def _silence(stream: Any) -> None:
    with suppress(OSError, ValueError), open(os.devnull, "wb") as nothing:
        os.dup2(nothing.fileno(), stream.fileno())


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
