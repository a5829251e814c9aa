"""Define the records of ``run.json`` and ``labels.json``."""

import hashlib
from typing import Literal

import msgspec

from argap.files.record import Record
from argap.records.evaluation import CheckpointRecord, EvaluationRecord, EvaluationSpec, IndexRecord


class LabelsRecord(Record, frozen=True):
    """``labels.json``."""

    format: int
    evaluation: EvaluationRecord
    index: IndexRecord | None
    """None without training counts."""
    sources: tuple[str, ...]
    """The source of each document, for human readers."""

    def __post_init__(self) -> None:
        if len(self.sources) != self.evaluation.documents:
            raise ValueError(f"{len(self.sources):,} `sources` for {self.evaluation.documents:,} documents")


class SourceRecord(EvaluationSpec, frozen=True):
    """The text that a run was asked to evaluate on, and the index for its labels."""

    index: str | None = None


Bos = int | tuple[int, ...] | None
"""Ids of the tokens before each window, as more context: one, several, or None."""


def ids_of(bos: Bos) -> tuple[int, ...]:
    """Return the ids of a `Bos`.

    >>> ids_of(None), ids_of(1), ids_of((5, 7))
    ((), (1,), (5, 7))
    """
    return bos if isinstance(bos, tuple) else () if bos is None else (bos,)


class ServerRecord(Record, frozen=True):
    """How a server returned the log-probs of a run."""

    model: str
    """The server's name for it."""
    logprobs: Literal["prompt_logprobs", "echo"]
    """The request parameter that returns them."""
    prompts: Literal["token ids", "text"]
    bos: bool
    """Whether each window was preceded by a BOS, the server's or ours: one more token of context."""
    decimals: int | None
    """Decimals to which all log-probs are rounded; None: not rounded, or to more than 4."""
    retries: int
    """Requests repeated by the last call."""


class RunResult(Record, frozen=True):
    """How a finished run went."""

    parameters: int | None
    """None if another tool computed the log-probs."""
    head: Literal["chunked", "model", "import", "server", "engine"]
    """``chunked``: log-probs without logits in memory; ``model``: from the model's own logits; ``import``: computed by
    another tool (`argap.scoring.importing`); ``server``, ``engine``: by one of these (`argap.scoring.server`)."""
    windows_per_batch: int = msgspec.field(name="windows per batch")
    device_name: str = msgspec.field(name="device name")
    processes: int
    seconds: float
    tokens_per_second: float | None = msgspec.field(name="tokens per second")
    server: ServerRecord | None = None


class KlReference(Record, frozen=True):
    """The model that the ``kl`` of a run is taken from: what identifies it in its own run."""

    checkpoint: str
    dtype: str
    backend: Literal["native", "hf", "memory"]
    bos: Bos = None


class RunIdentity(Record, frozen=True):
    """The fields that identify a run: two runs are the same if all agree."""

    checkpoint: str
    evaluation_set: str = msgspec.field(name="evaluation set")
    dtype: str
    device: str
    batch_size: int | Literal["auto"] = msgspec.field(name="batch size")
    backend: Literal["native", "hf", "vllm", "sglang", "import", "server", "memory"]
    bos: Bos = None
    """What is put before each window."""
    rank: bool = False
    """Whether the rank of each token is stored as well."""
    entropy: bool = False
    """Whether the entropy of each distribution is stored as well."""
    kl: KlReference | None = None
    """The reference of the stored KL divergences; None if there are none."""
    context: int | None = None
    """Tokens of the windows in which tokens are read (`argap.evaluation.windows`); None: the whole window."""

    @property
    def scores(self) -> str:
        """Return a 128-bit BLAKE2b hash (hex) of the fields that log-probs depend on, not of what else is stored."""
        made = self.checkpoint, self.evaluation_set, self.dtype, self.device, self.batch_size, self.backend, self.bos
        return hashlib.blake2b(msgspec.json.encode((*made, self.context)), digest_size=16).hexdigest()

    @property
    def optional(self) -> tuple[str, ...]:
        """Return the stored columns of `argap.records.columns.OPTIONAL`."""
        stored = {"rank": self.rank, "kl": self.kl is not None, "entropy": self.entropy}
        return tuple(name for name, there in stored.items() if there)


class RunRecord(Record, frozen=True):
    """``run.json``."""

    format: int
    model: str
    checkpoint: CheckpointRecord
    source: SourceRecord
    evaluation: EvaluationRecord
    identity: RunIdentity
    versions: dict[str, str]
    git: str | None
    finished: RunResult | None
    shard_tokens: int | None = None
    """Tokens of a part, about, where it is smaller than usual."""
