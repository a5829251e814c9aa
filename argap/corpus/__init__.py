"""Corpora: text files and folders, JSON lines, Parquet, hub data sets, token shards, the standard library.

A corpus is named by one string:

- a file: ``.jsonl``/``.ndjson`` (also ``.gz``, ``.zst``), ``.parquet``, ``.bin``/``.npy`` (tokens), else text
- a folder: all such files below it, sorted by path
- ``hub:NAME?split=train&config=...&column=text&revision=...``: a data set of the Hugging Face hub, streamed
- ``s3://...``, ``gs://...`` and other paths that fsspec reaches: such a file or folder there
- ``stdlib:heldout`` and ``stdlib:train``: the source of this Python's standard library, the demo's text

Everything streams: memory does not grow with the corpus.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from argap.corpus import jsonl, parquet, shards, text
from argap.corpus.document import Tally, TextDocument, TokenShard
from argap.corpus.remote import is_remote, remote_path
from argap.errors import ArgapError
from argap.runtime.progress import say

Reader = Callable[[Path, str, str, Tally, Sequence[str]], Iterator[TextDocument]]

# Longest suffix first; a reader takes (path, domain, text column, tally, columns to keep).
READERS: dict[str, Reader] = {
    **dict.fromkeys(jsonl.SUFFIXES, jsonl.read),
    **dict.fromkeys(parquet.SUFFIXES, parquet.read),
    **dict.fromkeys(text.SUFFIXES, text.read),
}


class Corpus:
    """An iterable of `TextDocument` and `TokenShard`; ``tally`` fills while it is read."""

    def __init__(
        self, spec: str, open_items: Callable[[Tally], Iterator[TextDocument | TokenShard]], size: int | None = None
    ) -> None:
        self.spec = spec
        self.tally = Tally()
        self.size = size
        """Size of its files in bytes, if known."""
        self._open_items = open_items

    def __iter__(self) -> Iterator[TextDocument | TokenShard]:
        return self._open_items(self.tally)


def open_corpus(
    spec: str | Path,
    *,
    text_column: str = "text",
    token_dtype: str | np.dtype | None = None,
    keep: Sequence[str] = (),
) -> Corpus:
    """Open the corpus named by ``spec`` (the module's docstring lists the forms).

    ``text_column``: the column of JSON lines, Parquet and hub data sets that holds the text. ``keep``: more of their
    columns to keep with each document. ``token_dtype``: element type of headerless ``.bin`` shards, ``uint16`` or
    ``uint32``. Raises `ArgapError` if nothing readable is found, or if columns are to be kept of plain text; a broken
    file raises while it is read.
    """
    name = str(spec)
    if name.startswith("stdlib:"):
        _check_columns(name, keep)
        from argap.corpus import stdlib

        files = stdlib.modules(name.removeprefix("stdlib:"))
        return Corpus(name, lambda tally: stdlib.read(files, tally))
    if name.startswith("hub:"):
        from argap.corpus import hub

        return Corpus(name, lambda tally: hub.read(name.removeprefix("hub:"), text_column, tally, keep))
    dtype = shards.token_dtype(token_dtype)
    root = remote_path(name) if is_remote(name) else Path(spec)
    files = _files(root)
    for path in files:
        if _reader(path) not in (jsonl.read, parquet.read):
            _check_columns(str(path), keep)
    size = sum(path.stat().st_size for path in files)
    return Corpus(name, lambda tally: _read_files(root, files, text_column, dtype, tally, keep), size)


def say_remarks(corpora: Iterable[Corpus]) -> None:
    """Print remarks on corpora that were read, to stderr."""
    for corpus in corpora:
        for remark in corpus.tally.remarks():
            say(f"{corpus.spec}: {remark}")


def _check_columns(name: str, keep: Sequence[str]) -> None:
    if keep:
        raise ArgapError(
            f"{name}: has no column {keep[0]!r} to `keep`; columns are kept of JSON lines, Parquet and hub data sets"
        )


def _files(root: Path) -> list[Path]:
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise ArgapError(
            f"{root}: no such file or folder; expected text, .jsonl, .parquet, token shards (.bin, .npy), "
            "`hub:NAME?split=...` or `stdlib:heldout`"
        )
    below = [p for p in sorted(root.rglob("*")) if p.is_file()]
    below = [p for p in below if not any(part.startswith(".") for part in p.relative_to(root).parts)]
    files = [p for p in below if _reader(p) or p.suffix in shards.SUFFIXES]
    if not files:
        found = ", ".join(sorted({p.suffix or p.name for p in below})) or "nothing"
        raise ArgapError(f"{root}: no file that can be read as a corpus; found {found}, expected one of {_known()}")
    return files


def _read_files(
    root: Path, files: list[Path], text_column: str, dtype: np.dtype | None, tally: Tally, keep: Sequence[str]
) -> Iterator[TextDocument | TokenShard]:
    for path in files:
        domain = _domain(root, path)
        if path.suffix in shards.SUFFIXES:
            yield TokenShard(path, dtype, domain)
        else:
            reader = _reader(path) or text.read  # a file named explicitly is text, whatever its suffix
            yield from reader(path, domain, text_column, tally, keep)


def _reader(path: Path) -> Reader | None:
    name = path.name.lower()
    return next((read for suffix, read in READERS.items() if name.endswith(suffix)), None)


def _domain(root: Path, path: Path) -> str:
    """Return the folder directly below ``root`` that contains ``path``, else the name of ``root`` itself."""
    parts = path.relative_to(root).parts if root.is_dir() else ()
    return parts[0] if len(parts) > 1 else root.name.split(".")[0]


def _known() -> str:
    return " ".join([*READERS, *shards.SUFFIXES])
