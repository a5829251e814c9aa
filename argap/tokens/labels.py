"""LABELS: which tokens are AR hits, and why, with one row per token of the evaluation set.

A folder: ``labels.json`` (fingerprints, sources), ``windows.parquet`` (the document of each window),
``documents.parquet`` (`argap.evaluation.documents`; only with columns kept of the source), the tokenizer, and
``labels.parquet`` with ``window:int32, pos:int32, repeated:bool, distance:int32, occurrences:int32, train_count:int64,
domain:dict<string>, opportunity:bool, match_length:int32, induction:bool``, the rows of SCORES in the same order.
Without an index ``train_count`` is null, and every repeated bigram is a hit. ``induction`` is null without an
opportunity (`argap.tokens.copies`); labels of format 1 lack these two and ``match_length``, and `with_copies` adds
them. Comparisons of models with different tokenizers (`argap.tokens.aligned`) add ``segment_bytes:int32``: the bytes of
the segment that a token ends, 0 for a token inside a segment, and null where no segment is scored.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from argap.bigram_index.store import BigramIndex, check_tokenizer
from argap.errors import FormatError
from argap.evaluation.documents import FILE as DOCUMENTS
from argap.evaluation.documents import Documents, read_documents, write_documents
from argap.evaluation.windows import EvaluationSet
from argap.files.atomic import replacing_folder
from argap.files.checksums import check_files, write_checksums
from argap.files.parquet import (
    ParquetPortions,
    check_below,
    check_rows,
    check_type,
    check_whole,
    read_parquet,
    required,
    write_parquet,
)
from argap.files.remedies import remedy_for
from argap.records import EvaluationRecord, IndexRecord, LabelsRecord, read_record, write_record
from argap.records.columns import COPIED, SEGMENTED, TEXT
from argap.runtime.threads import lazy
from argap.text.tokenizer import FILES as TOKENIZER_FILES
from argap.text.tokenizer import Tokenizer
from argap.tokens.runs import shards_of
from argap.tokens.weights import SEGMENT_BYTES, last_rows, stored_weights, weights

FORMAT = 2
WINDOWS = "windows.parquet"
TABLES = ("labels.parquet", WINDOWS, DOCUMENTS)
COLUMNS = ("window", "pos", "repeated", "distance", "occurrences", "train_count", "domain")
"""Columns of ``labels.parquet``, besides `COPIED` and ``segment_bytes``."""


@dataclass(frozen=True)
class Labels:
    """Labels in memory. Legend: N tokens, W windows, D documents."""

    window: np.ndarray
    """int32 ``[N]``."""
    position: np.ndarray
    """int32 ``[N]``, from 0."""
    repeated: np.ndarray
    """bool ``[N]``."""
    distance: np.ndarray
    """int32 ``[N]``; 0 where not repeated."""
    occurrences: np.ndarray
    """int32 ``[N]``: earlier occurrences of the bigram in the window."""
    train_count: np.ndarray | None
    """int64 ``[N]``: exposures, how often training read the bigram inside a document; None without an index."""
    domain: np.ndarray
    """int32 ``[N]``: index into ``domains``."""
    domains: list[str]
    document_of_window: np.ndarray
    """int32 ``[W]``: the document that holds most of the window."""
    record: LabelsRecord
    """``labels.json``."""
    kept: Documents | None = None
    """The columns kept from the source; None without any."""
    segment_bytes: np.ndarray | None = None
    """int32 ``[N]``: bytes of the scored segment that the token ends, 0 inside one, -1 outside; None if the unit is the
    token."""
    opportunity: np.ndarray | None = None
    """bool ``[N]``: `argap.tokens.copies.Copies`. None, as the next two, in labels of format 1."""
    match_length: np.ndarray | None = None
    """int32 ``[N]``."""
    induction: np.ndarray | None = None
    """bool ``[N]``: False without an opportunity."""

    @lazy
    def weight(self) -> np.ndarray:
        """int32 ``[N]``: what a row counts (`argap.tokens.weights.weights`)."""
        return weights(self.position, self.segment_bytes)

    @lazy
    def scored(self) -> np.ndarray:
        """Return the scored tokens, bool ``[N]``: all but the first of each window, or those of scored segments."""
        return self.weight >= 0

    @lazy
    def shown(self) -> np.ndarray:
        """Return, for each row of positive weight, the row whose labels represent it (int64).

        Usually that is the row itself. A segment of several tokens is represented by the repeated token with the lowest
        training count (the first of equals), or by the lowest count if no token is repeated. So at any threshold a
        segment is an AR hit if one of its tokens is.
        """
        rows = np.flatnonzero(self.scored)
        ends = self.weight[rows] > 0
        if ends.all():
            return rows
        segment = np.cumsum(ends) - ends
        count = np.zeros(len(rows)) if self.train_count is None else self.train_count[rows]
        order = np.lexsort((count, ~self.repeated[rows], segment))  # stable: the first of equals
        return rows[order][np.unique(segment[order], return_index=True)[1]]

    def highest(self, column: np.ndarray) -> np.ndarray:
        """Return the maximum of a column over the tokens of each row of positive weight: a segment's, or the one token.

        A segment has an opportunity, a match of some length or a right prediction if one of its tokens has.
        """
        if self.segment_bytes is None:
            return column[self.shown]
        rows = np.flatnonzero(self.scored)
        ends = self.weight[rows] > 0
        if not ends.any():
            return column[:0]
        return np.maximum.reduceat(column[rows], np.append(0, np.flatnonzero(ends)[:-1] + 1))

    def over_segments(self, logprob: np.ndarray) -> np.ndarray:
        """Copy the log-prob of each segment from its last token to all of its tokens, ``[N]``."""
        if self.segment_bytes is None:
            return logprob
        return np.where(self.scored, logprob[last_rows(self.weight)], np.float32(np.nan))

    def ar_hit(self, threshold: float | None) -> np.ndarray:
        """Return the AR hits, bool ``[N]``: repeated, and seen at most ``threshold`` times in training.

        Without a threshold or without counts, every repeated bigram is a hit.
        """
        if self.train_count is None or threshold is None:
            return self.repeated
        return self.repeated & (self.train_count <= threshold)


def further_columns(evaluation: EvaluationRecord, kept: Documents | None) -> dict[str, pa.DataType]:
    """Return extra token columns and their types: segment columns and columns kept from the source."""
    return (SEGMENTED if evaluation.unit == "byte" else {}) | ({} if kept is None else kept.types)


def copied_columns(record: LabelsRecord) -> tuple[str, ...]:
    """Return `COPIED` if the labels have these columns, else nothing."""
    return COPIED if record.format >= 2 else ()


def label(data: EvaluationSet, index: BigramIndex | None = None) -> Labels:
    """Label every token of ``data``, with the exposures that ``index`` gives.

    Raises `MismatchError` if their tokenizers differ.
    """
    return next(label_portions(data, index, [data.all]))


def label_portions(
    data: EvaluationSet, index: BigramIndex | None, portions: Iterable[range] | None = None
) -> Iterator[Labels]:
    """Yield the labels of all windows in portions, by default one per shard of a run.

    Raises as `label`.
    """
    if index is not None:
        check_tokenizer(index, data.tokenizer, data.tokenizer_fingerprint)
    domains, domain_of_document = np.unique(np.array(data.domains, dtype=object), return_inverse=True)
    domain_of_document = domain_of_document.astype(np.int32)
    record = LabelsRecord(FORMAT, data.record, index and index_record(index), tuple(data.sources))
    for windows in shards_of(data) if portions is None else portions:
        repeats, position = find_repeats(data, windows), data.position_of(windows)
        rows = data.rows(windows)
        tokens = data.tokens[rows]
        from argap.tokens.copies import find_copies  # imported late: numba takes a second

        copies = find_copies(tokens, data.offsets[windows.start : windows.stop + 1] - rows.start, data.eos)
        yield Labels(
            window=data.window_of(windows),
            position=position,
            repeated=repeats.repeated,
            distance=repeats.distance,
            occurrences=repeats.occurrences,
            train_count=None if index is None else count_exposures(tokens, position, index),
            domain=domain_of_document[data.document_of(windows)],
            domains=[str(d) for d in domains],
            document_of_window=data.document_of_window,
            record=record,
            kept=data.kept,
            **copies._asdict(),
        )


def count_exposures(tokens: np.ndarray, position: np.ndarray, index: BigramIndex) -> np.ndarray:
    """Return how often training read the bigram that ends at each token, int64 ``[N]``.

    Rounded half to even; 0 at the first position of a window.
    """
    ends = np.flatnonzero(position > 0)
    exposures = np.zeros(len(tokens), dtype=np.int64)
    exposures[ends] = np.rint(index.exposures(tokens[ends - 1], tokens[ends]))
    return exposures


def with_counts(labels: Labels, tokens: np.ndarray, index: BigramIndex) -> Labels:
    """Add exposures from ``index`` to ``labels``; ``tokens [N]``: their ids. Raises `MismatchError`."""
    evaluation = labels.record.evaluation
    check_tokenizer(index, evaluation.tokenizer, evaluation.tokenizer_fingerprint)
    record = msgspec.structs.replace(labels.record, index=index_record(index))
    return replace(labels, train_count=count_exposures(tokens, labels.position, index), record=record)


def with_copies(labels: Labels, tokens: np.ndarray, eos: int | None) -> Labels:
    """Add the columns of `argap.tokens.copies` to labels of whole windows, if they are of format 1.

    ``tokens [N]``: their ids; ``eos``: the separating id of packed windows, else None.
    """
    if labels.opportunity is not None:
        return labels
    from argap.tokens.copies import find_copies  # imported late: numba takes a second

    copies = find_copies(tokens, np.append(np.flatnonzero(labels.position == 0), len(tokens)), eos)
    return replace(labels, record=msgspec.structs.replace(labels.record, format=FORMAT), **copies._asdict())


def index_record(index: BigramIndex) -> IndexRecord:
    """Describe an index, for ``labels.json`` and ``gap.json``."""
    return IndexRecord(
        folder=index.name,
        tokenizer=index.tokenizer,
        tokenizer_fingerprint=index.tokenizer_fingerprint,
        tokens=index.tokens,
        documents=index.documents,
        distinct=index.distinct,
        proxy=index.proxy,
        passes=index.passes,
    )


def write_labels(labels: Labels | Iterable[Labels], tokenizer: Tokenizer, folder: Path) -> None:
    """Write a folder of labels in place of an earlier one, which stays if this fails; see `fill_labels`."""
    with replacing_folder(folder) as new:
        fill_labels(labels, tokenizer, new)


def fill_labels(labels: Labels | Iterable[Labels], tokenizer: Tokenizer, folder: Path) -> None:
    """Write labels into an empty folder; ``labels.json`` comes last, so a folder that has it is complete.

    ``labels``: all at once, or in portions. The tokenizer is saved too, so that the tokens can be read without the
    checkpoint.
    """
    portion: Labels | None = None
    with ParquetPortions(folder / "labels.parquet") as file:
        for portion in [labels] if isinstance(labels, Labels) else labels:
            file.add(_table(portion))
        assert portion is not None  # an evaluation set has windows
    windows = {"window": np.arange(len(portion.document_of_window)), "document": portion.document_of_window}
    write_parquet(folder / "windows.parquet", pa.table(windows))
    write_documents(portion.kept, folder)
    tokenizer.save(folder)
    write_checksums(folder, [path for name in (*TABLES, *TOKENIZER_FILES) if (path := folder / name).is_file()])
    write_record(folder / "labels.json", portion.record)


def _table(labels: Labels) -> pa.Table:
    columns = {
        "window": labels.window,
        "pos": labels.position,
        "repeated": labels.repeated,
        "distance": labels.distance,
        "occurrences": labels.occurrences,
        "train_count": pa.nulls(len(labels.window), pa.int64()) if labels.train_count is None else labels.train_count,
        "domain": pa.DictionaryArray.from_arrays(labels.domain, pa.array(labels.domains, pa.string())),
    }
    if labels.opportunity is not None:
        columns |= {"opportunity": labels.opportunity, "match_length": labels.match_length}
        columns["induction"] = pa.array(labels.induction, mask=~labels.opportunity)
    if labels.segment_bytes is not None:
        columns[SEGMENT_BYTES] = pa.array(labels.segment_bytes, mask=~labels.scored)
    counted = labels.train_count is not None
    nullable = {"induction", SEGMENT_BYTES, *(() if counted else ["train_count"])}
    return required(pa.table(columns), columns.keys() - nullable)


def read_labels(folder: Path) -> Labels:
    """Read a folder of labels. Raises `FormatError`, naming the missing or broken file."""
    folder = Path(folder)
    record = read_record(folder / "labels.json", LabelsRecord, newest=FORMAT)
    check_files(folder, [folder / name for name in TABLES])
    columns = [*COLUMNS, *copied_columns(record), *stored_weights(record.evaluation)]
    rows = read_parquet(folder / "labels.parquet", columns)
    check_whole(folder / "labels.parquet", rows)
    documents = read_document_of_window(folder, record)
    return labels_of_rows(rows, record, documents, read_documents(folder, record.evaluation.tokens))


def read_document_of_window(folder: Path, record: LabelsRecord) -> np.ndarray:
    """Read the document of each window, int32 ``[W]``. Raises `FormatError` as `read_labels`."""
    path = folder / WINDOWS
    check_files(folder, [path])
    table = read_parquet(path, ["window", "document"])
    check_rows(path, table)  # an evaluation set has windows
    for name in table.column_names:
        check_type(path, name, table[name].type, "integers")
    if len(table) != (count := record.evaluation.windows):
        raise FormatError(f"{path}: {len(table):,} windows, where labels.json records {count:,}{remedy_for(path)}")
    documents = table["document"].to_numpy()
    check_documents(path, documents, record)
    if not np.array_equal(table["window"].to_numpy(), np.arange(count)) or (documents[1:] < documents[:-1]).any():
        raise FormatError(
            f"{path}: its windows, or their documents, are not in the order of the text{remedy_for(path)}"
        )
    return documents


def check_documents(path: Path, documents: np.ndarray, record: LabelsRecord) -> None:
    """Raise `FormatError` if a file refers to a document that the labels lack."""
    count = len(record.sources)
    found = f"a document that the {count:,} sources of labels.json lack"
    check_below(path, documents, count, found)


def _unmasked(column: pa.ChunkedArray) -> np.ndarray:
    """Return the values of a column, with nulls as False."""
    return (column.fill_null(pa.scalar(False)) if column.null_count else column).to_numpy()


def labels_of_rows(
    rows: pa.Table, record: LabelsRecord, document_of_window: np.ndarray, kept: Documents | None
) -> Labels:
    """Build labels from rows of ``labels.parquet``, all or those of some windows."""
    domain = rows["domain"].cast(TEXT).unify_dictionaries().combine_chunks()  # other writers have plain strings
    names, code = np.unique(np.array(domain.dictionary.to_pylist(), dtype=object), return_inverse=True)
    stored = rows[SEGMENT_BYTES].fill_null(-1).to_numpy() if SEGMENT_BYTES in rows.column_names else None
    return Labels(
        window=rows["window"].to_numpy(),
        position=rows["pos"].to_numpy(),
        repeated=rows["distance"].to_numpy() > 0,
        distance=rows["distance"].to_numpy(),
        occurrences=rows["occurrences"].to_numpy(),
        train_count=None if rows["train_count"].null_count else rows["train_count"].to_numpy(),
        domain=code.astype(np.int32)[domain.indices.to_numpy()],
        domains=names.tolist(),
        document_of_window=document_of_window,
        record=record,
        segment_bytes=stored,
        kept=kept,
        **{name: _unmasked(rows[name]) for name in copied_columns(record) if name in rows.column_names},
    )


WINDOWS_AT_ONCE = 2048


class Repeats(NamedTuple):
    """One entry per token of the evaluation set, ``[N]``; zero at the first position of a window."""

    repeated: np.ndarray
    """bool: the bigram that ends here occurred earlier in the window."""
    distance: np.ndarray
    """int32: distance in tokens to the nearest earlier occurrence; 0 if not repeated."""
    occurrences: np.ndarray
    """int32: number of earlier occurrences."""


def find_repeats(data: EvaluationSet, windows: range | None = None) -> Repeats:
    """Find the repeated bigrams of ``windows``, by default all.

    Overlaps count: in ``a a a`` position 2 is repeated. A bigram that contains the separating EOS is never repeated.
    """
    windows = data.all if windows is None else windows
    parts = [_find(data, windows[first : first + WINDOWS_AT_ONCE]) for first in range(0, len(windows), WINDOWS_AT_ONCE)]
    return Repeats(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _find(data: EvaluationSet, windows: range) -> Repeats:
    window = data.window_of(windows).astype(np.int64) - windows.start  # so that `key` is int64
    return repeats_in(data.tokens[data.rows(windows)], window, data.eos)


def repeats_in(tokens: np.ndarray, window: np.ndarray, eos: int | None = None) -> Repeats:
    """Find the repeated bigrams of ``tokens [N]`` in the windows numbered by ``window`` (int64 ``[N]``, ascending)."""
    repeated = np.zeros(len(tokens), dtype=bool)
    distance = np.zeros(len(tokens), dtype=np.int32)
    occurrences = np.zeros(len(tokens), dtype=np.int32)

    ends = np.flatnonzero(np.diff(window, prepend=-1) == 0)
    if eos is not None:
        ends = ends[(tokens[ends] != eos) & (tokens[ends - 1] != eos)]
    base = int(tokens.max(initial=0)) + 1
    key = (window[ends] * base + tokens[ends - 1]) * base + tokens[ends]
    order = np.argsort(key, kind="stable")  # stable: equal bigrams keep text order
    ends, key = ends[order], key[order]
    same = np.zeros(len(key), dtype=bool)  # the previous entry is the same bigram in the same window
    same[1:] = key[1:] == key[:-1]
    later = np.flatnonzero(same)
    group_start = np.maximum.accumulate(np.where(same, 0, np.arange(len(key))))
    repeated[ends[later]] = True
    distance[ends[later]] = ends[later] - ends[later - 1]
    occurrences[ends[later]] = later - group_start[later]
    return Repeats(repeated, distance, occurrences)
