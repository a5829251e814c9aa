"""One of N equal shares of a corpus, for arrays of jobs that know nothing of each other.

A text corpus is dealt out document by document, a token file is cut where documents end. The indexes of
all N shares, merged, are the index of the whole, byte for byte.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from argap.errors import ArgapError

SCAN = 2**16


@dataclass(frozen=True)
class Share:
    """Share ``number`` (from 0) of ``of``."""

    number: int = 0
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> "Share":
        """``I/N`` with 0 ≤ I < N. Raises `ArgapError` for anything else."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or int(match[1]) >= int(match[2]):
            raise ArgapError(f"--shard {text}: expected I/N with I from 0 to N - 1, for instance 0/4")
        return cls(int(match[1]), int(match[2]))

    def label(self, source: str) -> str:
        """How ``index.json`` names this share of a source."""
        return source if self.of == 1 else f"{source}#{self.number}/{self.of}"

    def bounds(self, length: int) -> tuple[int, int]:
        """The part of ``range(length)`` that is this share's."""
        return length * self.number // self.of, length * (self.number + 1) // self.of

    def cut(self, tokens: np.ndarray, eos: int) -> np.ndarray:
        """The documents of a stream, `[N]`, that begin in this share of it."""
        start, stop = self.bounds(len(tokens))
        return tokens[_next_document(tokens, eos, start) : _next_document(tokens, eos, stop)]


def _next_document(tokens: np.ndarray, eos: int, at: int) -> int:
    """The first position from ``at`` on where a document can begin: 0, behind an EOS, or the end."""
    if at == 0:
        return 0
    for start in range(at - 1, len(tokens), SCAN):
        ends = np.flatnonzero(tokens[start : start + SCAN] == eos)
        if len(ends):
            return start + int(ends[0]) + 1
    return len(tokens)


def unite(sources: Iterable[str]) -> list[str]:
    """The sources of several indexes, sorted; the N shares of one source become the source again."""
    counted = Counter(sources)
    for label in list(counted):
        match = re.fullmatch(r"(.*)#0/(\d+)", label)
        if match:
            shares = [f"{match[1]}#{i}/{match[2]}" for i in range(int(match[2]))]
            whole = min(counted[share] for share in shares)
            counted.subtract(dict.fromkeys(shares, whole))
            counted[match[1]] += whole
    return sorted(counted.elements())


def repeated(sources: Sequence[str]) -> list[str]:
    """The sources that occur more than once: counted twice, most likely by mistake."""
    return sorted(source for source, times in Counter(sources).items() if times > 1)
