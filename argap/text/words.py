"""White-space-delimited words of a run of tokens, vectorised over the bytes of their text.

A word is a maximal run of bytes without ASCII white space, within one window: the models do not know the text before a
window either.
"""

from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa

SPACE = np.zeros(256, dtype=bool)
SPACE[list(b" \t\n\v\f\r")] = True


class Words(NamedTuple):
    """The words of a run of tokens. Legend: N tokens, K words."""

    number: np.ndarray
    """int32 ``[N]``: the word of a token's first character that is not white space; -1 for tokens of white space
    only."""
    start: np.ndarray
    """bool ``[N]``: whether that character begins the word."""
    texts: pa.StringArray
    """``[K]``, in the order of the text; a word may occur several times."""
    window: np.ndarray
    """int32 ``[K]``."""


class PieceBytes:
    """The bytes of every token of a vocabulary, one after the other."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pa.array(pieces, pa.large_binary())

    @cached_property
    def folded(self) -> "PieceBytes":
        """Return the same with ASCII letters in lower case."""
        return PieceBytes([piece.lower() for piece in self._pieces.to_pylist()])

    def text(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the bytes of ``tokens`` (int ``[N]``, uint8), and the end of each token in them (int64 ``[N]``)."""
        _, offsets, content = self._pieces.take(pa.array(tokens)).buffers()
        ends = np.frombuffer(offsets, np.int64)[1 : len(tokens) + 1]
        size = ends[-1] if len(tokens) else 0
        return np.frombuffer(content or b"", np.uint8)[:size], ends

    def words(self, tokens: np.ndarray, window: np.ndarray) -> Words:
        """Find the words of ``tokens`` (int ``[N]``), whole windows in order; ``window``: int32 ``[N]``."""
        text, ends = self.text(tokens)
        begin = np.append(0, ends)[:-1]
        dark = ~SPACE[text]
        breaks = np.zeros(len(text) + 1, dtype=bool)  # bytes that begin a window
        breaks[begin[np.flatnonzero(np.diff(window, prepend=-1))]] = True
        begins = dark.copy()
        begins[1:] &= ~dark[:-1] | breaks[1:-1]
        word = np.cumsum(begins) - 1
        # The first non-white byte at or after each token's start, if it is still inside the token.
        position = np.flatnonzero(dark)
        nearest = np.searchsorted(position, begin)
        first = np.append(position, len(text))[nearest]
        inside = first < ends
        number = np.full(len(tokens), -1, dtype=np.int32)
        number[inside] = word[first[inside]]
        start = np.zeros(len(tokens), dtype=bool)
        start[inside] = begins[first[inside]]
        owner = np.searchsorted(ends, np.flatnonzero(begins), side="right")
        return Words(number, start, _strings(text[dark], begins[dark]), window[owner])


def _strings(text: np.ndarray, begins: np.ndarray) -> pa.StringArray:
    """Return words without the white space between them; invalid UTF-8 (a window cut in a character) is U+FFFD."""
    offsets = np.append(np.flatnonzero(begins), len(text)).astype(np.int32)
    raw = text.tobytes()
    cut = np.any(text[begins] >> 6 == 0b10)  # a word that begins inside a character
    try:
        raw.decode()
    except UnicodeDecodeError:
        cut = True
    if cut:
        return pa.array([raw[a:b].decode(errors="replace") for a, b in pairwise(offsets)])
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(raw))


def seen_earlier(words: Words) -> np.ndarray:
    """Return bool ``[K]``: whether the same word occurs earlier in the same window."""
    code = words.texts.dictionary_encode().indices.to_numpy().astype(np.int64)
    pair = words.window.astype(np.int64) * (code.max(initial=0) + 1) + code
    first = np.unique(pair, return_index=True)[1]
    earlier = np.ones(len(pair), dtype=bool)
    earlier[first] = False
    return earlier
