"""The files of a training run as records: ``train.json``, ``tokens.json`` and the lines of ``log.jsonl``."""

from pathlib import Path
from typing import Any, Literal

from argap.records import Record, read_record

FORMAT = 1
"""The format of ``train.json``."""


class TextRecord(Record, frozen=True):
    """The files of a corpus, so that a change of them is noticed."""

    bytes: int
    contents: str
    """SHA-256 of the SHA-256 of each, in hexadecimal digits."""


class CorpusRecord(Record, frozen=True):
    """One corpus of a token file."""

    path: str
    repeat: int
    text_column: str
    tokens: int
    """Over all repeats, including one EOS per document."""
    documents: int
    text: TextRecord | None = None
    """Its local files when they were read; None for others, and from before they were recorded."""


class TokensRecord(Record, frozen=True):
    """``tokens.json``: the content of ``tokens.bin``."""

    tokens: int
    documents: int
    fingerprint: str
    """SHA-256 of ``tokens.bin``."""
    dtype: Literal["<u2", "<u4"]
    """NumPy dtype."""
    eos: int
    tokenizer: str
    tokenizer_fingerprint: str
    sources: list[CorpusRecord]


class TrainResult(Record, frozen=True):
    """The outcome of a finished run."""

    steps: int
    tokens: int
    loss: float
    """Mean training loss in the last line of the log, in nats."""
    eval_loss: float | None
    """Mean NLL of the evaluation data, in nats; None without evaluation data."""
    tokens_per_s: float
    """Median over the lines of the log, which excludes compilation in the first."""
    wall_time_s: float
    peak_memory_bytes: int | None
    """CUDA only."""
    weights: str | None = None
    """SHA-256 of ``model.safetensors``; None in records from before it was kept."""


class TrainRecord(Record, frozen=True):
    """``train.json``: one training run, and its outcome once it is finished."""

    format: int
    config: dict[str, Any]
    """`TrainConfig.as_json`."""
    data: TokensRecord
    eval_data: TokensRecord | None
    parameters: int
    device: str
    processes: int
    versions: dict[str, str]
    git: str | None
    finished: TrainResult | None
    backend: Literal["fla", "native"] | None = None
    """The operators that trained it; None: native, from before there was a choice."""


def read_train(folder: Path) -> TrainRecord:
    """Read the ``train.json`` of a model's folder. Raises `FormatError` if it is missing or broken."""
    return read_record(folder / "train.json", TrainRecord, newest=FORMAT)


class StepLine(Record, frozen=True):
    """A line of ``log.jsonl`` about training."""

    step: int
    """Finished steps."""
    tokens: int
    """Tokens read."""
    loss: float
    """Mean over the steps since the previous line, without auxiliary losses."""
    lr: float
    grad_norm: float
    """At the last step, before clipping."""
    tokens_per_s: float
    auxiliary_loss: float | None = None
    """At the last step; absent if no mixer has one."""


class EvaluationLine(Record, frozen=True):
    """A line of ``log.jsonl`` about an evaluation."""

    step: int
    tokens: int
    eval_loss: float
