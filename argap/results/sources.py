"""Group the documents of a text by source, leave some out, and compute a gap without each source.

A table of documents has one row per document: ``document`` (int32, its number in the evaluation set), ``domain`` and
``source``, the name of its data set or file.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from argap.errors import ArgapError, FormatError
from argap.files.parquet import check_columns, read_frame, readable
from argap.metric.documents import LeftOut, behind, figures, leave_one_source_out
from argap.records import Bins
from argap.slices.cells import PREFIX, CellFile, ar_hits, models_of, parts_of
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
    """Read a table of documents from CSV or Parquet. Raises `FormatError` for another file."""
    if path.suffix == ".csv":
        import pyarrow.csv as csv

        with readable(path):
            table = csv.read_csv(path)
        check_columns(path, table.schema, COLUMNS)
        frame = table.to_pandas()
    else:
        frame = read_frame(path, needed=COLUMNS)
    if not pd.api.types.is_integer_dtype(frame["document"]) or frame["document"].duplicated().any():
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


class Grouped(NamedTuple):
    """Sums over groups of documents or of tokens. Legend: G groups, M models, D documents."""

    by: str
    """``source`` or ``domain``."""
    names: list[str]
    """``[G]``."""
    documents: np.ndarray
    """``[G]``: number of documents with a token of the group."""
    n: np.ndarray
    """``[2, G]``: scored tokens, and AR hits."""
    logprob: np.ndarray
    """``[2, M, G]``: their sums of log p."""
    level: np.ndarray
    """bool ``[M]``: whether the gap's interval over documents contains 0."""
    models: list[str]
    reference: int

    @property
    def left_out(self) -> LeftOut:
        """Return each group's share of the gaps, and the shares of the slices (all, AR hits) without it."""
        return leave_one_source_out(behind(self.logprob, self.reference), np.arange(len(self.names)))

    def frame(self) -> pd.DataFrame:
        """Return a row for each group and each model with a gap.

        Columns ``model``, ``source`` or ``domain``; ``tokens``, ``gap``: shares of the scored tokens and of the gap;
        ``hits``, ``hits_without``: the share of the gap on AR hits, in the whole text and without this group.
        """
        parts, (_, lost) = self.left_out, behind(self.logprob, self.reference)
        whole = behind(self.logprob, self.reference)[0].sum(axis=-1)
        rows = [
            {
                "model": model,
                self.by: name,
                "tokens": self.n[0, g] / self.n[0].sum(),
                "gap": parts.part[m, g],
                "hits": lost[m].sum() / whole[m],
                "hits_without": parts.share[1, m, g],
            }
            for m, model in enumerate(self.models)
            if m != self.reference and not self.level[m]
            for g, name in enumerate(self.names)
        ]
        return pd.DataFrame(rows, columns=["model", self.by, "tokens", "gap", "hits", "hits_without"])


def group(
    cells: pd.DataFrame | CellFile,
    reference: str,
    threshold: int | None,
    bins: Bins,
    source_of: Mapping[int, str] | None = None,
) -> Grouped:
    """Sum the cells by source; by domain if ``source_of`` (source by document) is None.

    ``bins``: those that the cells refer to.
    """
    models = models_of(cells)
    sums: dict[str, tuple[set[int], np.ndarray]] = {}
    by_document: dict[int, np.ndarray] = {}
    for part in parts_of(cells):
        hits = ar_hits(part, threshold, bins)
        columns = part[["n", *(PREFIX + model for model in models)]].to_numpy(np.float64).T
        document = part["document"].to_numpy()
        names = part["domain"].astype(str) if source_of is None else part["document"].map(source_of.get)
        code, known = pd.factorize(names)
        for k, name in enumerate(known):
            seen, total = sums.setdefault(str(name), (set(), np.zeros((2, len(columns)))))
            seen.update(document[code == k].tolist())
            total += [columns[:, code == k].sum(axis=1), columns[:, (code == k) & hits].sum(axis=1)]
        numbers, code = np.unique(document, return_inverse=True)
        for number, each in zip(numbers.tolist(), _sums(code, columns), strict=True):
            by_document[number] = by_document.get(number, 0) + each
    stacked = np.stack(list(by_document.values()), axis=-1)
    direction = figures(stacked[:1], stacked[1:][None], models.index(reference)).direction
    names = sorted(sums)
    total = np.stack([sums[name][1] for name in names], axis=-1)
    return Grouped(
        by="domain" if source_of is None else "source",
        names=names,
        documents=np.array([len(sums[name][0]) for name in names]),
        n=total[:, 0],
        logprob=total[:, 1:],
        level=direction == "level",
        models=models,
        reference=models.index(reference),
    )


def _sums(code: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Sum ``columns [C, R]`` over the rows of each code, ``[K, C]``."""
    return np.stack([np.bincount(code, column) for column in columns], axis=-1)
