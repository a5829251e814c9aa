"""Name the source of each document of a text, and leave documents out.

A table of documents has one row per document: ``document`` (int32, its number in the evaluation set), ``domain`` and
``source``, the name of its data set or file.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from argap.errors import ArgapError, FormatError
from argap.files.parquet import check_columns, read_frame, readable
from argap.files.regular import for_pyarrow
from argap.tokens.labels import Labels

DOCUMENTS = "documents.parquet"
"""File with the table of documents in a suite's result."""
COLUMNS = ("document", "domain", "source")


def source_name(place: str) -> str:
    """Return the source of a document from its place.

    >>> source_name("data_set#17"), source_name("books/one.txt")
    ('data_set', 'books/one.txt')
    """
    name, mark, number = place.rpartition("#")
    return name if mark and number.isdecimal() else place


def table_of_documents(labels: Labels, tokens: np.ndarray, eos: int | None) -> pd.DataFrame:
    """Return the table of the documents in ``labels``.

    ``tokens``: ids of the evaluation set, int32 ``[N]``; ``eos``: the id that ends each document of packed windows.
    """
    packed = labels.record.evaluation.packing == "packed"
    ends = tokens == eos
    document = np.cumsum(ends) - ends if packed else labels.document_of_window[labels.window]
    number, first = np.unique(document, return_index=True)
    places = np.array([source_name(place) for place in labels.record.sources], dtype=object)
    domains = np.array(labels.domains, dtype=object)[labels.domain[first]]
    return pd.DataFrame({"document": number.astype(np.int32), "domain": domains, "source": places[number]})


def read_documents(path: Path) -> pd.DataFrame:
    """Read a table of documents from CSV or Parquet. Raises `FormatError` for another file.

    Domains and sources are text also where they look like numbers, as ``007``.
    """
    if path.suffix == ".csv":
        import pyarrow.csv as csv

        text = csv.ConvertOptions(column_types=dict.fromkeys(COLUMNS[1:], pa.string()))
        with readable(path):
            table = csv.read_csv(for_pyarrow(path), csv.ReadOptions(), csv.ParseOptions(newlines_in_values=True), text)
        check_columns(path, table.schema, COLUMNS)
        frame = table.to_pandas()
    else:
        frame = read_frame(path, needed=COLUMNS)
    numbers = frame["document"]
    whole = pd.api.types.is_integer_dtype(numbers) and max(numbers.tolist(), default=0) < 2**31
    if not whole or numbers.duplicated().any():
        raise FormatError(f"{path}: column document: expected a different whole number in each row")
    return frame.loc[:, list(COLUMNS)].astype({"document": "int32", "domain": str, "source": str})


def parse_conditions(given: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Parse ``COLUMN=VALUE`` texts to the values of each column. Raises `ArgapError` for anything else.

    >>> parse_conditions(["source=a", "source=b", "document=7"])
    {'source': ('a', 'b'), 'document': ('7',)}
    """
    found: dict[str, tuple[str, ...]] = {}
    for text in given:
        column, mark, value = text.partition("=")
        if column not in COLUMNS or not mark or not value:
            raise ArgapError(f"`without` {text!r}: expected source=NAME, domain=NAME or document=NUMBER")
        found[column] = tuple(dict.fromkeys([*found.get(column, ()), value]))
    return found


def choose(table: pd.DataFrame, where: Mapping[str, Sequence[str]]) -> np.ndarray:
    """Return the numbers of the documents that any condition selects, ascending.

    Raises `ArgapError` for a value that no document has, listing known values.
    """
    chosen = np.zeros(len(table), dtype=bool)
    for column, values in where.items():
        known = table[column].astype(str)
        for value in values:
            if not (match := (known == value).to_numpy()).any():
                names = ", ".join(known.unique()[:20])
                raise ArgapError(f"`without` {column}={value}: no document has it; known are {names}")
            chosen |= match
    return np.sort(table["document"].to_numpy()[chosen])


def without(table: pd.DataFrame, documents: np.ndarray | Sequence[int]) -> pd.DataFrame:
    """Drop the rows of ``documents`` from cells, or from another table with a column ``document``."""
    return table.loc[~np.isin(table["document"].to_numpy(), documents)].reset_index(drop=True)
