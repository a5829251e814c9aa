"""LABELS: which tokens are AR hits, and why: one row a token of the evaluation set.

A folder: ``labels.json`` (fingerprints, sources), ``windows.parquet`` (the document of each window), the
tokenizer, and ``labels.parquet`` with ``window:int32, pos:int32, repeated:bool, distance:int32, occurrences:int32,
train_count:int64, domain:dict<string>``, the rows of SCORES in the same order.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from argap.bigram_index.store import BigramIndex, check_tokenizer
from argap.checksums import check_files, write_checksums
from argap.evaluation import EvaluationSet
from argap.parquet import read_parquet, write_parquet
from argap.records import IndexRecord, LabelsRecord, read_record, write_record
from argap.repeats import find_repeats
from argap.tokenizer import Tokenizer

FORMAT = 1
TABLES = ("labels.parquet", "windows.parquet")


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
    train_count: np.ndarray
    """int64 ``[N]``: occurrences of the bigram inside documents of the training corpus."""
    domain: np.ndarray
    """int32 ``[N]``: index into ``domains``."""
    domains: list[str]
    document_of_window: np.ndarray
    """int32 ``[W]``: the document that holds most of the window."""
    record: LabelsRecord
    """``labels.json``."""

    @property
    def scored(self) -> np.ndarray:
        """bool ``[N]``: all but the first token of each window."""
        return self.position > 0

    def ar_hit(self, threshold: float) -> np.ndarray:
        """bool ``[N]``: repeated, and seen at most ``threshold`` times in training."""
        return self.repeated & (self.train_count <= threshold)


def label(data: EvaluationSet, index: BigramIndex) -> Labels:
    """Label every token of ``data`` with the counts of ``index``.

    Raises `MismatchError` where the two were made with different tokenizers.
    """
    check_tokenizer(index, data.tokenizer, data.tokenizer_fingerprint)
    repeats = find_repeats(data)
    ends = np.flatnonzero(data.position > 0)
    train_count = np.zeros(len(data.tokens), dtype=np.int64)
    train_count[ends] = index.count(data.tokens[ends - 1], data.tokens[ends])
    domains, domain_of_document = np.unique(np.array(data.domains, dtype=object), return_inverse=True)
    return Labels(
        window=data.window,
        position=data.position,
        repeated=repeats.repeated,
        distance=repeats.distance,
        occurrences=repeats.occurrences,
        train_count=train_count,
        domain=domain_of_document.astype(np.int32)[data.document],
        domains=[str(d) for d in domains],
        document_of_window=data.document_of_window,
        record=LabelsRecord(FORMAT, data.record, index_record(index), tuple(data.sources)),
    )


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
    )


def write_labels(labels: Labels, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the folder; ``labels.json`` comes last, so that a folder with it is whole.

    The tokenizer goes with it, so that the tokens can be read where the checkpoint is not.
    """
    columns = {
        "window": labels.window,
        "pos": labels.position,
        "repeated": labels.repeated,
        "distance": labels.distance,
        "occurrences": labels.occurrences,
        "train_count": labels.train_count,
        "domain": pa.DictionaryArray.from_arrays(labels.domain, pa.array(labels.domains, pa.string())),
    }
    windows = {"window": np.arange(len(labels.document_of_window)), "document": labels.document_of_window}
    (folder / "labels.json").unlink(missing_ok=True)
    write_parquet(folder / "labels.parquet", pa.table(columns))
    write_parquet(folder / "windows.parquet", pa.table(windows))
    tokenizer.save(folder)
    write_checksums(folder, [folder / name for name in TABLES])
    write_record(folder / "labels.json", labels.record)


def read_labels(folder: Path) -> Labels:
    """Read a folder of labels. Raises `FormatError` naming the file that is missing or broken."""
    folder = Path(folder)
    remedy = "score again"
    record = read_record(folder / "labels.json", LabelsRecord, newest=FORMAT, remedy=remedy)
    rows = read_parquet(folder / "labels.parquet", remedy=remedy)
    windows = read_parquet(folder / "windows.parquet", remedy=remedy)
    check_files(folder, [folder / name for name in TABLES], remedy=remedy)
    domain = rows["domain"].combine_chunks()
    return Labels(
        window=rows["window"].to_numpy(),
        position=rows["pos"].to_numpy(),
        repeated=rows["repeated"].to_numpy(),
        distance=rows["distance"].to_numpy(),
        occurrences=rows["occurrences"].to_numpy(),
        train_count=rows["train_count"].to_numpy(),
        domain=domain.indices.to_numpy(),
        domains=domain.dictionary.to_pylist(),
        document_of_window=windows["document"].to_numpy(),
        record=record,
    )
