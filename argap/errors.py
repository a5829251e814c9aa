"""Expected failures, with messages of one line: what was found, what was expected, what to run.

A message marks a parameter with backticks, as Python spells it: ``use `seq_len=512` ``. The command line prints the
flag instead (`with_flags`), and exits with 1; tracebacks are for argap's own bugs.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

MARKED = re.compile(r"`([a-z][a-z0-9_]*)(?:=([^`]*))?`")
"""A parameter in a message: `` `name` `` or `` `name=value` ``."""

OBJECT = re.compile(r"<class '([\w.]+)'>|(<[^<>]+?) at 0x[0-9a-f]+(?=>)")
"""A type, or an object with its address, as Python shows them."""
NO_THREAD = re.compile(r"can't start new thread|Failed to launch worker thread|Resource temporarily unavailable")
"""How Python, pyarrow and the system say that there are no more threads, or no memory for one."""


class ArgapError(Exception):
    """An expected failure: the message is all that a user needs to see.

    Examples
    --------
    >>> import argap
    >>> try:
    ...     argap.open_result("no/such/folder")
    ... except argap.ArgapError as error:
    ...     print(error)
    no/such/folder: no gap.json there; expected a folder that `argap score` or `argap compare` wrote
    """


class FormatError(ArgapError):
    """A file that is corrupt, truncated, or written by a newer version."""


class MismatchError(ArgapError):
    """Two things that must agree (a tokenizer, an evaluation set, a configuration) and do not."""


class AbsentError(ArgapError):
    """Files that an answer can do without are not there. Only this is a reason for another source, never damage."""


class DivergedError(ArgapError):
    """A training whose loss or gradient is no longer finite."""


class Interrupted(ArgapError):
    """A query was stopped because its answer is no longer wanted."""


def with_flags(message: str, flags: Mapping[str, str]) -> str:
    """Replace the parameters in ``message`` by their command-line ``flags`` (name to flag).

    >>> with_flags("use `seq_len=512` or `overwrite=True`", {"seq_len": "--seq-len", "overwrite": "--overwrite"})
    'use --seq-len 512 or --overwrite'
    """

    def flag(match: re.Match[str]) -> str:
        name, value = match.groups()
        if name not in flags:
            return match[0]
        return flags[name] if value in (None, "True") else f"{flags[name]} {value}"

    return MARKED.sub(flag, message)


def is_short_of_threads(error: BaseException) -> bool:
    """Return whether the system started no thread or process for Python or a library, whatever they then say."""
    return NO_THREAD.search(str(error)) is not None


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error message; its type's name if the message is empty.

    Types in it are given by name, and objects without their addresses.

    >>> first_line(ValueError("<ast.BinOp object at 0x7fd6978372b0> is no <class 'int'>\\nand more"))
    '<ast.BinOp object> is no int'
    """
    return OBJECT.sub(r"\1\2", (str(error).splitlines() or [type(error).__name__])[0])


@contextmanager
def within(what: object) -> Iterator[None]:
    """Prefix the message of an `ArgapError` raised inside with ``what``, as in ``suite.yaml: sizes: missing``."""
    try:
        yield
    except ArgapError as error:
        raise ArgapError(f"{what}: {error}") from None


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Turn a missing package inside the block into an `ArgapError` that says how to install the extra ``name``."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or name).partition(".")[0]
        raise ArgapError(f"{package} is not installed; run `pip install 'argap[{name}]'`") from None
