"""Corpora: text files and folders, JSON, CSV, Parquet, Arrow, hub data sets, token shards, the standard library.

A corpus is named by one string:

- a file of text, JSON lines or one JSON array, CSV (these also compressed), Parquet, Arrow, or of tokens: ``.npy``,
  ``.npz``, ``.bin``, a Megatron pair. First bytes tell what it is (`argap.corpus.formats`)
- a folder: all such files below it, sorted by path; of plain text those with a known suffix
- ``hub:NAME?split=train&config=...&column=text&revision=...``: a data set of the Hugging Face hub, streamed
- ``s3://...``, ``gs://...`` and other paths that fsspec reaches: such a file or folder there
- ``stdlib:heldout`` and ``stdlib:train``: the source of this Python's standard library, the demo's text

Everything streams: memory does not grow with the corpus.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from argap.corpus import shards
from argap.corpus.document import Tally, TextDocument, TokenShard
from argap.corpus.files import find_files, read_file
from argap.corpus.remote import is_remote, remote_path
from argap.errors import ArgapError
from argap.runtime.progress import say


class Corpus:
    """An iterable of `TextDocument` and `TokenShard`; ``tally`` fills while it is read."""

    def __init__(
        self, spec: str, open_items: Callable[[Tally], Iterator[TextDocument | TokenShard]], size: int | None = None
    ) -> None:
        self.spec = spec
        self.tally = Tally()
        self.size = size
        """Size of its files in bytes, if known."""
        self.files: tuple[Path, ...] = ()
        """The files of a folder or file of this machine, in the order in which they are read."""
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

    ``text_column``: the column of JSON, CSV, Parquet, Arrow and hub data sets that holds the text. ``keep``: more of
    their columns to keep with each document. ``token_dtype``: element type of headerless ``.bin`` shards, ``uint16`` or
    ``uint32``. The beginning of every file is read: raises `ArgapError` for a file that is none of these or lacks the
    column, for a folder without any, and if columns are to be kept of plain text; a file that is broken further on
    raises while it is read.
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
    files, left_out = find_files(root, text_column, keep, headerless=dtype is not None)
    for file in files:
        if file.kind in ("text", "tokens"):
            _check_columns(str(file.path), keep)

    def read(tally: Tally) -> Iterator[TextDocument | TokenShard]:
        for file in files:
            yield from read_file(file, text_column, dtype, tally, keep)

    corpus = Corpus(name, read, sum(file.path.stat().st_size for file in files))
    corpus.tally.left_out = left_out
    corpus.files = () if is_remote(name) else tuple(file.path for file in files)
    return corpus


def say_remarks(corpora: Iterable[Corpus]) -> None:
    """Print remarks on corpora that were read, to stderr."""
    for corpus in corpora:
        for remark in corpus.tally.remarks():
            say(f"{corpus.spec}: {remark}")


def _check_columns(name: str, keep: Sequence[str]) -> None:
    if keep:
        raise ArgapError(
            f"{name}: has no column {keep[0]!r} to `keep`; columns are kept of JSON, CSV, Parquet, Arrow and hub data "
            "sets"
        )
