"""Load the Rust tokenizer of a file that anyone may have made.

Its patterns may backtrack without end, its replacements may multiply a text, and the library panics, or aborts the
process, on some files. How far a file may lengthen a text is bounded by reading its parts (`check_parts`). Those of
unusual forms are first tried in a child with limits (`argap.text.trial`), on text that repeats every kind of character;
ordinary ones are not, since a trial takes as long as loading. A panic is one line (`panics`).
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from argap.errors import ArgapError, FormatError, first_line
from argap.files.regular import check_regular
from argap.runtime.child import run_child
from argap.runtime.streams import native_stderr_closed

LARGEST = 2**29
"""Bytes of a ``tokenizer.json``; the largest published ones have some 40 million."""
MOST_GROWTH = 100
"""Most characters that the replacements of a tokenizer may make of one; NFKD makes up to 18."""
LONGEST_WORD = 1000
"""Most characters of a word of WordPiece, whose time grows with the cube; 100 is usual."""
UNUSUAL = re.compile(r"\)(?:[*+]|\{\d+,)|\\[1-9kg]|\(\?(?:<|\()")
"""A repeated group, a reference, a look behind or a condition in a pattern, behind its character classes."""
CLASSES = re.compile(r"\\.|\[(?:\\.|\[:\w+:\]|[^\]\\])*\]", re.DOTALL)
MOST_QUANTIFIERS = 4
"""Quantifiers of one alternative of an ordinary pattern."""
CPU, MEMORY = 10, 2 * 10**9
"""Seconds and bytes of a trial; a vocabulary of 256,000 tokens takes a second and 300 MB."""


class _Model(msgspec.Struct):
    type: str | None = None
    continuing_subword_prefix: str | None = None
    max_input_chars_per_word: int | None = None
    dropout: float | None = None


class _Parts(msgspec.Struct):
    """The parts of a ``tokenizer.json`` but the vocabulary."""

    model: _Model
    normalizer: Any = None
    pre_tokenizer: Any = None
    decoder: Any = None


def load_backend(path: Path) -> Any:
    """Load a ``tokenizer.json``. Raises `FormatError` for one that cannot be read, or is not safe to use."""
    import tokenizers

    check_regular(path, LARGEST)
    check_parts(path.read_bytes(), path)
    with panics(f"{path}: not a readable tokenizer"):
        return tokenizers.Tokenizer.from_file(str(path))


def copy_backend(content: str, name: str) -> Any:
    """Load what ``to_str`` of a loaded tokenizer wrote. Raises `FormatError` if the library does not take it back."""
    import tokenizers

    with panics(f"{name}: its tokenizer cannot be copied"):
        return tokenizers.Tokenizer.from_str(content)


def check_parts(content: bytes, path: Path) -> None:
    """Raise `FormatError` for parts that multiply a text or cannot be tried. ``path``: a file with this content."""
    try:
        parts = msgspec.json.decode(content, type=_Parts)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not a readable tokenizer ({error})") from None
    growth, unusual = 1.0, bool(parts.model.continuing_subword_prefix) and parts.model.type == "BPE"
    for part in _flat([parts.normalizer, parts.pre_tokenizer, parts.decoder]):
        grows, known = _about(part)
        growth *= grows
        unusual |= not known
    if growth > MOST_GROWTH:
        raise FormatError(
            f"{path}: its replacements make up to {growth:,.0f} characters of one; expected at most {MOST_GROWTH}"
        )
    if (longest := parts.model.max_input_chars_per_word or 0) > LONGEST_WORD:
        raise FormatError(f"{path}: max_input_chars_per_word: expected at most {LONGEST_WORD:,}, found {longest:,}")
    if parts.model.dropout:
        raise FormatError(f"{path}: dropout {parts.model.dropout:g}, which cuts words at random; expected none")
    if unusual:
        run_child("argap.text.trial", path, path, cpu=CPU, memory=MEMORY, written=0)


def _flat(waiting: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects of nested parts, without recursion, since anyone may have nested them."""
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
        waiting += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _about(part: Mapping[str, Any]) -> tuple[float, bool]:
    """Return the most characters that a part makes of one, and whether it needs no trial."""
    pattern = part.get("pattern", {})
    text, regex = (pattern.get(key) if isinstance(pattern, dict) else None for key in ("String", "Regex"))
    made = max((len(str(part.get(key, ""))) for key in ("content", "prepend")), default=0)
    if isinstance(text, str):
        return max(1.0, made / max(1, len(text))), text != ""
    if isinstance(regex, str):
        return max(1.0, made), is_ordinary(regex)
    return (max(1.0, made) if part.get("type") in ("Replace", "Prepend") else 1.0), "precompiled_charsmap" not in part


def is_ordinary(pattern: str) -> bool:
    r"""Return whether a pattern is of a form that cannot backtrack without end.

    >>> [is_ordinary(pattern) for pattern in (r" ?\p{L}+|\s+(?!\S)|\s+", "(a+)+b", r"(a)\1", "a*a*a*a*a*b")]
    [True, False, False, False]
    """
    bare = CLASSES.sub(lambda match: match[0] if match[0][0] == "\\" and match[0][1] in "123456789kg" else "x", pattern)
    most = max(len(re.findall(r"[*+?]|\{\d+,", part.replace("(?", "("))) for part in bare.split("|"))
    return not UNUSUAL.search(bare) and most <= MOST_QUANTIFIERS


@contextmanager
def panics(what: str) -> Iterator[None]:
    """Turn a panic or refusal of the Rust library inside the block into a `FormatError` that begins with ``what``.

    A panic derives from `BaseException`; the report that the library prints of it is not shown.
    """
    try:
        with native_stderr_closed():
            yield
    except BaseException as error:
        if type(error) is not Exception and not is_panic(error):  # the library raises plain Exceptions
            raise
        raise FormatError(f"{what} ({first_line(error)[:300]})") from None


def is_panic(error: BaseException) -> bool:
    """Return whether a library written in Rust panicked."""
    return type(error).__name__ == "PanicException"


def check_backend(backend: Any, name: str) -> None:
    """Raise `ArgapError` for a tokenizer that transformers made of older files, as `check_parts` does."""
    import tempfile

    content = backend.to_str().encode()
    with tempfile.NamedTemporaryFile(suffix=".json") as copy:
        copy.write(content)
        copy.flush()
        try:
            check_parts(content, Path(copy.name))
        except ArgapError as error:
            raise ArgapError(f"{name}: {str(error).removeprefix(f'{copy.name}: ')}") from None
