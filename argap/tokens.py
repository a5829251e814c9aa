"""The scored tokens of a result as a table, streamed from the files of its runs and labels; never all in memory.

The rows of every run and of the labels are the same tokens in the same order, so that they are read in lockstep,
a part of the reference's run (whole windows) at a time. Position 0 of a window is not scored and not in the table.
`argap.token_columns` lists the columns.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from argap.content import content_bigrams, has_letters
from argap.documents import Documents, read_documents
from argap.errors import ArgapError
from argap.labels import FORMAT, further_columns
from argap.lockstep import REMEDY, Rows, read_rows
from argap.parquet import read_parquet, read_portions
from argap.records import LabelsRecord, read_record
from argap.runs import Run
from argap.token_columns import COLUMNS, LABELLED, LOGPROB, MASK, OF_MODELS, OF_TOKEN, UNIT, schema_of
from argap.tokenizer import Tokenizer, load_tokenizer
from argap.words import PieceBytes, Words, seen_earlier

SHARED = {"record", "documents", "kept", "tokenizer", "document_of_window", "pieces", "piece_bytes", "has_letters"}
"""What a `TokenTable` keeps that does not depend on its runs."""


@dataclass(frozen=True)
class OfVocabulary:
    """A slice by what one token is, or the one before it."""

    holds: np.ndarray
    """bool ``[vocab]``."""
    previous: bool
    """Whether of the token before."""


pc: Any = pyarrow.compute
Mask = Callable[[pa.RecordBatch], Any]
"""A slice as a function: of a batch of scored tokens, a boolean for each, from NumPy or Arrow."""


@dataclass(frozen=True)
class TokenTable:
    """Runs of one evaluation set, the reference first, and the folder of their labels."""

    runs: tuple[Run, ...]
    labels: Path

    @cached_property
    def models(self) -> list[str]:
        return [run.model for run in self.runs]

    @cached_property
    def record(self) -> LabelsRecord:
        """``labels.json``."""
        return read_record(self.labels / "labels.json", LabelsRecord, newest=FORMAT, remedy=REMEDY)

    @cached_property
    def documents(self) -> Documents | None:
        """The columns kept of the source; None without any."""
        return read_documents(self.labels, remedy=REMEDY)

    @property
    def by_segment(self) -> bool:
        """Whether log-probs are those of segments, which bytes weigh."""
        return self.record.evaluation.unit == "byte"

    @cached_property
    def kept(self) -> dict[str, pa.DataType]:
        """The columns kept of the source, and their types."""
        return {} if self.documents is None else self.documents.types

    @cached_property
    def further(self) -> dict[str, pa.DataType]:
        """The columns beside `COLUMNS`, and their types."""
        return further_columns(self.record.evaluation, self.documents)

    @property
    def columns(self) -> tuple[str, ...]:
        return (*COLUMNS, *self.further)

    def schema(self, columns: Sequence[str] | None = None, models: Sequence[str] | None = None) -> pa.Schema:
        """The types of some columns, by default all, with a field for each of ``models`` in ``nll`` and ``top1``."""
        return schema_of(self.models if models is None else models, self.further, columns)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.labels, name=self.record.evaluation.tokenizer)

    def batches(
        self,
        columns: Sequence[str],
        *,
        masks: "Mapping[str, Mask | OfVocabulary] | None" = None,
        models: Sequence[str] | None = None,
        units: np.ndarray | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The scored tokens, some windows at a time: the named ones of `columns`, `LOGPROB` and a number, or `UNIT`.

        ``masks``: further boolean columns, `MASK` and a name, each made by a function of a batch with all of `columns`,
        or looked up by id. ``units``: the unit of each document (int32 ``[D]``) in the column `UNIT`.
        ``models``: those with a field in ``nll`` and ``top1``; None: all. Raises `FormatError` for files that are
        broken or hold other tokens, `ArgapError` for masks of the wrong length or type, and what the functions raise.
        """
        models = self.models if models is None else models
        masks = masks or {}
        functions = [mask for mask in masks.values() if not isinstance(mask, OfVocabulary)]
        needed = list(dict.fromkeys([*columns, *(self.columns if functions else ())]))
        read = [*needed, "token"] if len(functions) < len(masks) else needed
        of_runs = [_of_run(read, k, model in models) for k, model in enumerate(self.models)]
        of_labels = [name for name in (*LABELLED, "domain") if name in needed]
        of_labels += ["segment_bytes"] if self.by_segment else []
        folders = [run.folder for run in self.runs]
        start = 0
        for rows in read_rows(folders, self.labels, of_runs=of_runs, of_labels=of_labels):
            source = _Columns(self, rows, models, start, units)
            start += len(rows.pos)
            scored = self._scored(rows)
            batch = pa.RecordBatch.from_arrays([source.column(name) for name in needed], names=needed)
            batch = batch.filter(pa.array(scored))
            made = [
                source.looked_up(mask, scored)
                if isinstance(mask, OfVocabulary)
                else call(name, mask, batch.select(list(self.columns)))
                for name, mask in masks.items()
            ]
            yield pa.RecordBatch.from_arrays(
                [*(batch[name] for name in columns), *made], names=[*columns, *(MASK + name for name in masks)]
            )

    def _scored(self, rows: Rows) -> np.ndarray:
        """bool ``[N]``: the rows with a log-prob, or in a segment that has one."""
        if not self.by_segment:
            return rows.pos > 0
        return _whole(rows.labels["segment_bytes"]).is_valid().to_numpy(zero_copy_only=False)

    def among(self, models: Sequence[str]) -> "TokenTable":
        """The same tokens of some of the models, the first as the reference. What was read already is shared."""
        by_name = {run.model: run for run in self.runs}
        table = TokenTable(tuple(by_name[model] for model in models), self.labels)
        vars(table).update({name: value for name, value in vars(self).items() if name in SHARED})
        return table

    def batch_of(self, rows: Rows, columns: Sequence[str], models: Sequence[str], start: int) -> pa.RecordBatch:
        """``columns`` of whole windows, position 0 included, which has no NLL (NaN); ``start``: tokens before them."""
        source = _Columns(self, rows, models, start, None)
        return pa.RecordBatch.from_arrays([source.column(name) for name in columns], names=list(columns))

    @cached_property
    def scored_of_document(self) -> np.ndarray:
        """int64 ``[D]``: scored tokens (bytes, where these are the unit) of the windows of each document."""
        n = np.zeros(len(self.document_of_window), dtype=np.int64)
        columns = ["window", "pos", *(["segment_bytes"] if self.by_segment else [])]
        for rows in read_portions(self.labels / "labels.parquet", columns, remedy=REMEDY):
            weight = rows["segment_bytes"].fill_null(0) if self.by_segment else pc.greater(rows["pos"], 0)
            n += np.bincount(rows["window"].to_numpy(), weight.to_numpy(), minlength=len(n)).astype(np.int64)
        return np.bincount(self.document_of_window, n).astype(np.int64)

    @cached_property
    def document_of_window(self) -> np.ndarray:
        """int32 ``[W]``."""
        return read_parquet(self.labels / "windows.parquet", ["document"], remedy=REMEDY)["document"].to_numpy()

    @cached_property
    def pieces(self) -> pa.StringArray:
        """The text of each token id."""
        return pa.array(self.tokenizer.pieces, pa.string())

    @cached_property
    def piece_bytes(self) -> PieceBytes:
        return PieceBytes(self.tokenizer.piece_bytes)

    @cached_property
    def has_letters(self) -> np.ndarray:
        """bool ``[vocab]``: ids whose text has a letter or digit."""
        return has_letters(self.tokenizer)


class _Columns:
    """The columns of some rows, each made when it is asked for."""

    def __init__(
        self, table: TokenTable, rows: Rows, models: Sequence[str], start: int, units: np.ndarray | None
    ) -> None:
        self._table = table
        self._units = units
        self._rows = rows
        self._models = models
        self._start = start
        """Tokens of the evaluation set before these rows."""

    @cached_property
    def _segment_bytes(self) -> np.ndarray:
        """int32 ``[N]``; -1 where no segment is scored."""
        return _whole(self._rows.labels["segment_bytes"]).fill_null(-1).to_numpy()

    @cached_property
    def _last(self) -> np.ndarray:
        """int64 ``[N]``: the row of the last token of each token's segment; any row where none is scored."""
        ends = np.flatnonzero(self._segment_bytes > 0)
        return np.append(ends, 0)[np.searchsorted(ends, np.arange(len(self._segment_bytes)))]

    def column(self, name: str) -> pa.Array:
        if self._table.documents is not None and name in self._table.kept:
            return self._table.documents.column(name, self._start, len(self._rows.pos))
        if name == "segment":
            return pa.array(self._start + self._last)
        if name in ("window", "pos", "domain", "segment_bytes", *LABELLED):
            return _whole(self._rows.labels[name])
        if name in OF_MODELS:
            return self._of_models(name)
        if name == UNIT and self._units is not None:
            return pa.array(self._units[self._documents], pa.int32())
        if name.startswith(LOGPROB):
            return _whole(self._rows.runs[int(name.removeprefix(LOGPROB))]["logprob"])
        return getattr(self, f"_{name}")()

    def looked_up(self, mask: OfVocabulary, scored: np.ndarray) -> pa.Array:
        """Whether it holds of the ``scored`` tokens (bool ``[N]``)."""
        tokens = np.roll(self._rows.tokens, 1) if mask.previous else self._rows.tokens
        return pa.array(mask.holds[tokens[scored]])

    def _of_models(self, name: str) -> pa.Array:
        tables = [self._rows.runs[self._table.models.index(model)] for model in self._models]
        arrays = [_whole(table["top1"]) if name == "top1" else _negated(_whole(table["logprob"])) for table in tables]
        if name == "nll" and self._table.by_segment:
            arrays = [each.take(pa.array(self._last)) for each in arrays]
        return pa.StructArray.from_arrays(arrays, names=list(self._models))

    @cached_property
    def _documents(self) -> np.ndarray:
        return self._table.document_of_window[self._rows.window]

    def _document(self) -> pa.Array:
        return pa.array(self._documents, pa.int32())

    def _source(self) -> pa.Array:
        documents, index = np.unique(self._documents, return_inverse=True)
        sources = [self._table.record.sources[document] for document in documents.tolist()]
        return pa.DictionaryArray.from_arrays(pa.array(index, pa.int32()), pa.array(sources, pa.string()))

    def _token(self) -> pa.Array:
        return _whole(self._rows.runs[0]["token"])

    def _piece(self) -> pa.Array:
        return pa.DictionaryArray.from_arrays(self._token(), self._table.pieces)

    def _previous(self) -> pa.Array:
        index = pa.array(np.roll(self._rows.tokens, 1))  # wrong at position 0 alone, which is not scored
        return pa.DictionaryArray.from_arrays(index, self._table.pieces)

    @cached_property
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


def _of_run(needed: Sequence[str], run: int, asked: bool) -> list[str]:
    """The columns to read of a run: ``asked`` where ``nll`` and ``top1`` have a field for it."""
    columns = []
    if f"{LOGPROB}{run}" in needed or ("nll" in needed and asked):
        columns.append("logprob")
    if "top1" in needed and asked:
        columns.append("top1")
    if run == 0 and not OF_TOKEN.isdisjoint(needed):
        columns.append("token")
    return columns


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """A column of a table whose chunks are combined, as one array."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _negated(logprob: pa.Array) -> pa.Array:
    """−log p; NaN at position 0."""
    return pa.array(-logprob.to_numpy(zero_copy_only=False))


def call(name: str, mask: Mask, batch: pa.RecordBatch) -> pa.Array:
    """What a function says of a batch: a boolean for each row, null where it is null."""
    made = mask(batch)
    made = made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
    values: Any = made if isinstance(made, pa.Array) else np.asarray(made)
    if np.ndim(values) != 1 or len(values) != len(batch):
        raise ArgapError(f"slice {name}: its function gave {np.size(values)} values for {len(batch)} tokens")
    array = made if isinstance(made, pa.Array) else pa.array(values)
    if array.type != pa.bool_():
        raise ArgapError(f"slice {name}: its function gave {array.type}; expected a boolean for each token")
    return array
