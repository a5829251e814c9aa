"""Present the scored tokens of a result as a table, streamed from its runs and labels; never all in memory.

All runs and the labels hold the same tokens in the same order and are read in lockstep, one part of the reference's run
(whole windows) at a time (`argap.tokens.batches`). Position 0 of a window is not scored and not in the table.
`argap.records.columns` lists the columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from argap.errors import FormatError, MismatchError
from argap.evaluation.documents import Documents, read_documents
from argap.files.checksums import Version, check_files, version_of
from argap.files.parquet import check_below, read_portions, whole_column
from argap.files.remedies import remedy_for
from argap.metric.fidelity import differences, measures
from argap.records import LabelsRecord, read_record
from argap.records.columns import (
    BY_MODEL,
    COLUMNS,
    COPIED,
    ENTROPY,
    FOLLOWED,
    GAIN,
    KL,
    LABELLED,
    LOGPROB,
    OPTIONAL,
    UNIT,
    WEIGHT,
    WHOLE,
    optional_types,
    schema_of,
)
from argap.runtime.threads import lazy
from argap.text.content import content_bigrams, content_tokens, has_letters
from argap.text.tokenizer import Tokenizer, load_tokenizer
from argap.text.words import PieceBytes, Words, seen_earlier
from argap.tokens.labels import FORMAT, copied_columns, further_columns, read_document_of_window
from argap.tokens.rows import Rows
from argap.tokens.runs import Run, check_ids, check_saved_tokenizer, short_passes
from argap.tokens.weights import last_rows, stored_weights, weights_of

OF_RUNS = {"runs", "models", "further", "having", "short", "folders"}
"""Attributes of a `TokenTable` that depend on its runs."""


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
        """Return ``labels.json``."""
        version = version_of(self.labels / "labels.json")
        record = read_record(self.labels / "labels.json", LabelsRecord, newest=FORMAT)
        if version is not None:
            self._unchanged.add(version)
        return record

    def check_unchanged(self) -> None:
        """Raise `MismatchError` if the labels or a run were written again since the table was opened.

        Call it after reading: files that were opened later than others may be of the new ones.
        """
        for folder, name, is_same in [
            (self.labels, "labels.json", self._has_labels),
            *((run.folder, "run.json", run.is_unchanged) for run in (*self.runs, *self.short.values())),
        ]:
            if (version := version_of(folder / name)) in self._unchanged:
                continue
            if version is None or not is_same():
                raise MismatchError(f"{folder}: written again while it was read; run the command again")
            self._unchanged.add(version)

    def _has_labels(self) -> bool:
        return read_record(self.labels / "labels.json", LabelsRecord, newest=FORMAT) == self.record

    @cached_property
    def _unchanged(self) -> set[Version]:
        """Versions of the records on disk that are those that the table was opened with."""
        return set()

    @cached_property
    def documents(self) -> Documents | None:
        """Return the columns kept from the source; None without any."""
        return read_documents(self.labels, self.record.evaluation.tokens)

    @property
    def label_columns(self) -> list[str]:
        """Return the columns of the labels, without window and position."""
        copied = copied_columns(self.record)
        return [*LABELLED, *copied, "domain", *stored_weights(self.record.evaluation)]

    @cached_property
    def kept(self) -> dict[str, pa.DataType]:
        """Return the columns kept from the source and their types."""
        return {} if self.documents is None else self.documents.types

    @cached_property
    def further(self) -> dict[str, pa.DataType]:
        """Return the columns not in `COLUMNS` and their types."""
        return further_columns(self.record.evaluation, self.documents) | optional_types(self.having)

    @cached_property
    def having(self) -> dict[str, list[str]]:
        """Return the models that have each column of `OPTIONAL`."""
        stored = {name: [run.model for run in self.runs if name in run.record.identity.optional] for name in OPTIONAL}
        return stored | {GAIN: [*self.short]}

    @cached_property
    def short(self) -> dict[str, Run]:
        """Return the passes over a short context that ``gain`` is computed from, by model: over the shortest known."""
        passes = {run.model: short_passes(run.folder, run.record.identity) for run in self.runs}
        shortest = min((context for known in passes.values() for context in known), default=0)
        return {model: known[shortest] for model, known in passes.items() if shortest in known}

    @cached_property
    def folders(self) -> list[Path]:
        """Return the folders of the files that `argap.tokens.rows.Rows` reads: of the runs, then of `short`."""
        return [run.folder for run in (*self.runs, *self.short.values())]

    @property
    def columns(self) -> tuple[str, ...]:
        return (*(name for name in COLUMNS if name not in self.lacking), *self.further)

    @property
    def lacking(self) -> set[str]:
        """Return those of `COLUMNS` that the labels are too old to have."""
        return {*COPIED} - {*copied_columns(self.record)}

    def schema(self, columns: Sequence[str] | None = None, models: Sequence[str] | None = None) -> pa.Schema:
        """Return the types of some columns, by default all.

        ``nll`` and ``top1`` have a field for each of ``models``, those of `OPTIONAL` for each that has them.
        """
        chosen = self.models if models is None else models
        having = {name: [model for model in chosen if model in known] for name, known in self.having.items()}
        further = {name: of for name, of in self.further.items() if name not in having} | optional_types(having)
        schema = schema_of(chosen, further, columns)
        return pa.schema([field for field in schema if field.name not in self.lacking])

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer of the labels. Raises `FormatError` if its files are damaged."""
        check_saved_tokenizer(self.labels)
        return load_tokenizer(self.labels, name=self.record.evaluation.tokenizer)

    def among(self, models: Sequence[str]) -> "TokenTable":
        """Restrict the table to some models, the first as the reference. Data already read is shared."""
        by_name = {run.model: run for run in self.runs}
        table = TokenTable(tuple(by_name[model] for model in models), self.labels)
        vars(table).update({name: value for name, value in vars(self).items() if name not in OF_RUNS})
        return table

    def batch_of(self, rows: Rows, columns: Sequence[str], models: Sequence[str], start: int) -> pa.RecordBatch:
        """Return ``columns`` of whole windows; position 0 has NLL NaN. ``start``: number of tokens before them."""
        source = Columns(self, rows, models, start, None)
        return pa.RecordBatch.from_arrays([source.column(name) for name in columns], names=list(columns))

    @cached_property
    def scored_of_document(self) -> np.ndarray:
        """Count scored tokens (or bytes, if they are the unit) in each document's windows, int64 ``[D]``.

        Raises `FormatError` for damaged labels, and for others than were recorded.
        """
        n = np.zeros(len(self.document_of_window), dtype=np.int64)
        columns = ["window", "pos", *stored_weights(self.record.evaluation)]
        path, lacking = self.labels / "labels.parquet", f"a window that windows.parquet, which has {len(n):,}, lacks"
        check_files(self.labels, [path])
        for rows in read_portions(path, columns):
            window = rows["window"].to_numpy()
            check_below(path, window, len(n), lacking)
            n += np.bincount(window, np.maximum(weights_of(rows), 0), minlength=len(n)).astype(np.int64)
        evaluation = self.record.evaluation
        if (found := int(n.sum())) != evaluation.scored:
            counted = f"{found:,} scored {evaluation.unit}s, where labels.json records {evaluation.scored:,}"
            raise FormatError(f"{path}: {counted}{remedy_for(path)}")
        return np.bincount(self.document_of_window, n).astype(np.int64)

    @cached_property
    def document_of_window(self) -> np.ndarray:
        """Read the document of each window, int32 ``[W]``. Raises `FormatError` for damaged labels."""
        return read_document_of_window(self.labels, self.record)

    @cached_property
    def pieces(self) -> pa.StringArray:
        """Return the text of each token id."""
        return pa.array(self.tokenizer.pieces, pa.string())

    @cached_property
    def piece_bytes(self) -> PieceBytes:
        return PieceBytes(self.tokenizer.piece_bytes)

    def check_ids(self, ids: np.ndarray) -> np.ndarray:
        """Return the reference's token ids. Raises `FormatError` if the labels' tokenizer lacks one."""
        return check_ids(self.runs[0], ids, self.tokenizer)

    @cached_property
    def has_letters(self) -> np.ndarray:
        """Return which ids have a letter or digit in their text, bool ``[vocab]``."""
        return has_letters(self.tokenizer)


def followed_columns(run: Run) -> list[str]:
    """Return the columns of a run that `beside` reads."""
    return ["logprob", "top1", *(name for name in (KL, ENTROPY) if name in run.record.identity.optional)]


def beside(model: Mapping[str, np.ndarray], reference: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return `argap.metric.fidelity.measures` of each row of two runs, and the stored columns that they have.

    ``model``, ``reference``: the `followed_columns` of each, ``[N]``.
    """
    found = measures(differences(model["logprob"], reference["logprob"]), model["top1"] == reference["top1"])
    stored = {"kl": (model, KL), "entropy": (model, ENTROPY), "reference_entropy": (reference, ENTROPY)}
    return found | {key: of[name] for key, (of, name) in stored.items() if name in of}


class Columns:
    """The columns of some rows, each computed on demand."""

    def __init__(
        self, table: TokenTable, rows: Rows, models: Sequence[str], start: int, units: np.ndarray | None
    ) -> None:
        self._table = table
        self._units = units
        self._rows = rows
        self._models = models
        self._start = start
        """Tokens of the evaluation set before these rows."""
        self._followed: dict[int, dict[str, np.ndarray]] = {}

    @lazy
    def _last(self) -> np.ndarray:
        """Return the row of the last token of each token's segment (`argap.tokens.weights.last_rows`)."""
        return last_rows(self._rows.weight)

    def column(self, name: str) -> pa.Array:
        """Return one value per row; ``name``: as in `argap.tokens.batches.TokenReader.columns`."""
        if self._table.documents is not None and name in self._table.kept:
            return self._table.documents.column(name, self._start, len(self._rows.pos))
        if name == "segment":
            return pa.array(self._start + self._last)
        if name == "repeated":
            return pa.array(self._rows.labels["distance"].to_numpy() > 0)
        if name in ("window", "pos", "domain", "segment_bytes", *LABELLED, *COPIED):
            return whole_column(self._rows.labels[name])
        if name in BY_MODEL:
            return self._of_models(name)
        if name == WEIGHT:
            return pa.array(self._rows.weight)
        if name == WHOLE:
            return pa.array(self._rows.weight[self._last])
        if name == UNIT and self._units is not None:
            documents, tokens = self._windows
            return pa.array(np.where(self.scored, np.repeat(self._units[documents], tokens), -1), pa.int32())
        if name.startswith((LOGPROB, FOLLOWED)):
            return self._summed(name)
        return getattr(self, f"_{name}")()

    @lazy
    def scored(self) -> np.ndarray:
        """Return which rows have a log-prob or are in a segment that has one, bool ``[N]``."""
        return self._rows.weight >= 0

    def tokens(self, *, previous: bool) -> np.ndarray:
        """Return ids, int32 ``[N]``; ``previous``: of the previous tokens, wrong only at position 0 (not scored)."""
        return np.roll(self._ids, 1) if previous else self._ids

    @lazy
    def _ids(self) -> np.ndarray:
        return self._table.check_ids(self._rows.tokens)

    def _of_models(self, name: str) -> pa.Array:
        having = self._table.having.get(name, self._models)
        models = [model for model in self._models if model in having]
        tables = [self._rows.runs[self._table.models.index(model)] for model in models]
        if name == GAIN:
            shorts = [self._rows.runs[len(self._table.runs) + having.index(model)] for model in models]
            arrays = [_gain(long, short) for long, short in zip(tables, shorts, strict=True)]
        else:
            arrays = [whole_column(table["logprob" if name == "nll" else name]) for table in tables]
        if name == "nll":
            arrays = [pa.array(-each.to_numpy(zero_copy_only=False)) for each in arrays]  # NaN at position 0
        if name == "nll" and not self._rows.weight.all():  # some are inside a segment
            arrays = [each.take(pa.array(self._last)) for each in arrays]
        return pa.StructArray.from_arrays(arrays, names=models)

    def _summed(self, name: str) -> pa.Array:
        """Return the log-probs of a model, or a measure of `beside` for it."""
        if name.startswith(LOGPROB):
            return whole_column(self._rows.runs[int(name.removeprefix(LOGPROB))]["logprob"])
        measure, _, number = name.removeprefix(FOLLOWED).partition(" ")
        model = int(number)
        if model not in self._followed:
            both = [self._rows.runs[k].select(followed_columns(self._table.runs[k])) for k in (model, 0)]
            self._followed[model] = beside(*({name: t[name].to_numpy() for name in t.column_names} for t in both))
        return pa.array(self._followed[model][measure], pa.float32())

    @lazy
    def _windows(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the document and the number of tokens of each window, so that lookups run once per window."""
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
        return pa.DictionaryArray.from_arrays(pa.array(self._ids), self._table.pieces)

    def _previous(self) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array(self.tokens(previous=True)), self._table.pieces)

    @lazy
    def _words(self) -> Words:
        return self._table.piece_bytes.words(self._ids, self._rows.window)

    def _word(self) -> pa.Array:
        index = pa.array(self._words.number, pa.int32(), mask=self._words.number < 0)
        return pa.DictionaryArray.from_arrays(index, self._words.texts)

    def _word_start(self) -> pa.Array:
        return pa.array(self._words.start)

    def _word_repeated(self) -> pa.Array:
        return pa.array(np.append(seen_earlier(self._words), False)[self._words.number])

    def _content_word(self) -> pa.Array:
        return pa.array(content_tokens(self._ids, self._words, self._table.has_letters))

    def _content(self) -> pa.Array:
        return pa.array(content_bigrams(self._ids, self._words, self._table.has_letters))


def _gain(long: pa.Table, short: pa.Table) -> pa.Array:
    """Return log p with the whole window as context minus log p with a short one; null at position 0."""
    whole, part = (table["logprob"].to_numpy() for table in (long, short))
    with np.errstate(invalid="ignore"):  # a token that is ruled out in both
        return pa.array(whole - part, from_pandas=True)
