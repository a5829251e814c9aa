"""Count the bigrams of any number of documents in bounded memory, and merge sorted runs in one k-way pass.

Tokens are collected in one buffer, with a boundary id after every document. A full buffer is counted into a sorted run;
if there is more than one, runs go to disk and are merged in one pass at the end.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from argap.bigram_index.counting.engines import counting
from argap.bigram_index.counting.sorted_runs import FileRun, MemoryRun, Rows, Run, row_ranges, spill
from argap.errors import ArgapError, FormatError

DEFAULT_MEMORY = 2 * 10**9
RESERVED = 400 * 10**6
"""Bytes for the interpreter, the tokenizer and its batches, and the k-way merge."""
SCRATCH = 12
"""Peak bytes per token of a chunk whose bigrams are all distinct, besides three times the token itself: in the stream,
the scattered stream and the run."""
SCAN = 2**22
MERGE_ENTRIES = 2**22
"""Entries of all runs together that a merge holds in memory at a time, about 40 bytes each."""


def token_type(vocab_size: int) -> np.dtype:
    """Return uint16 if every id and one more for the boundary fit, else uint32."""
    return np.dtype(np.uint16 if vocab_size < 2**16 else np.uint32)


def chunk_tokens(memory: int | None, vocab_size: int) -> int:
    """Return how many tokens to count at a time so that the process stays below ``memory`` bytes (None: 2 GB).

    Raises `ArgapError` if the process needs more than that before the first token.
    """
    memory = DEFAULT_MEMORY if memory is None else memory
    each = SCRATCH + 3 * token_type(vocab_size).itemsize
    smallest = RESERVED + each * 2**20
    if memory < smallest:
        raise ArgapError(f"`memory` {memory / 1e6:.0f} MB is too little, expected at least {-(-smallest // 10**6)} MB")
    return min((memory - RESERVED) // each, 2**32 - 2)  # positions in a chunk are 32 bits wide


class BigramCounter:
    """Takes documents in any number and order, then gives their sorted bigram counts once.

    ``chunk``: tokens to count at a time (`chunk_tokens`). ``scratch``: a folder for spilled runs, created when needed
    and removed by `close`. ``device``: sort each chunk on a GPU instead; a name known to
    `argap.runtime.device.resolve_device`.

    Raises `ArgapError` for a device that is unknown or not available.
    """

    def __init__(self, vocab_size: int, *, chunk: int, scratch: Path, device: str = "cpu") -> None:
        self.vocab_size = vocab_size
        self.documents = 0
        self.empty_documents = 0
        self.tokens = 0
        self._buffer = np.empty(chunk + 2, dtype=token_type(vocab_size))  # pages are allocated when touched
        self._filled = 0
        self._scratch = scratch
        self._runs: list[FileRun] = []
        if device != "cpu":  # torch is slow to import and needed only for a GPU
            from argap.runtime.device import resolve_device

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

        Equivalent to `add` for every non-empty stretch between two ``eos``, without a step per document. The stream
        begins and ends at a document's end. ``eos`` None: the stream is one document.
        """
        inside, at = False, 0
        while at < len(tokens):
            space = self._buffer[self._filled : self._filled + SCAN]
            block = tokens[at : at + len(space)]
            got = counting(len(block)).mark_boundaries(block, eos, self.vocab_size, inside, space[: len(block)])
            self._check(got.low, got.high)
            self.documents += got.documents
            self.tokens += len(block) - got.ends
            inside = int(block[-1]) != eos
            at += len(block)
            self._advance(len(block))
        if inside:
            self._append(np.array([self.vocab_size]))

    def rows(self) -> Iterator[Rows]:
        """Yield the counts of everything added, in order. Call it once, after the last document."""
        runs: list[Run] = [*self._runs, self._count()]
        del self._buffer
        yield from merge_runs(runs)

    def close(self) -> None:
        """Remove spilled runs."""
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
        filled = self._buffer[: self._filled]
        if self.device != "cpu":
            from argap.bigram_index.counting import count_torch

            on_device = count_torch.to_device(filled, self.device)
            return count_torch.count_stream(on_device, self.vocab_size, boundary=self.vocab_size)
        return counting(len(filled)).count_stream(filled, self.vocab_size, boundary=self.vocab_size)


def merge_runs(runs: Sequence[Run], entries: int = MERGE_ENTRIES) -> Iterator[Rows]:
    """Yield the rows of the sum of ``runs`` in order; rows without an entry may be left out.

    All runs are merged in one pass, because merging in pairs would read and write every entry once per level.
    """
    if not runs:
        return
    vocab_size = len(runs[0].indptr) - 1
    total = np.sum([run.indptr for run in runs], axis=0)
    for start, stop in row_ranges(total, entries):
        pieces = [run.read(int(run.indptr[start]), int(run.indptr[stop])) for run in runs]
        indptrs = np.stack([run.indptr[start : stop + 1] - run.indptr[start] for run in runs])
        if len(runs) == 1:
            yield Rows(start, indptrs[0], *pieces[0])
            continue
        indptrs += np.cumsum([0] + [len(second) for second, _ in pieces[:-1]])[:, None]
        second = np.concatenate([second for second, _ in pieces])
        count = np.concatenate([count for _, count in pieces])
        merged = counting(len(second)).merge_rows(indptrs, second, count, vocab_size)
        yield Rows(start, merged.indptr, merged.second, merged.count)
