"""One of N equal shards of a corpus, for job arrays whose jobs do not communicate.

The documents of a text corpus are assigned round-robin, a token file is cut at document ends. The indexes of all N
shards, merged, are the index of the whole corpus, byte for byte.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from argap.errors import ArgapError

SCAN = 2**16


@dataclass(frozen=True)
class Shard:
    """Shard ``number`` (from 0) of ``of``."""

    number: int = 0
    of: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        """Parse ``I/N`` with 0 ≤ I < N. Raises `ArgapError` for anything else."""
        match = re.fullmatch(r"(\d+)/(\d+)", text)
        if match is None or int(match[1]) >= int(match[2]):
            raise ArgapError(f"`shard` {text}: expected I/N with I from 0 to N - 1, for instance 0/4")
        return cls(int(match[1]), int(match[2]))

    def label(self, source: str) -> str:
        """Return the name of this shard of a source in ``index.json``."""
        return source if self.of == 1 else f"{source}#{self.number}/{self.of}"

    def bounds(self, length: int) -> tuple[int, int]:
        """Return start and stop of this shard's part of ``range(length)``."""
        return length * self.number // self.of, length * (self.number + 1) // self.of

    def cut(self, tokens: np.ndarray, eos: int) -> np.ndarray:
        """Return the documents of a stream, `[N]`, that begin in this shard of it."""
        start, stop = self.bounds(len(tokens))
        return tokens[_next_document(tokens, eos, start) : _next_document(tokens, eos, stop)]


def _next_document(tokens: np.ndarray, eos: int, at: int) -> int:
    """Return the first position at or after ``at`` where a document can begin: 0, after an EOS, or the end."""
    if at == 0:
        return 0
    for start in range(at - 1, len(tokens), SCAN):
        ends = np.flatnonzero(tokens[start : start + SCAN] == eos)
        if len(ends):
            return start + int(ends[0]) + 1
    return len(tokens)


def unite(sources: Iterable[str]) -> list[str]:
    """Return the sources of several indexes, sorted; all N shards of a source become the source again."""
    counted = Counter(sources)
    for label in list(counted):
        match = re.fullmatch(r"(.*)#0/(\d+)", label)
        if match:
            shards = [f"{match[1]}#{i}/{match[2]}" for i in range(int(match[2]))]
            whole = min(counted[shard] for shard in shards)
            counted.subtract(dict.fromkeys(shards, whole))
            counted[match[1]] += whole
    return sorted(counted.elements())


def repeated(sources: Sequence[str]) -> list[str]:
    """Return the sources that occur more than once, most likely by mistake."""
    return sorted(source for source, times in Counter(sources).items() if times > 1)
