"""LABELS: which tokens are AR hits, and why: one row a token of the evaluation set.

A folder: ``labels.json`` (fingerprints, sources), ``windows.parquet`` (the document of each window), the
tokenizer, and ``labels.parquet`` with ``window:int32, pos:int32, repeated:bool, distance:int32, occurrences:int32,
train_count:int64, domain:dict<string>``, the rows of SCORES in the same order.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from argap.atomic import read_json, replacing, write_json
from argap.bigram_index.store import BigramIndex, check_tokenizer
from argap.errors import FormatError
from argap.evaluation import EvaluationSet
from argap.repeats import find_repeats
from argap.tokenizer import Tokenizer

FORMAT = 1


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
    record: dict[str, Any]
    """``labels.json``: ``evaluation`` and ``index``."""

    @property
    def scored(self) -> np.ndarray:
        """bool ``[N]``: all but the first token of each window."""
        return self.position > 0

    def ar_hit(self, threshold: float) -> np.ndarray:
        """bool ``[N]``: repeated, and at most ``threshold`` times in training."""
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
        record={
            "format": FORMAT,
            "evaluation": data.describe(),
            "index": {
                "folder": str(index.folder),
                "tokenizer": index.tokenizer,
                "tokenizer_fingerprint": index.tokenizer_fingerprint,
                "tokens": index.tokens,
                "documents": index.documents,
                "distinct": index.distinct,
                "proxy": index.proxy,
            },
            "sources": data.sources,
        },
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
    for name, table in (("labels.parquet", columns), ("windows.parquet", windows)):
        with replacing(folder / name) as temporary:
            pq.write_table(pa.table(table), temporary, compression="zstd")
    tokenizer.save(folder)
    write_json(folder / "labels.json", labels.record)


def read_labels(folder: Path) -> Labels:
    """Read a folder of labels. Raises `FormatError` naming the file that is missing or broken."""
    folder = Path(folder)
    record = read_json(folder / "labels.json")
    if record.get("format", 0) > FORMAT:
        raise FormatError(f"{folder}: written by a newer argap (format {record['format']}, known up to {FORMAT})")
    if lacking := [key for key in ("evaluation", "index", "sources") if key not in record]:
        raise FormatError(f"{folder / 'labels.json'}: lacks {', '.join(lacking)}; score again")
    rows = _read_table(folder / "labels.parquet")
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
        document_of_window=_read_table(folder / "windows.parquet")["document"].to_numpy(),
        record=record,
    )


def _read_table(path: Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowException) as error:
        raise FormatError(f"{path}: not a whole Parquet file ({str(error).splitlines()[0]}); score again") from error
