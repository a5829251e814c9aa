"""The columns of the tokens (`argap.token_columns`) made from rows of the files, each when it is asked for."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from argap.ahead import lazy
from argap.content import content_bigrams
from argap.lockstep import Rows
from argap.parquet import whole_column
from argap.token_columns import BY_MODEL, LABELLED, LOGPROB, RANK, UNIT
from argap.words import Words, seen_earlier

if TYPE_CHECKING:
    from argap.tokens import TokenTable


class Columns:
    """The columns of some rows, each made when it is asked for."""

    def __init__(
        self, table: "TokenTable", rows: Rows, models: Sequence[str], start: int, units: np.ndarray | None
    ) -> None:
        self._table = table
        self._units = units
        self._rows = rows
        self._models = models
        self._start = start
        """Tokens of the evaluation set before these rows."""

    @lazy
    def _segment_bytes(self) -> np.ndarray:
        """int32 ``[N]``; -1 where no segment is scored."""
        return whole_column(self._rows.labels["segment_bytes"]).fill_null(-1).to_numpy()

    @lazy
    def _last(self) -> np.ndarray:
        """int64 ``[N]``: the row of the last token of each token's segment; any row where none is scored."""
        ends = np.flatnonzero(self._segment_bytes > 0)
        return np.append(ends, 0)[np.searchsorted(ends, np.arange(len(self._segment_bytes)))]

    def column(self, name: str) -> pa.Array:
        """One value a row; ``name``: as in `argap.token_batches.TokenReader.columns`."""
        if self._table.documents is not None and name in self._table.kept:
            return self._table.documents.column(name, self._start, len(self._rows.pos))
        if name == "segment":
            return pa.array(self._start + self._last)
        if name == "repeated":
            return pa.array(self._rows.labels["distance"].to_numpy() > 0)
        if name in ("window", "pos", "domain", "segment_bytes", *LABELLED):
            return whole_column(self._rows.labels[name])
        if name in BY_MODEL:
            return self._of_models(name)
        if name == UNIT and self._units is not None:
            documents, tokens = self._windows
            return pa.array(np.where(self.scored, np.repeat(self._units[documents], tokens), -1), pa.int32())
        if name.startswith(LOGPROB):
            return whole_column(self._rows.runs[int(name.removeprefix(LOGPROB))]["logprob"])
        return getattr(self, f"_{name}")()

    @lazy
    def scored(self) -> np.ndarray:
        """bool ``[N]``: the rows with a log-prob, or in a segment that has one."""
        if not self._table.by_segment:
            return self._rows.pos > 0
        return whole_column(self._rows.labels["segment_bytes"]).is_valid().to_numpy(zero_copy_only=False)

    def tokens(self, *, previous: bool) -> np.ndarray:
        """int32 ``[N]``: ids; ``previous``: of the tokens before, wrong at position 0 alone, which is not scored."""
        return np.roll(self._rows.tokens, 1) if previous else self._rows.tokens

    def _of_models(self, name: str) -> pa.Array:
        models = [model for model in self._models if name != RANK or model in self._table.ranked]
        tables = [self._rows.runs[self._table.models.index(model)] for model in models]
        arrays = [whole_column(table["logprob" if name == "nll" else name]) for table in tables]
        if name == "nll":
            arrays = [pa.array(-each.to_numpy(zero_copy_only=False)) for each in arrays]  # NaN at position 0
        if name == "nll" and self._table.by_segment:
            arrays = [each.take(pa.array(self._last)) for each in arrays]
        return pa.StructArray.from_arrays(arrays, names=models)

    @lazy
    def _windows(self) -> tuple[np.ndarray, np.ndarray]:
        """The document of each window, and its tokens: what windows share is looked up once for each."""
        starts = np.flatnonzero(self._rows.pos == 0)
        documents = self._table.document_of_window[self._rows.window[starts]]
        return documents, np.diff(starts, append=len(self._rows.pos))

    @lazy
    def _documents(self) -> np.ndarray:
        return np.repeat(*self._windows)

    def _document(self) -> pa.Array:
        return pa.array(self._documents, pa.int32())

    def _source(self) -> pa.Array:
        documents, index = np.unique(self._documents, return_inverse=True)
        sources = [self._table.record.sources[document] for document in documents.tolist()]
        return pa.DictionaryArray.from_arrays(pa.array(index, pa.int32()), pa.array(sources, pa.string()))

    def _token(self) -> pa.Array:
        return whole_column(self._rows.runs[0]["token"])

    def _piece(self) -> pa.Array:
        return pa.DictionaryArray.from_arrays(self._token(), self._table.pieces)

    def _previous(self) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array(self.tokens(previous=True)), self._table.pieces)

    @lazy
    def _words(self) -> Words:
        return self._table.piece_bytes.words(self._rows.tokens, self._rows.window)

    def _word(self) -> pa.Array:
        index = pa.array(self._words.number, pa.int32(), mask=self._words.number < 0)
        return pa.DictionaryArray.from_arrays(index, self._words.texts)

    def _word_start(self) -> pa.Array:
        return pa.array(self._words.start)

    def _word_repeated(self) -> pa.Array:
        return pa.array(np.append(seen_earlier(self._words), False)[self._words.number])

    def _content(self) -> pa.Array:
        return pa.array(content_bigrams(self._rows.tokens, self._words, self._table.has_letters))
