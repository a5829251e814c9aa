"""Read labels and scores of a result's tokens in portions of whole windows."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from argap.files.checksums import check_files
from argap.files.parquet import whole_column
from argap.records.columns import ENTROPY, KL
from argap.runtime.threads import available_cores, lazy, map_ahead
from argap.tokens.fingerprint import RowsFingerprint
from argap.tokens.labels import TABLES, Labels, labels_of_rows
from argap.tokens.rows import Rows, read_rows
from argap.tokens.runs import check_parts
from argap.tokens.table import TokenTable, beside, followed_columns

Made = TypeVar("Made")
THREADS = 8
"""Maximum number of threads, to bound the portions in memory."""


@dataclass(frozen=True)
class ReadLater:
    """An array that is read from its file when first indexed."""

    read: Callable[[], np.ndarray]

    @lazy
    def values(self) -> np.ndarray:
        return self.read()

    def __getitem__(self, rows: slice) -> np.ndarray:
        return self.values[rows]


class Scores(NamedTuple):
    """One model's predictions. Legend: N tokens of the evaluation set."""

    logprob: np.ndarray
    """float32 ``[N]``, nats; NaN at position 0 of a window."""
    top1: np.ndarray | ReadLater
    """int32 ``[N]``: the model's most likely id; -1 at position 0."""


@dataclass(frozen=True)
class Portion:
    """Whole windows, position 0 included. Legend: N tokens."""

    tokens: np.ndarray
    """int32 ``[N]``: ids."""
    labels: Labels
    scores: dict[str, Scores]
    """By model."""
    stored: dict[str, dict[str, np.ndarray]]
    """By model: the columns ``kl`` and ``entropy`` that its run has."""

    def beside(self, model: str, reference: str) -> dict[str, np.ndarray]:
        """Compare the rows of two models (`argap.tokens.table.beside`)."""
        both = [self.scores[name]._asdict() | self.stored[name] for name in (model, reference)]
        return beside(*({name: of[name] if name != "top1" else of[name][:] for name in of} for of in both))


def read_portions(table: TokenTable) -> Iterator[Portion]:
    """Yield all tokens, in order. Raises `FormatError`, naming a file that is missing, damaged or of other tokens."""
    return map_portions(table, lambda portion: portion)


def map_portions(table: TokenTable, of: Callable[[Portion], Made]) -> Iterator[Made]:
    """Apply a function to each portion of the tokens in several threads, and yield its results in order.

    Raises as `read_portions`, and as the function. That the tokens and windows are those of the record is known at the
    end.
    """
    check_files(table.labels, [table.labels / name for name in TABLES])
    for run in table.runs:
        check_parts(run)
    of_runs = [
        ["token"] * (k == 0) + [name for name in followed_columns(run) if name != "top1"]
        for k, run in enumerate(table.runs)
    ]
    # `repeated` is distance > 0, and booleans are much slower to read
    of_labels = [name for name in table.label_columns if name != "repeated"]
    folders = [run.folder for run in table.runs]

    def made(rows: Rows) -> tuple[Rows, Made]:
        scores = {run.model: _scores(rows, k) for k, run in enumerate(table.runs)}
        labels = labels_of_rows(rows.labels, table.record, table.document_of_window, table.documents)
        stored = {
            run.model: {name: table[name].to_numpy() for name in (KL, ENTROPY) if name in table.column_names}
            for run, table in zip(table.runs, rows.runs, strict=True)
        }
        return rows, of(Portion(rows.tokens, labels, scores, stored))

    all_rows = RowsFingerprint()
    read = read_rows(folders, table.labels, of_runs=of_runs, of_labels=of_labels, later=["top1"])
    with closing(read) as rows:
        for portion, result in map_ahead(made, rows, min(THREADS, available_cores())):
            all_rows.add(portion.tokens, portion.pos)
            yield result
    all_rows.check(folders[0], table.runs[0].record.evaluation)
    table.check_unchanged()


def _scores(rows: Rows, run: int) -> Scores:
    def top1() -> np.ndarray:
        return whole_column(rows.later[run](["top1"])["top1"]).fill_null(-1).to_numpy()

    return Scores(rows.runs[run]["logprob"].to_numpy(), ReadLater(top1))  # nulls become NaN
