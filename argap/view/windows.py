"""Read one window of a result without the others: every token with its labels, and the log-probs of some models."""

import codecs
from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from argap.errors import ArgapError, FormatError
from argap.files.checksums import check_files
from argap.files.parquet import check_columns, check_whole, opened
from argap.files.remedies import SCORED
from argap.records import Record
from argap.records.columns import ENTROPY, KL, LABELLED, RANK
from argap.reports.tables.tokens import lines, visible
from argap.tokens.rows import KEYS, Rows
from argap.tokens.runs import Run, check_scores, token_parts
from argap.tokens.table import TokenTable
from argap.tokens.weights import weights_of

PART = "⋯"
"""Shown for a token that only begins a character."""
LONGEST = 400
"""Characters shown of one token."""


class ModelInWindow(Record, frozen=True):
    """A model on the tokens of a window."""

    model: str
    nll: tuple[float | None, ...]
    """−log p in nats; None for tokens that are not scored, such as position 0."""
    right: tuple[bool, ...]
    """Whether the model's most likely token is the true one."""
    top1: tuple[str, ...]
    """That token's text."""
    rank: tuple[int | None, ...] | None = None
    """The true token's rank in the vocabulary, from 1; None for a run without ranks."""
    kl: tuple[float | None, ...] | None = None
    """KL(reference ‖ model) in nats; None for a run without it."""
    entropy: tuple[float | None, ...] | None = None
    """Entropy of the model's distribution in nats; None for a run without it."""


class Window(Record, frozen=True):
    """A window's tokens in order, from position 0; all sequences have one entry per token."""

    window: int
    document: int
    domain: str
    source: str
    tokens: tuple[str, ...]
    """Texts with their control characters made visible; a line break is ``↵`` and a newline."""
    cut: dict[int, int]
    """Full length of tokens longer than `LONGEST` characters, by position."""
    ids: tuple[int, ...]
    repeated: tuple[bool, ...]
    distance: tuple[int, ...]
    occurrences: tuple[int, ...]
    train_count: tuple[int, ...] | None
    """Exposures; None without an index."""
    kept: dict[str, tuple[str, ...]]
    """Columns kept from the source, as text."""
    models: tuple[ModelInWindow, ...]


class WindowReader:
    """Finds windows in the Parquet files of a result's runs and labels, using the statistics in their footers."""

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._labels = _Rows(table.labels, [table.labels / "labels.parquet"])
        self._runs = {run.model: _Rows(run.folder, token_parts(run.folder)) for run in table.runs}

    def read(self, window: int, models: Sequence[str]) -> Window:
        """Read window ``window`` (from 0), with the losses and predictions of ``models``.

        Raises `ArgapError` for a window that does not exist, and `FormatError` for broken files.
        """
        count = self._table.record.evaluation.windows
        if not 0 <= window < count:
            raise ArgapError(f"window {window}: expected one of 0 to {count - 1:,}")
        table, start = self._table.among(models), self._labels.before(window)
        labels = self._labels.of(window, [*KEYS, *table.label_columns])
        runs = tuple(self._runs[run.model].of(window, _columns(run)) for run in table.runs)
        if any(len(run) != len(labels) for run in runs):
            raise FormatError(f"window {window}: the runs and labels hold different tokens; {SCORED}")
        weight = weights_of(labels)
        for run, of_run in zip(table.runs, runs, strict=True):
            check_scores(run.folder, of_run, weight > 0, start)
        columns = ["document", "domain", "source", *LABELLED, "token", "nll", "top1", *table.kept]
        rows = table.batch_of(Rows(labels, runs), columns, models, start)
        table.check_unchanged()
        ids = table.check_ids(rows["token"].to_numpy())
        texts, cut = _texts(ids, table)
        scored = weight >= 0
        counted = rows["train_count"].null_count == 0
        return Window(
            window=window,
            document=rows["document"][0].as_py(),
            domain=visible(rows["domain"][0].as_py()),
            source=visible(rows["source"][0].as_py()),
            tokens=texts,
            cut=cut,
            ids=tuple(ids.tolist()),
            repeated=tuple(rows["repeated"].to_pylist()),
            distance=tuple(rows["distance"].to_pylist()),
            occurrences=tuple(rows["occurrences"].to_pylist()),
            train_count=tuple(rows["train_count"].to_pylist()) if counted else None,
            kept={name: tuple(map(_value, rows[name].to_pylist())) for name in table.kept},
            models=tuple(
                _of_model(model, run, rows, ids, scored, table) for model, run in zip(models, runs, strict=True)
            ),
        )


def _columns(run: Run) -> list[str]:
    """Return the columns to read from a run."""
    return [*KEYS, "token", "logprob", "top1", *run.record.identity.optional]


def _of_model(
    model: str, run: pa.Table, rows: pa.RecordBatch, ids: np.ndarray, scored: np.ndarray, table: TokenTable
) -> ModelInWindow:
    pieces = table.tokenizer.pieces
    nll = rows["nll"].field(model).to_numpy(zero_copy_only=False)
    top1 = rows["top1"].field(model).fill_null(-1).to_numpy(zero_copy_only=False)
    return ModelInWindow(
        model=model,
        nll=tuple(value if of else None for value, of in zip(nll.tolist(), scored.tolist(), strict=True)),
        right=tuple((top1 == ids).tolist()),
        top1=tuple("" if each < 0 else _piece(each, pieces) for each in top1.tolist()),
        **{name: tuple(run[name].to_pylist()) for name in (RANK, KL, ENTROPY) if name in run.column_names},
    )


def _piece(token: int, pieces: Sequence[str]) -> str:
    """Return the text of a model's most likely token; its id where the vocabulary is padded beyond the tokenizer's."""
    return shown(pieces[token]) if token < len(pieces) else f"⟨{token}⟩"


def _value(value: Any) -> str:
    """Return a value of a kept column as text; labels of spans are joined."""
    return "" if value is None else visible(", ".join(value) if isinstance(value, list) else str(value))[:LONGEST]


def _texts(ids: np.ndarray, table: TokenTable) -> tuple[tuple[str, ...], dict[int, int]]:
    """Return each token's displayed text, and the length of those that are cut.

    A character split over several tokens is shown at the last of them; the others show `PART`.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    pieces = [decoder.decode(table.tokenizer.piece_bytes[each], final=k == len(ids) - 1) for k, each in enumerate(ids)]
    if pieces[0]:
        pieces[0] = table.tokenizer.decode([int(ids[0])])  # some tokenizers drop the first token's leading space
    cut = {k: len(piece) for k, piece in enumerate(pieces) if len(piece) > LONGEST}
    texts = (
        shown(piece) if piece or not table.tokenizer.piece_bytes[each] else PART
        for piece, each in zip(pieces, ids, strict=True)
    )
    return tuple(texts), cut


def shown(piece: str) -> str:
    """Return a token's text with nothing hidden in it, cut after `LONGEST` characters; newlines follow their sign.

    >>> shown("a\\n\\tb")
    'a↵\\n→b'
    """
    text = "\n".join(lines(piece[:LONGEST]))
    return text if len(piece) <= LONGEST else text + "…"


class _Group(NamedTuple):
    """A row group of a file of tokens."""

    path: Path
    number: int
    before: int
    """Rows in the groups before it."""


class _Rows:
    """The rows of Parquet files below a folder, sorted by window. Raises `FormatError` for broken files."""

    def __init__(self, folder: Path, files: Sequence[Path]) -> None:
        self._folder = folder
        self._files = list(files)

    @cached_property
    def _groups(self) -> tuple[list[int], list[_Group]]:
        """Return the last window of each row group, and where the row group is."""
        last: list[int] = []
        groups: list[_Group] = []
        before = 0
        for path in self._files:
            with opened(path) as file:
                check_columns(path, file.schema_arrow, ["window"])
                number = file.schema_arrow.get_field_index("window")
                for group in range(file.num_row_groups):
                    described = file.metadata.row_group(group)
                    bounds = described.column(number).statistics
                    if bounds is None or not bounds.has_min_max:
                        raise FormatError(f"{path}: no bounds of its windows; {SCORED}")
                    last.append(bounds.max)
                    groups.append(_Group(path, group, before))
                    before += described.num_rows
        return last, groups

    def _read(self, group: _Group, columns: Sequence[str]) -> pa.Table:
        """Read columns of a row group, after checking that its file is unchanged."""
        check_files(self._folder, [group.path])
        with opened(group.path) as file:
            check_columns(group.path, file.schema_arrow, columns)
            rows = file.read_row_group(group.number, columns=list(columns))
        check_whole(group.path, rows)
        return rows

    def _lacks(self, window: int) -> FormatError:
        return FormatError(f"{self._folder}: no window {window}; {SCORED}")

    def before(self, window: int) -> int:
        """Return the number of rows before those of a window, which must exist."""
        last, groups = self._groups
        if (at := bisect_left(last, window)) == len(groups):
            raise self._lacks(window)
        group = groups[at]
        return group.before + int(np.searchsorted(self._read(group, ["window"])["window"].to_numpy(), window))

    def of(self, window: int, columns: Sequence[str]) -> pa.Table:
        """Return the rows of one window, in one chunk."""
        last, groups = self._groups
        found: list[pa.Table] = []
        for group in groups[bisect_left(last, window) :]:
            rows = self._read(group, columns)
            first, end = np.searchsorted(rows["window"].to_numpy(), [window, window + 1]).tolist()
            found.append(rows.slice(first, end - first))
            if end < len(rows):
                break
        if not any(map(len, found)):
            raise self._lacks(window)
        return pa.concat_tables(found).unify_dictionaries().combine_chunks()
