"""The items of a corpus: documents of text, shards of tokens, and a tally of both."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
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
SHOWN = 5
"""Files left out that are named."""
MOST_LISTED = 12
"""Columns that a message names; the keys of a vocabulary are none."""


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
    """An array of token ids, with documents separated by EOS. Opened later, when the tokenizer is known."""

    path: Path
    dtype: np.dtype | None
    """Element type of a headerless ``.bin``; None: uint16 if the vocabulary fits, else uint32."""
    domain: str
    stored: int
    """Its bytes, as stored."""
    member: str | None = None
    """The file in an ``.npz`` archive."""

    @property
    def name(self) -> str:
        """The path, with the array's name in an archive."""
        return str(self.path) if self.member is None else f"{self.path}[{self.member.removesuffix('.npy')}]"


@dataclass(frozen=True, slots=True)
class TokenDocument:
    """One document as token ids: ``ids`` is int32, 1-D, without EOS, never empty."""

    ids: np.ndarray
    domain: str
    source: str
    kept: Mapping[str, Any] = field(default_factory=dict)
    """The values of the kept columns; spans are of tokens (`argap.corpus.kept.TokenSpans`)."""


class NoText(FormatError):
    """A table or row without the text column; the message lists its columns and the ``option`` that selects one."""

    def __init__(self, where: str, column: str, columns: Iterable[Any], option: str = "`text_column`") -> None:
        self.what = f"no text in column {column!r}; its columns are {listed(columns)}"
        super().__init__(f"{where}: {self.what}: name one with {option}")


def listed(columns: Iterable[Any]) -> str:
    """Return the names of columns for a message; those of objects in a row with their keys."""
    of = columns if isinstance(columns, Mapping) else dict.fromkeys(columns)
    named = [f"{name!r}{_keys(of[name])}" for name in islice(of, MOST_LISTED)]
    more = f" and {len(of) - len(named)} more" if len(of) > len(named) else ""
    return f"{', '.join(named) or 'none'}{more}"


def _keys(value: Any) -> str:
    return f" (with {listed(dict.fromkeys(value))})" if isinstance(value, Mapping) and value else ""


def domain_of(row: Mapping[str, Any], default: str) -> str:
    """Return the domain of a row: its own, 0, false and the empty text included, or the Pile's name of its set."""
    meta = row.get("meta")
    named = row.get("domain"), meta.get("pile_set_name") if isinstance(meta, Mapping) else None
    return str(next((name for name in named if name is not None), default))


@dataclass
class Tally:
    """Counts worth reporting, filled while the corpus is read."""

    documents: int = 0
    empty: int = 0
    """Documents without a token, which are skipped."""
    null: int = 0
    """Documents whose text is null; they are empty."""
    invalid_utf8: int = 0
    """Documents with invalid UTF-8, read as U+FFFD."""
    bytes_read: float = 0
    """Bytes of the text files, as stored; the measure of progress."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Files of a folder that were not read, by name, and what they are."""
    columns: dict[str, None] = field(default_factory=dict)
    """Columns seen, if some are to be kept."""
    _lock: Lock = field(default_factory=Lock, repr=False)

    def text_of(self, row: Mapping[str, Any], column: str, where: str, option: str = "`text_column`") -> str:
        """Return the text of a row; null, which is counted, is the empty text.

        Raises `NoText` for a row without the column, and `FormatError` for a value that is not text.
        """
        if column not in row:
            raise NoText(where, column, row, option)
        text = row[column]
        if text is None:
            with self._lock:
                self.null += 1
            return ""
        if not isinstance(text, str):
            shown = json.dumps(text, default=str)[:40]
            raise FormatError(f"{where}: column {column!r} holds {shown}; expected a string")
        return text

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

    def kept(self, row: Mapping[str, Any], keep: Sequence[str]) -> Mapping[str, Any]:
        """Return the columns ``keep`` of a row, null if it lacks one, and note the row's columns as seen."""
        if keep:
            self.columns.update(dict.fromkeys(row))
        return {name: row.get(name) for name in keep}

    def remarks(self) -> list[str]:
        """Return the remarks, one line each."""
        lines = []
        if self.invalid_utf8:
            lines.append(f"{self.invalid_utf8} documents contain invalid UTF-8, read as U+FFFD")
        if self.null:
            lines.append(f"{self.null} documents have null for text and were skipped")
        if (others := self.empty - self.null) > 0:
            lines.append(f"{others} documents contain no token and were skipped")
        if self.left_out:
            named = [f"{name} ({what})" for name, what in self.left_out.items()]
            more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
            count = "1 file was" if len(named) == 1 else f"{len(named)} files were"
            lines.append(f"{count} left out: {', '.join(named[:SHOWN])}{more}")
        return lines
