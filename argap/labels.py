"""LABELS: which tokens are AR hits, and why: one row a token of the evaluation set.

A folder: ``labels.json`` (fingerprints, sources), ``windows.parquet`` (the document of each window),
``documents.parquet`` (`argap.documents`; only with columns kept of the source), the tokenizer, and ``labels.parquet``
with ``window:int32, pos:int32, repeated:bool, distance:int32, occurrences:int32, train_count:int64,
domain:dict<string>``, the rows of SCORES in the same order. Without an index ``train_count`` is null, and every
repeated bigram is a hit.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from argap.bigram_index.store import BigramIndex, check_tokenizer
from argap.checksums import check_files, write_checksums
from argap.documents import FILE as DOCUMENTS
from argap.documents import Documents, read_documents, write_documents
from argap.evaluation import EvaluationSet
from argap.parquet import ParquetPortions, read_parquet, write_parquet
from argap.records import IndexRecord, LabelsRecord, read_record, write_record
from argap.repeats import WINDOWS_AT_ONCE, find_repeats
from argap.tokenizer import Tokenizer

FORMAT = 1
TABLES = ("labels.parquet", "windows.parquet", DOCUMENTS)


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
    """The columns kept of the source; None without any."""

    @property
    def scored(self) -> np.ndarray:
        """bool ``[N]``: all but the first token of each window."""
        return self.position > 0

    def ar_hit(self, threshold: float | None) -> np.ndarray:
        """bool ``[N]``: repeated, and seen at most ``threshold`` times in training.

        None, and labels without counts: every repeated bigram.
        """
        if self.train_count is None or threshold is None:
            return self.repeated
        return self.repeated & (self.train_count <= threshold)


def label(data: EvaluationSet, index: BigramIndex | None = None, windows: range | None = None) -> Labels:
    """Label the tokens of ``data``, with the exposures that ``index`` gives. ``windows``: some of them, in a row.

    Raises `MismatchError` where the two were made with different tokenizers.
    """
    if index is not None:
        check_tokenizer(index, data.tokenizer, data.tokenizer_fingerprint)
    windows = range(data.windows) if windows is None else windows
    rows = slice(data.offsets[windows.start], data.offsets[windows.stop])
    repeats = find_repeats(data, windows)
    domains, domain_of_document = np.unique(np.array(data.domains, dtype=object), return_inverse=True)
    return Labels(
        window=data.window[rows],
        position=data.position[rows],
        repeated=repeats.repeated,
        distance=repeats.distance,
        occurrences=repeats.occurrences,
        train_count=None if index is None else count_exposures(data.tokens[rows], data.position[rows], index),
        domain=domain_of_document.astype(np.int32)[data.document[rows]],
        domains=[str(d) for d in domains],
        document_of_window=data.document_of_window,
        record=LabelsRecord(FORMAT, data.record, index and index_record(index), tuple(data.sources)),
        kept=data.kept,
    )


def label_portions(data: EvaluationSet, index: BigramIndex | None = None) -> Iterator[Labels]:
    """`label` some windows at a time."""
    for first in range(0, data.windows, WINDOWS_AT_ONCE):
        yield label(data, index, range(first, min(first + WINDOWS_AT_ONCE, data.windows)))


def count_exposures(tokens: np.ndarray, position: np.ndarray, index: BigramIndex) -> np.ndarray:
    """int64 ``[N]``: how often training read the bigram that ends at each token, rounded half to even; 0 at the first
    position of a window."""
    ends = np.flatnonzero(position > 0)
    exposures = np.zeros(len(tokens), dtype=np.int64)
    exposures[ends] = np.rint(index.exposures(tokens[ends - 1], tokens[ends]))
    return exposures


def with_counts(labels: Labels, tokens: np.ndarray, index: BigramIndex) -> Labels:
    """``labels`` of the token ids ``tokens [N]`` with the exposures that ``index`` gives. Raises `MismatchError`."""
    evaluation = labels.record.evaluation
    check_tokenizer(index, evaluation.tokenizer, evaluation.tokenizer_fingerprint)
    record = msgspec.structs.replace(labels.record, index=index_record(index))
    return replace(labels, train_count=count_exposures(tokens, labels.position, index), record=record)


def index_record(index: BigramIndex) -> IndexRecord:
    """How ``labels.json`` and ``gap.json`` describe an index."""
    return IndexRecord(
        folder=str(index.folder),
        tokenizer=index.tokenizer,
        tokenizer_fingerprint=index.tokenizer_fingerprint,
        tokens=index.tokens,
        documents=index.documents,
        distinct=index.distinct,
        proxy=index.proxy,
        passes=index.passes,
    )


def write_labels(labels: Labels | Iterable[Labels], tokenizer: Tokenizer, folder: Path) -> None:
    """Write the folder; ``labels.json`` comes last, so that a folder with it is whole.

    ``labels``: all, or those of some windows after another, which may be read from the folder itself. The tokenizer
    goes with them, so that the tokens can be read where the checkpoint is not.
    """
    portion: Labels | None = None
    with ParquetPortions(folder / "labels.parquet") as file:
        for portion in [labels] if isinstance(labels, Labels) else labels:
            file.add(_table(portion))
        assert portion is not None  # an evaluation set has windows
        (folder / "labels.json").unlink(missing_ok=True)
    windows = {"window": np.arange(len(portion.document_of_window)), "document": portion.document_of_window}
    write_parquet(folder / "windows.parquet", pa.table(windows))
    write_documents(portion.kept, folder)
    tokenizer.save(folder)
    write_checksums(folder, [path for name in TABLES if (path := folder / name).is_file()])
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
    return pa.table(columns)


def read_labels(folder: Path) -> Labels:
    """Read a folder of labels. Raises `FormatError` naming the file that is missing or broken."""
    folder = Path(folder)
    remedy = "score again"
    record = read_record(folder / "labels.json", LabelsRecord, newest=FORMAT, remedy=remedy)
    rows = read_parquet(folder / "labels.parquet", remedy=remedy)
    windows = read_parquet(folder / "windows.parquet", remedy=remedy)
    check_files(folder, [folder / name for name in TABLES], remedy=remedy)
    domain = rows["domain"].unify_dictionaries().combine_chunks()
    counted = rows["train_count"].null_count == 0
    return Labels(
        window=rows["window"].to_numpy(),
        position=rows["pos"].to_numpy(),
        repeated=rows["repeated"].to_numpy(),
        distance=rows["distance"].to_numpy(),
        occurrences=rows["occurrences"].to_numpy(),
        train_count=rows["train_count"].to_numpy() if counted else None,
        domain=domain.indices.to_numpy(),
        domains=domain.dictionary.to_pylist(),
        document_of_window=windows["document"].to_numpy(),
        record=record,
        kept=read_documents(folder, remedy=remedy),
    )
