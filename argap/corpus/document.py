"""The items of a corpus: documents of text, shards of tokens, and a tally of both."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from argap.errors import FormatError
from argap.files.atomic import HALF_CHARACTER

ESCAPES = re.compile(
    r"(?P<whole>\\[^u]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""JSON escapes; not ``whole`` means half of a surrogate pair."""


@dataclass(frozen=True, slots=True)
class TextDocument:
    """One document of text. ``domain`` groups documents in reports, ``source`` gives file and position."""

    text: str
    domain: str
    source: str
    kept: Mapping[str, Any] = field(default_factory=dict)
    """The values of the kept columns (`argap.corpus.kept`)."""


@dataclass(frozen=True, slots=True)
class TokenShard:
    """A file of token ids, with documents separated by EOS. Opened later, when the tokenizer is known."""

    path: Path
    dtype: np.dtype | None
    """Element type of a headerless ``.bin``; None: uint16 if the vocabulary fits, else uint32."""
    domain: str


@dataclass(frozen=True, slots=True)
class TokenDocument:
    """One document as token ids: ``ids`` is int32, 1-D, without EOS, never empty."""

    ids: np.ndarray
    domain: str
    source: str
    kept: Mapping[str, Any] = field(default_factory=dict)
    """The values of the kept columns; spans are of tokens (`argap.corpus.kept.TokenSpans`)."""


def text_of(row: Mapping[str, Any], column: str, where: str, option: str) -> str:
    """Return the text of a row.

    Raises `FormatError` for a row without the column, listing its columns and the ``option`` that selects one, and for
    a value that is not text.
    """
    if column not in row:
        columns = ", ".join(map(repr, row)) or "none"
        raise FormatError(f"{where}: no text in column {column!r}; its columns are {columns}: name one with {option}")
    if not isinstance(text := row[column], str):
        shown = json.dumps(text, default=str)[:40]
        raise FormatError(f"{where}: column {column!r} holds {shown}; expected a string")
    return text


@dataclass
class Tally:
    """Counts worth reporting, filled while the corpus is read."""

    documents: int = 0
    empty: int = 0
    """Documents without a token, which are skipped."""
    invalid_utf8: int = 0
    """Documents with invalid UTF-8, read as U+FFFD."""
    bytes_read: float = 0
    """Bytes of the text files, as stored; the measure of progress."""
    columns: dict[str, None] = field(default_factory=dict)
    """Columns seen, if some are to be kept."""
    _lock: Lock = field(default_factory=Lock, repr=False)

    def decode(self, data: bytes) -> str:
        """Decode ``data`` as text; invalid UTF-8 is counted, not refused."""
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            return self._counted(data.decode("utf-8", errors="replace"))

    def decode_json(self, data: bytes) -> str:
        """Decode JSON as `decode` does; an escaped half of a surrogate pair is invalid too."""
        text = self.decode(data)
        if HALF_CHARACTER.search(text) is None:
            return text
        whole = ESCAPES.sub(lambda escape: escape["whole"] or r"\ufffd", text)
        return text if whole == text else self._counted(whole)

    def _counted(self, replaced: str) -> str:
        with self._lock:
            self.invalid_utf8 += 1
        return replaced

    def kept(self, row: Mapping[str, Any], keep: Sequence[str]) -> dict[str, Any]:
        """Return the columns ``keep`` of a row, null if it lacks one, and note the row's columns as seen."""
        if keep:
            self.columns.update(dict.fromkeys(row))
        return {name: row.get(name) for name in keep}

    def remarks(self) -> list[str]:
        """Return the remarks, one line each."""
        lines = []
        if self.invalid_utf8:
            lines.append(f"{self.invalid_utf8} documents contain invalid UTF-8, read as U+FFFD")
        if self.empty:
            lines.append(f"{self.empty} documents contain no token and were skipped")
        return lines
