"""Write runs and labels of random tokens in argap's format, for benchmarks of their readers; no model runs.

Token ids follow Zipf's law, two fifths of the bigrams are repeated, training counts are log-uniform, and models lose
most on the rare repeated ones. Documents have eight windows.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa

from argap.files.checksums import write_checksums
from argap.files.parquet import ParquetPortions, required, write_parquet
from argap.records import (
    CheckpointRecord,
    EvaluationRecord,
    IndexRecord,
    LabelsRecord,
    RunIdentity,
    RunRecord,
    RunResult,
    SourceRecord,
    write_record,
)
from argap.text.tokenizer import Tokenizer
from argap.tokens.fingerprint import RowsFingerprint
from argap.tokens.labels import FORMAT
from argap.tokens.runs import FLOATS, SCHEMA, begin_run, finish_run, shard_path

SEQ_LEN = 2048
WINDOWS = 64
"""In a shard."""
DOCUMENT = 8
"""Windows of a document."""
DOMAINS = ("books", "code", "law", "web")


def write_result(folder: Path, tokens: int, models: list[str], tokenizer: Tokenizer) -> None:
    """Write a run folder for each of ``models`` and ``labels/`` to ``folder``: at least ``tokens`` tokens each."""
    shards = -(-tokens // (WINDOWS * SEQ_LEN))
    windows = shards * WINDOWS
    rows = RowsFingerprint()
    for shard in range(shards):
        rows.add(_ids(shard, tokenizer), _positions())
    evaluation = EvaluationRecord(
        fingerprint=rows.hexdigest(),
        tokenizer=tokenizer.name,
        tokenizer_fingerprint=tokenizer.fingerprint,
        tokens=windows * SEQ_LEN,
        scored=windows * (SEQ_LEN - 1),
        windows=windows,
        documents=-(-windows // DOCUMENT),
        seq_len=SEQ_LEN,
        packing="document",
    )
    runs = [begin_run(folder / model, _run(model, evaluation), overwrite=True) for model in models]
    labels = folder / "labels"
    labels.mkdir(parents=True, exist_ok=True)
    with ParquetPortions(labels / "labels.parquet") as file:
        for shard in range(shards):
            described, scored, hard = _shard(shard, tokenizer)
            file.add(described)
            hit = described["repeated"].to_numpy() & (described["train_count"].to_numpy() <= 1250)
            for k, run in enumerate(runs):
                path = shard_path(run.folder, shard)
                write_parquet(path, _scores(scored, hard, hit, k, shard), split_by_byte=FLOATS)
    numbers = np.arange(windows, dtype=np.int32)
    write_parquet(labels / "windows.parquet", pa.table({"window": numbers, "document": numbers // DOCUMENT}))
    tokenizer.save(labels)
    write_checksums(labels, [labels / "labels.parquet", labels / "windows.parquet"])
    index = IndexRecord("none", tokenizer.name, tokenizer.fingerprint, 10**10, 10**6, 10**7, proxy=True)
    sources = tuple(f"document {k}" for k in range(evaluation.documents))
    write_record(labels / "labels.json", LabelsRecord(FORMAT, evaluation, index, sources))
    for run in runs:
        finish_run(run, RunResult(10**6, "chunked", 1, "none", 1, 1.0, None))


def _run(model: str, evaluation: EvaluationRecord) -> RunRecord:
    identity = RunIdentity(model, evaluation.fingerprint, "float32", "cpu", 1, "native")
    return RunRecord(
        1, model, CheckpointRecord(model, model), SourceRecord(data=("random",)), evaluation, identity, {}, None, None
    )


def _positions() -> np.ndarray:
    return np.tile(np.arange(SEQ_LEN, dtype=np.int32), WINDOWS)


def _ids(shard: int, tokenizer: Tokenizer) -> np.ndarray:
    draws = np.random.default_rng([4321, shard]).random(WINDOWS * SEQ_LEN)
    return np.floor(tokenizer.vocab_size**draws).astype(np.int32) - 1


def _shard(shard: int, tokenizer: Tokenizer) -> tuple[pa.Table, pa.Table, np.ndarray]:
    """Draw labels, the columns that runs share, and how hard each token is (nats)."""
    generator = np.random.default_rng([1234, shard])
    n = WINDOWS * SEQ_LEN
    window = np.repeat(np.arange(shard * WINDOWS, (shard + 1) * WINDOWS, dtype=np.int32), SEQ_LEN)
    pos, ids = _positions(), _ids(shard, tokenizer)
    repeated = (generator.random(n) < 0.4) & (pos > 1)
    distance = np.where(repeated, np.floor(np.maximum(pos, 2) ** generator.random(n)), 0).astype(np.int32)
    opportunity = repeated | (generator.random(n) < 0.5) & (pos > 1)
    count = np.floor(10 ** generator.uniform(-1, 7, n)).astype(np.int64)
    domain = pa.DictionaryArray.from_arrays((window // DOCUMENT % len(DOMAINS)).astype(np.int32), list(DOMAINS))
    labels = {
        "window": window,
        "pos": pos,
        "repeated": repeated,
        "distance": distance,
        "occurrences": repeated * generator.integers(1, 9, n, dtype=np.int32),
        "train_count": count,
        "domain": domain,
        "opportunity": opportunity,
        "match_length": repeated * generator.geometric(0.35, n).astype(np.int32),
        "induction": pa.array(repeated & (generator.random(n) < 0.75), mask=~opportunity),
    }
    hard = np.where(repeated, 0.4, 1.0) * (6 - 0.7 * np.log10(1 + count)) * generator.gamma(2, 0.5, n)
    return (
        required(pa.table(labels), set(labels) - {"induction"}),
        pa.table({"window": window, "pos": pos, "token": ids}),
        hard,
    )


def _scores(scored: pa.Table, hard: np.ndarray, hit: np.ndarray, model: int, shard: int) -> pa.Table:
    generator = np.random.default_rng([model, shard])
    first, ids = scored["pos"].to_numpy() == 0, scored["token"].to_numpy()
    nll = hard + model * (0.3 * hit + 0.02) + 0.1 * generator.random(len(hard))
    top1 = np.where(generator.random(len(hard)) < 0.4, ids, 5).astype(np.int32)
    columns = [*scored.columns, pa.array(-nll.astype(np.float32), mask=first), pa.array(top1, mask=first)]
    return pa.table(columns, schema=SCHEMA)
