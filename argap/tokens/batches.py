"""Read the scored tokens as Arrow batches of whole windows."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from argap.errors import ArgapError
from argap.records.columns import COPIED, FOLLOWED, GAIN, LABELLED, LOGPROB, MASK, OF_TOKEN, UNIT
from argap.tokens.rows import Rows, read_rows
from argap.tokens.table import Columns, TokenTable, followed_columns
from argap.tokens.weights import stored_weights

Mask = Callable[[pa.RecordBatch], Any]
"""A slice as a function from a batch of scored tokens to one boolean per token, in NumPy or Arrow."""


@dataclass(frozen=True)
class OfVocabulary:
    """Conditions on the token or on the previous one, evaluated per id: a boolean, or one bit per condition."""

    values: np.ndarray
    """bool or int32 ``[vocab]``."""
    previous: bool
    """Whether to look up the previous token."""


@dataclass(frozen=True)
class TokenReader:
    """Read some columns of the scored tokens."""

    table: TokenTable
    columns: Sequence[str]
    """Names of `TokenTable.columns`, `LOGPROB` and a number, `UNIT` or `WEIGHT`."""
    masks: Mapping[str, Mask | OfVocabulary] = field(default_factory=dict)
    """Extra columns, named `MASK` and a name: each is a function of a batch with all columns, or looked up by id."""
    models: Sequence[str] | None = None
    """Models with a field in ``nll`` and ``top1``; None: all."""
    units: np.ndarray | None = None
    """int32 ``[D]``: the unit of each document, in the column `UNIT`; -1 leaves a document out. With that column,
    batches may include unscored rows, with unit -1: filtering them would copy every column."""

    @cached_property
    def schema(self) -> pa.Schema:
        """Return the schema of the batches."""
        types = [
            pa.from_numpy_dtype(mask.values.dtype) if isinstance(mask, OfVocabulary) else pa.bool_()
            for mask in self.masks.values()
        ]
        of_masks = pa.schema([(MASK + name, of_type) for name, of_type in zip(self.masks, types, strict=True)])
        return pa.schema([*self.table.schema(self.columns, self.models), *of_masks])

    @cached_property
    def calls(self) -> bool:
        """Return whether user functions are called, which only one thread at a time may do."""
        return any(not isinstance(mask, OfVocabulary) for mask in self.masks.values())

    def rows(self) -> Generator[Rows, None, None]:
        """Yield the files' rows, including position 0; windows of documents without a unit may be skipped.

        Raises as `argap.tokens.rows.read_rows`.
        """
        read = [*self._needed, *(["token"] if self.masks else [])]
        of_runs = [_of_run(read, k, model in self._models) for k, model in enumerate(self.table.models)]
        if followed := {int(name.rpartition(" ")[2]) for name in read if name.startswith(FOLLOWED)}:
            for k in {0, *followed}:
                of_runs[k] += followed_columns(self.table.runs[k])
        for name, having in self.table.having.items():
            for model in having if name in read else ():
                stored = "logprob" if name == GAIN else name
                of_runs[self.table.models.index(model)] += [stored] if model in self._models else []
        gained = self._models if GAIN in read else ()
        of_runs += [["logprob"] if model in gained else [] for model in self.table.short]
        wanted = {"distance" if name == "repeated" else name for name in read}  # booleans are much slower to read
        of_labels = [name for name in (*LABELLED, *COPIED, "domain") if name in wanted]
        of_labels += stored_weights(self.table.record.evaluation)
        held = None if self.units is None else (self.units >= 0)[self.table.document_of_window]
        of_runs = [list(dict.fromkeys(names)) for names in of_runs]
        for rows in read_rows(self.table.folders, self.table.labels, of_runs=of_runs, of_labels=of_labels):
            yield from [rows] if held is None else rows.among(held)
        self.table.check_unchanged()

    def batch(self, rows: Rows) -> pa.RecordBatch:
        """Return the scored tokens of some rows; with `UNIT`, unscored ones may remain, with unit -1.

        Raises `ArgapError` for masks of the wrong length or type, and what the functions raise.
        """
        source = Columns(self.table, rows, self._models, rows.start, self.units)
        columns = {name: source.column(name) for name in self._needed}
        for name, mask in self.masks.items():
            if isinstance(mask, OfVocabulary):
                columns[MASK + name] = pa.array(mask.values.take(source.tokens(previous=mask.previous)))
        batch = pa.RecordBatch.from_pydict(columns)
        if UNIT not in columns or self.calls:
            batch = batch.filter(pa.array(source.scored))
        given = of_texts_once(batch.select(list(self.table.columns))) if self.calls else batch
        called = {
            MASK + name: call(name, mask, given)
            for name, mask in self.masks.items()
            if not isinstance(mask, OfVocabulary)
        }
        made = [called[name] if name in called else batch[name] for name in self.schema.names]
        return pa.RecordBatch.from_arrays(made, schema=self.schema)

    @cached_property
    def _models(self) -> Sequence[str]:
        return self.table.models if self.models is None else self.models

    @cached_property
    def _needed(self) -> list[str]:
        return list(dict.fromkeys([*self.columns, *(self.table.columns if self.calls else ())]))


def _of_run(needed: Sequence[str], run: int, asked: bool) -> list[str]:
    """Return the columns to read from a run; ``asked``: whether ``nll`` and ``top1`` have a field for it."""
    columns = []
    if f"{LOGPROB}{run}" in needed or ("nll" in needed and asked):
        columns.append("logprob")
    if "top1" in needed and asked:
        columns.append("top1")
    if run == 0 and not OF_TOKEN.isdisjoint(needed):
        columns.append("token")
    return columns


def of_texts_once(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Deduplicate dictionaries, as pandas requires unique entries and two ids can have the same piece."""
    columns = batch.columns
    for k, column in enumerate(columns):
        if isinstance(column, pa.DictionaryArray):
            once = column.dictionary.dictionary_encode()
            columns[k] = pa.DictionaryArray.from_arrays(once.indices.take(column.indices), once.dictionary)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def call(name: str, mask: Mask, batch: pa.RecordBatch) -> pa.Array:
    """Call a mask: one boolean or null per row. Raises `ArgapError` if it returns another length or type."""
    made = mask(batch)
    made = made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made
    values: Any = made if isinstance(made, pa.Array) else np.asarray(made)
    if np.ndim(values) != 1 or len(values) != len(batch):
        raise ArgapError(f"slice {name}: its function gave {np.size(values)} values for {len(batch)} tokens")
    array = made if isinstance(made, pa.Array) else pa.array(values)
    if array.type != pa.bool_():
        raise ArgapError(f"slice {name}: its function gave {array.type}; expected a boolean for each token")
    return array
