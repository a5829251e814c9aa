"""Counting the bigrams of any number of documents in bounded memory.

Tokens gather in one buffer, a boundary id behind every document. A full buffer is counted into a sorted
run; with more than one, runs go to disk and are merged, all at once, at the end.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from argap.bigram_index.engine import SCRATCH, count_stream, gather
from argap.bigram_index.kway import merge_runs
from argap.bigram_index.runs import FileRun, MemoryRun, Rows, Run, spill
from argap.bigram_index.stats import TokenCounter
from argap.errors import ArgapError, FormatError

DEFAULT_MEMORY = 2 * 10**9
RESERVED = 400 * 10**6
"""Bytes for the interpreter, the tokenizer and its batches, and the k-way merge."""
SCAN = 2**22


def token_type(vocab_size: int) -> np.dtype:
    """uint16 where every id and a boundary behind the last one fit, else uint32."""
    return np.dtype(np.uint16 if vocab_size < 2**16 else np.uint32)


def chunk_tokens(memory: int | None, vocab_size: int) -> int:
    """How many tokens to count at a time so that the process stays below ``memory`` bytes (None: 2 GB).

    Raises `ArgapError` where that is less than the process needs before the first token.
    """
    memory = DEFAULT_MEMORY if memory is None else memory
    each = SCRATCH + 3 * token_type(vocab_size).itemsize
    smallest = RESERVED + each * 2**20
    if memory < smallest:
        raise ArgapError(f"memory: {memory / 1e6:.0f} MB is too little, expected at least {-(-smallest // 10**6)} MB")
    return min((memory - RESERVED) // each, 2**32 - 2)  # positions in a chunk are 32 bits wide


class BigramCounter:
    """Takes documents in any number and order, then gives their bigrams, sorted, once.

    ``chunk``: tokens to count at a time (`chunk_tokens`). ``scratch``: a folder for spilled runs, made
    when it is needed and removed by `close`. ``stats``: also count tokens and the documents that have them.
    ``device``: a GPU that sorts each chunk instead, by a name that `argap.device.resolve_device` takes.

    Raises `ArgapError` for a device that is unknown or not here.
    """

    def __init__(self, vocab_size: int, *, chunk: int, scratch: Path, stats: bool = False, device: str = "cpu") -> None:
        self.vocab_size = vocab_size
        self.documents = 0
        self.empty_documents = 0
        self.tokens = 0
        self._buffer = np.empty(chunk + 2, dtype=token_type(vocab_size))  # pages come when touched
        self._filled = 0
        self._scratch = scratch
        self._runs: list[FileRun] = []
        self.stats = TokenCounter(vocab_size) if stats else None
        if device != "cpu":  # torch takes long to load, and here it serves a GPU alone
            from argap.device import resolve_device

            device = resolve_device(device)
        self.device = device

    def add(self, ids: np.ndarray) -> None:
        """Count one document: `[N]` of any integer type, N = 0 allowed. No bigram crosses its ends.

        Raises `FormatError` for an id outside the vocabulary.
        """
        if not len(ids):
            self.empty_documents += 1
            return
        self._check(int(ids.min()), int(ids.max()))
        self.documents += 1
        self.tokens += len(ids)
        self._append(ids)
        self._append(np.array([self.vocab_size]))

    def add_stream(self, tokens: np.ndarray, eos: int | None) -> None:
        """Count a flat stream, `[N]` of any integer type, of documents separated by ``eos``.

        The same as `add` for each stretch between two ``eos``, empty ones aside, without a step per
        document. The stream begins and ends at a document's end. None: the stream is one document.
        """
        inside, at = False, 0
        while at < len(tokens):
            space = self._buffer[self._filled : self._filled + SCAN]
            block = tokens[at : at + len(space)]
            got = gather(block, eos, self.vocab_size, inside, space[: len(block)])
            self._check(got.low, got.high)
            self.documents += got.documents
            self.tokens += len(block) - got.ends
            inside = int(block[-1]) != eos
            at += len(block)
            self._advance(len(block))
        if inside:
            self._append(np.array([self.vocab_size]))

    def rows(self) -> Iterator[Rows]:
        """The counts of everything added, in order. Call it once, after the last document."""
        runs: list[Run] = [*self._runs, self._count()]
        del self._buffer
        yield from merge_runs(runs)

    def close(self) -> None:
        """Remove what was spilled."""
        shutil.rmtree(self._scratch, ignore_errors=True)

    def _check(self, low: int, high: int) -> None:
        if low < 0 or high >= self.vocab_size:
            raise FormatError(
                f"token {low if low < 0 else high} is outside the vocabulary of {self.vocab_size}: "
                "was the text tokenized with another tokenizer?"
            )

    def _append(self, ids: np.ndarray) -> None:
        while len(ids):
            space = len(self._buffer) - self._filled
            piece, ids = ids[:space], ids[space:]
            self._buffer[self._filled : self._filled + len(piece)] = piece
            self._advance(len(piece))

    def _advance(self, tokens: int) -> None:
        self._filled += tokens
        if self._filled == len(self._buffer):
            self._runs.append(spill(self._count(), self._scratch / f"run-{len(self._runs)}"))
            self._buffer[0] = self._buffer[-1]  # the pair across the cut belongs to the next chunk
            self._filled = 1

    def _count(self) -> MemoryRun:
        if self.stats is not None:
            # The first token of a chunk behind the first was the last of the one before.
            self.stats.add(self._buffer[min(len(self._runs), 1) : self._filled])
        filled = self._buffer[: self._filled]
        if self.device != "cpu":
            from argap.bigram_index import count_torch

            on_device = count_torch.to_device(filled, self.device)
            return count_torch.count_stream(on_device, self.vocab_size, boundary=self.vocab_size)
        return count_stream(filled, self.vocab_size, boundary=self.vocab_size)
