"""The documents of an evaluation set with the columns kept from their sources: ``labels/documents.parquet``.

One row per document: ``tokens:int64``, its number of tokens in the evaluation set (EOS included), and the kept columns
(`argap.corpus.kept`). The rows of labels and runs are the documents' tokens in order, so the numbers of tokens give
each token's document; with packed windows this is its own, not the window's.
"""

from collections.abc import Sequence
from datetime import date, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from argap.corpus import Corpus
from argap.corpus.document import TextDocument, TokenDocument
from argap.corpus.kept import TokenSpans
from argap.errors import ArgapError, FormatError, first_line
from argap.files.parquet import check_columns, read_parquet, whole_column, write_parquet
from argap.files.regular import is_there
from argap.files.remedies import remedy_for
from argap.records.columns import COLUMNS, OPTIONAL, RESERVED, SEGMENTED, TEXT

FILE = "documents.parquet"
TOKENS = "tokens"
KINDS = {
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "text",
    datetime: "a time",
    date: "a date",
    TokenSpans: "spans",
}
"""Types of kept values; the first that fits counts."""
BREAKDOWNS = ("slice", "frequency", "position")
"""Names of breakdowns that are not columns."""
TOKEN_SPANS = pa.list_(pa.struct([("first", pa.int32()), ("end", pa.int32()), ("label", pa.string())]))
"""Type of a span column: tokens ``first … end - 1`` of the document have ``label``."""
OF_KEPT = (
    *(pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating, pa.types.is_string, pa.types.is_large_string),
    *(pa.types.is_timestamp, pa.types.is_date),
)
"""The types of other kept columns, of which DuckDB knows no number of half precision."""
LABELS = pa.list_(pa.string())
"""Type of a span column by token: the token's labels, sorted."""


def check_keep(keep: Sequence[str]) -> None:
    """Raise `ArgapError` for a column name that is empty, given twice, or already a column of tokens.

    SQL does not distinguish upper and lower case.
    """
    seen = {
        name: f"a column of every token; known are {', '.join(COLUMNS)}"
        for name in (*COLUMNS, *OPTIONAL, *SEGMENTED, TOKENS)
    }
    seen |= dict.fromkeys(BREAKDOWNS, "a breakdown of every result")
    for name in keep:
        if not name.strip() or name.lower().startswith(RESERVED):
            raise ArgapError(f"`keep` {name!r}: not a name that a condition can use; rename the column in the source")
        if taken := seen.get(name.lower()):
            raise ArgapError(f"`keep` {name}: {taken}; rename the column in the source")
        seen[name.lower()] = "given twice"


class Documents:
    """Kept columns, and the token columns they become. Legend: D documents, N tokens."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table.combine_chunks()
        self._ends = np.cumsum(table[TOKENS].to_numpy())

    @property
    def names(self) -> list[str]:
        """The kept columns."""
        return [name for name in self.table.column_names if name != TOKENS]

    @cached_property
    def types(self) -> dict[str, pa.DataType]:
        """The type of each column as a column of tokens."""
        types = {name: self.table.schema.field(name).type for name in self.names}
        return {n: LABELS if t == TOKEN_SPANS else TEXT if t == pa.string() else t for n, t in types.items()}

    def labels(self, name: str) -> list[str]:
        """Return the labels of a span column, by decreasing number of tokens."""
        spans = whole_column(self.table[name]).flatten()
        coded = spans.field("label").dictionary_encode()
        size = spans.field("end").to_numpy() - spans.field("first").to_numpy()
        tokens = np.bincount(coded.indices.to_numpy(), size, minlength=len(coded.dictionary))
        return [label for _, label in sorted(zip((-tokens).tolist(), coded.dictionary.to_pylist(), strict=True))]

    def column(self, name: str, start: int, count: int) -> pa.Array:
        """Return the values of tokens ``start … start + count - 1`` of the evaluation set."""
        rows = np.arange(start, start + count)
        document = np.searchsorted(self._ends, rows, side="right")
        if self.types[name] == LABELS:
            return self._labels(name, document, start, count)
        column = whole_column(self.table[name])
        if self.types[name] != TEXT:
            return column.take(pa.array(document))
        distinct, index = np.unique(document, return_inverse=True)
        values = column.take(pa.array(distinct)).dictionary_encode()
        return pa.DictionaryArray.from_arrays(values.indices.take(pa.array(index)), values.dictionary)

    def _labels(self, name: str, document: np.ndarray, start: int, count: int) -> pa.Array:
        """Return, for each token, the distinct labels of its spans, sorted."""
        low, high = int(document[0]), int(document[-1]) + 1
        lists = whole_column(self.table[name]).slice(low, high - low)
        spans = lists.flatten()
        begin = (self._ends - self.table[TOKENS].to_numpy())[low:high] - start  # each document's first row
        own = np.repeat(begin, lists.value_lengths().to_numpy())
        first = np.clip(own + spans.field("first").to_numpy(), 0, count)
        end = np.clip(own + spans.field("end").to_numpy(), 0, count)
        coded = spans.field("label").dictionary_encode()
        of_code = coded.dictionary.to_pylist()
        names = sorted(of_code)
        number = {label: k for k, label in enumerate(names)}  # NumPy would take no account of NULs at a label's end
        rank = np.array([number[label] for label in of_code], dtype=np.int64)
        size = end - first
        row = np.repeat(first, size) + np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
        pair = np.unique(row * len(names) + np.repeat(rank[coded.indices.to_numpy()], size))
        row, label = np.divmod(pair, max(len(names), 1))
        offsets = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=count))]).astype(np.int32)
        values = pa.array(names, pa.string()).take(pa.array(label))
        return pa.ListArray.from_arrays(pa.array(offsets), values)


def build_documents(
    documents: Sequence[TokenDocument | TextDocument],
    tokens: np.ndarray,
    corpora: Sequence[Corpus],
    keep: Sequence[str],
) -> Documents:
    """Collect the columns ``keep`` of documents with ``tokens [D]`` tokens each; spans are of tokens.

    Raises `ArgapError` for a column that no document has, and `FormatError` naming a document for a column with several
    types.
    """
    columns = {TOKENS: pa.array(tokens, pa.int64())}
    sources = [document.source for document in documents]
    for name in keep:
        values = [document.kept.get(name) for document in documents]
        if all(value is None for value in values):
            names = ", ".join(corpus.spec for corpus in corpora)
            seen = ", ".join(repr(column) for corpus in corpora for column in corpus.tally.columns)
            raise ArgapError(
                f"{names}: no document has a value in the column {name!r} to `keep`{seen and f'; columns are {seen}'}"
            )
        columns[name] = _array(name, values, sources)
    return Documents(pa.table(columns))


def _array(name: str, values: list[Any], sources: Sequence[str]) -> pa.Array:
    first = next(k for k, value in enumerate(values) if value is not None)
    for k, value in enumerate(values):
        if value is not None and (found := _what(value)) != (expected := _what(values[first])):
            raise FormatError(
                f"{sources[k]}: column {name!r} holds {found}, and {expected} in {sources[first]}; expected one type"
            )
    try:
        if isinstance(values[first], TokenSpans):
            return _spans(values)
        array = pa.array(values)
    except (pa.ArrowException, OverflowError) as error:
        raise FormatError(f"column {name!r} to `keep`: {first_line(error)}") from None
    if pa.types.is_timestamp(array.type):  # as UTC without time zone: DuckDB needs an extension for others
        return array.cast(pa.timestamp("us"))
    return array


def _spans(values: list[TokenSpans | None]) -> pa.Array:
    given = [value for value in values if value is not None]
    offsets = np.cumsum([0, *(0 if value is None else len(value.labels) for value in values)])
    columns = [
        pa.array(np.concatenate([value.first for value in given])),
        pa.array(np.concatenate([value.end for value in given])),
        pa.array([label for value in given for label in value.labels], pa.string()),
    ]
    spans = pa.StructArray.from_arrays(columns, fields=list(TOKEN_SPANS.value_type))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), spans)


def _what(value: Any) -> str:
    """Return a value's type in everyday words; all numbers are one type."""
    return next(name for kind, name in KINDS.items() if isinstance(value, kind))


def read_documents(folder: Path, tokens: int) -> Documents | None:
    """Read the documents of a folder of labels for that many ``tokens``; None if no column was kept.

    Raises `FormatError`.
    """
    path = folder / FILE
    if not is_there(path):
        return None
    table = read_parquet(path)
    check_columns(path, table.schema, [TOKENS])
    counts = table[TOKENS]
    whole = pa.types.is_integer(counts.type) and not counts.null_count
    if not whole or counts.to_numpy().min(initial=0) < 0 or counts.to_numpy().sum() != tokens:
        raise FormatError(f"{path}: {TOKENS} do not add up to the {tokens:,} tokens of the labels{remedy_for(path)}")
    for kept in table.schema:
        if kept.type == TOKEN_SPANS:
            if table[kept.name].null_count:
                raise FormatError(f"{path}: {kept.name} is null in a row, where a document without spans has none")
        elif kept.type == pa.float16() or not any(is_of(kept.type) for is_of in OF_KEPT):
            raise FormatError(f"{path}: {kept.name} is {str(kept.type)[:100]}, as no column kept is{remedy_for(path)}")
    return Documents(table)


def write_documents(documents: Documents | None, folder: Path) -> None:
    """Write the file, or remove an earlier one if there are no documents."""
    if documents is None:
        (folder / FILE).unlink(missing_ok=True)
    else:
        write_parquet(folder / FILE, documents.table)
