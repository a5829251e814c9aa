"""Counts of one text's n-grams in a training corpus: longer AR hits without a suffix array.

Only the n-grams of the query text, an evaluation set, are counted, in one pass over the corpus, so memory
grows with the query alone. An n-gram is looked up by its first n - 1 tokens: those have a number among the
(n - 1)-grams of the query, and (number, last token) is one key. Exact: nothing is hashed.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from argap.errors import ArgapError, FormatError
from argap.files.parquet import write_parquet
from argap.runtime.threads import gathered

LONGEST = 5
PIECE = 2**20  # tokens handled at a time


class NgramCounter:
    """Counts the n-grams, 2 ≤ n ≤ ``longest``, of the ``query`` documents in other documents.

    Each document is `[N]` token ids below ``vocab_size``; n-grams never cross documents. Raises
    `ArgapError` for a ``longest`` outside 2..5 or a query without a bigram, `FormatError` for other ids.
    """

    def __init__(self, query: Iterable[np.ndarray], *, vocab_size: int, longest: int = LONGEST) -> None:
        if not 2 <= longest <= LONGEST:
            raise ArgapError(f"n-grams of {longest} tokens: expected 2 to {LONGEST}")
        self.longest = longest
        self._vocab_size = vocab_size
        tokens = np.concatenate([np.empty(0, np.int64), *self._closed(query)])
        self._keys: list[np.ndarray] = []  # of each n: prefix number * vocab_size + last token, sorted
        numbers = np.where(tokens < 0, -1, tokens)
        for n in range(2, longest + 1):
            keys, _ = self._extend(numbers, tokens, n)
            self._keys.append(np.unique(keys))
            numbers = self._find(numbers, tokens, n)
        if not len(self._keys[0]):
            raise ArgapError("no bigram in the query; expected a document of at least two tokens")
        self._counts = [np.zeros(len(keys), dtype=np.int64) for keys in self._keys]

    def add(self, documents: Iterable[np.ndarray]) -> None:
        """Count in ``documents``; may be called again."""
        for piece in gathered(self._closed(documents), PIECE):
            tokens = np.concatenate(piece)
            numbers = np.where(tokens < 0, -1, tokens)
            for n, counts in enumerate(self._counts, start=2):
                numbers = self._find(numbers, tokens, n)
                counts += np.bincount(numbers[numbers >= 0], minlength=len(counts))

    def result(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the query's n-grams, `[M, n]` int64 in ascending order, and their counts, `[M]` int64."""
        last = self._keys[n - 2] % self._vocab_size
        number = self._keys[n - 2] // self._vocab_size
        if n == 2:
            return np.stack([number, last], axis=1), self._counts[0]
        prefixes, _ = self.result(n - 1)
        return np.concatenate([prefixes[number], last[:, None]], axis=1), self._counts[n - 2]

    def _extend(self, numbers: np.ndarray, tokens: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Keys of the n-grams whose first n - 1 tokens are known, and their start positions."""
        last = tokens[n - 1 :]
        start = np.flatnonzero((numbers[: len(last)] >= 0) & (last >= 0))
        return numbers[start] * self._vocab_size + last[start], start

    def _find(self, numbers: np.ndarray, tokens: np.ndarray, n: int) -> np.ndarray:
        """For each position the number of the n-gram that begins there; -1 where it is not in the query."""
        keys, start = self._extend(numbers, tokens, n)
        known = self._keys[n - 2]
        numbers = np.full(len(tokens), -1, dtype=np.int64)
        if len(known):
            at = np.searchsorted(known, keys).clip(max=len(known) - 1)
            numbers[start] = np.where(known[at] == keys, at, -1)
        return numbers

    def _closed(self, documents: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Each document followed by a -1."""
        for document in documents:
            if len(document) and not 0 <= document.min() <= document.max() < self._vocab_size:
                raise FormatError(f"token ids outside the vocabulary of {self._vocab_size}: another tokenizer's?")
            yield np.append(np.asarray(document, dtype=np.int64), -1)


def write_ngrams(counter: NgramCounter, path: Path) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Write ``n:int8, tokens:list<int32>, count:int64`` as Parquet; return `NgramCounter.result` of each n."""
    schema = pa.schema([("n", pa.int8()), ("tokens", pa.list_(pa.int32())), ("count", pa.int64())])
    results = {n: counter.result(n) for n in range(2, counter.longest + 1)}
    tables = [
        pa.Table.from_pydict({"n": [n] * len(grams), "tokens": grams.tolist(), "count": counts}, schema=schema)
        for n, (grams, counts) in results.items()
    ]
    write_parquet(path, pa.concat_tables(tables))
    return results
