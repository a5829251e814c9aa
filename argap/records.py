"""What argap's JSON files hold, as frozen records: ``gap.json``, ``run.json``, ``labels.json``, ``examples.json``.

A file is read into its record strictly: a value of another type is an error that names file, key, what was found and
what was expected. Keys that a newer argap added are ignored as long as the file's format number is known.
"""

from math import exp
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from argap.atomic import read_json, write_json
from argap.errors import FormatError

Packing = Literal["packed", "document"]
Case = Literal["explained", "recall_only", "no_gap", "reversed", "infinite"]
Unit = Literal["token", "byte"]
"""What is counted, and what an NLL is per: bytes where models of different tokenizers are compared (segments)."""
Interval = tuple[float, float]
"""Both ends of a 95% interval."""
INFINITE = "a log-prob is −∞"
"""Why a figure has no number: some token has probability 0 under the model or the reference."""
KNOWN = 0.25
"""Least probability that the reference gives to the hit of an example window: a reference that does not know the hit
shows nothing about recall."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of all records. Fields that have their default value are not written."""


AnyRecord = TypeVar("AnyRecord", bound=Record)


def read_record(path: Path, record_type: type[AnyRecord], *, newest: int | None = None, remedy: str = "") -> AnyRecord:
    """Read a JSON file into its record.

    ``newest``: the highest format number that this version reads (a file without one has format 1). ``remedy``: what
    to do about a file that is incomplete. Raises `FormatError`, one line with path, key, found and expected.
    """
    values = read_json(path)
    number = values.setdefault("format", 1) if newest is not None else 1
    if newest is not None and isinstance(number, int) and number > newest:
        raise FormatError(f"{path}: written by a newer argap (format {number}, known up to {newest})")
    try:
        return msgspec.convert(values, record_type, strict=True)
    except msgspec.ValidationError as error:
        raise FormatError(f"{path}: {error}{remedy and f'; {remedy}'}") from None


def write_record(path: Path, record: Record, *, indent: int | None = 2) -> None:
    """Write a record as JSON, whole or not at all. ``indent`` None: on one line."""
    write_json(path, as_json(record), indent=indent)


def as_json(record: Record) -> dict[str, Any]:
    """The record as JSON's plain types, in the order of its fields."""
    return msgspec.to_builtins(record)


# ── what a text, an index and a checkpoint are ────────────────────────────────────────────────────────────────


class EvaluationRecord(Record, frozen=True):
    """The evaluation set of a run, of labels or of a result."""

    fingerprint: str
    """SHA-256 (hex) over token ids and window bounds."""
    tokenizer: str
    tokenizer_fingerprint: str
    tokens: int
    scored: int
    """Tokens with a log-prob: all but the first of each window. Under the unit ``byte`` bytes, of scored segments."""
    windows: int
    documents: int
    seq_len: int
    packing: Packing
    data: tuple[str, ...] = ()
    """The texts as they were named; in ``gap.json`` alone."""
    unit: Unit = "token"


class EvaluationSpec(Record, frozen=True):
    """What to evaluate on: everything that decides which tokens are scored. None: not given, or not recorded.

    >>> EvaluationSpec(seq_len=1024).over(EvaluationSpec(data=("text/",), seq_len=512)).seq_len
    1024
    """

    data: tuple[str, ...] = ()
    """Files, folders, ``hub:NAME`` or ``stdlib:heldout``."""
    seq_len: int | None = None
    """Tokens a window; 2,048 where nothing else is said."""
    packing: Packing | None = None
    """``packed`` where nothing else is said."""
    limit_tokens: int | None = None
    """Score only the first tokens of the text."""
    text_column: str | None = None
    """Column of JSON lines and Parquet that holds the text: ``text`` where nothing else is said."""
    token_dtype: str | None = None
    """Of headerless token shards: ``uint16`` or ``uint32``."""
    tokenizer: str | None = None
    """A folder or hub id; None: the reference's."""
    keep: tuple[str, ...] = ()
    """Columns of JSON lines, Parquet and hub data sets that become columns of the tokens."""
    limit_document_tokens: int | None = None
    """Take only the first tokens of each document."""

    def over(self, recorded: "EvaluationSpec") -> "EvaluationSpec":
        """This specification, completed by what ``recorded`` has in the fields that are empty here."""
        names = EvaluationSpec.__struct_fields__
        own = {name: getattr(self, name) for name in names}
        completed: dict[str, Any] = {k: getattr(recorded, k) if v in (None, ()) else v for k, v in own.items()}
        if self.data:  # the recorded columns are those of another text
            completed["keep"] = self.keep
        return EvaluationSpec(**completed)


class IndexRecord(Record, frozen=True):
    """The bigram index that the training counts come from."""

    folder: str
    tokenizer: str
    tokenizer_fingerprint: str
    tokens: int
    documents: int
    distinct: int
    """Distinct bigrams."""
    proxy: bool
    """True where the counts are not those of the training documents themselves."""
    passes: float = 1
    """How often training read the corpus; an older argap did not record it."""

    @property
    def exposed_tokens(self) -> float:
        """Tokens that training read."""
        return self.tokens * self.passes


class CheckpointRecord(Record, frozen=True):
    name: str
    """As the user wrote it."""
    fingerprint: str
    """SHA-256 (hex) over ``config.json`` and the weight files."""


# ── gap.json ──────────────────────────────────────────────────────────────────────────────────────────────────


class SliceScores(Record, frozen=True):
    """A model on a slice."""

    n: int
    nll: float | None
    """Mean of −log p in nats; None without tokens, and where it is infinite."""
    ppl: float | None
    """exp(nll); None without tokens and where no float64 holds it."""
    reason: str | None = None
    """`INFINITE` where the NLL and the perplexity are infinite, which JSON has no number for."""


class GapShare(Record, frozen=True):
    """The "% of gap due to" a slice, as a fraction (`argap.gap.gap_due_to_ar`)."""

    value: float | None
    raw: float | None
    case: Case
    ci95: Interval | None
    reason: str | None
    """Why there is no interval."""
    unresolved: str | None = None
    """Why the value must not be claimed (`argap.intervals.unresolved`); None where it may, and in older results."""


class Delta(Record, frozen=True):
    """A difference of NLLs, model minus reference, in nats."""

    nll: float
    ci95: Interval | None


class ModelOnSlice(Record, frozen=True):
    """One model on one slice. The reference has no differences; nor has a model where its NLL or the reference's is
    infinite."""

    model: str
    reference: bool
    nll: float | None
    ppl: float | None
    delta: Delta | None
    """ΔNLL on the slice's tokens."""
    contribution: Delta | None
    """The slice's share of the tokens times that ΔNLL: its part of the gap."""
    gap_due_to: GapShare | None
    reason: str | None = None
    """As in `SliceScores`."""


class SliceResult(Record, frozen=True):
    """A named set of scored tokens, and every model on it."""

    name: str
    where: str | None
    """The condition that selects it; None for a built-in slice."""
    n: int
    share: float
    """Of all scored tokens."""
    models: tuple[ModelOnSlice, ...]
    ar_hits: float | None = None
    """The share of its tokens that are AR hits; None where it was not computed, or without tokens."""
    title: str = ""
    note: str = ""


class ClosedShare(Record, frozen=True):
    """``(B − m) / (B − R)``, in perplexity and in NLL."""

    ppl: float | None
    nll: float | None


class Closed(Record, frozen=True):
    """The share of the gap of ``base`` that a model closes."""

    base: str
    overall: ClosedShare | None
    ar_hits: ClosedShare | None


class GapRow(Record, frozen=True):
    """A model in the form of the Zoology paper's Table 1; the reference's row has no gap."""

    model: str
    reference: bool
    overall: SliceScores
    ar_hits: SliceScores
    other: SliceScores
    share_ar_hits: float
    gap_due_to_ar: GapShare | None
    delta: Delta | None
    """ΔNLL over all scored tokens; None where it is not finite."""
    delta_ar: Delta | None
    """The AR hits' part of ``delta``: their share of the tokens times the ΔNLL on them."""
    closed: Closed | None = None
    run: str = ""
    """The run's folder; in a suite's result the checkpoint's fingerprint."""
    parameters: int | None = None


class Bin(Record, frozen=True):
    """The integers ``low … high`` of a binned quantity; ``high`` None: no upper end."""

    label: str
    low: int
    high: int | None


class Bins(Record, frozen=True):
    """The bins that cells and breakdowns refer to."""

    frequency: tuple[Bin, ...]
    distance: tuple[Bin, ...]
    position: tuple[Bin, ...]


class ThresholdShare(Record, frozen=True):
    """The AR hits at another threshold."""

    threshold: int
    share: float
    """Of all scored tokens."""
    gap_due_to: dict[str, GapShare]
    """By model, without the reference."""


class Part(Record, frozen=True):
    """One group of a partition of the scored tokens."""

    bin: str
    n: int
    share: float
    nll: dict[str, float]
    """By model; models whose NLL over all tokens is infinite are left out."""
    contribution: dict[str, float]
    """By model, without the reference: share × ΔNLL in nats. Over all parts they add up to the gap; models whose gap is
    not finite are left out."""
    ci95: dict[str, Interval | None] = {}
    """By model: the 95% interval of its contribution."""
    repeated: bool | None = None
    """In the partition by frequency: whether the bigrams are repeated in their window."""


class Breakdowns(Record, frozen=True):
    """The gap taken apart by several partitions."""

    slice: tuple[Part, ...]
    frequency: tuple[Part, ...]
    distance: tuple[Part, ...]
    position: tuple[Part, ...]
    domain: tuple[Part, ...]


GAP_FORMAT = 2
"""Of ``gap.json``. Format 1 had no number, and no intervals in its breakdowns."""


GAP_REMEDY = "run `argap score` or `argap compare` again"


class Gap(Record, frozen=True):
    """``gap.json``: every model of a comparison against one reference."""

    format: int
    rows: tuple[GapRow, ...]
    """The reference's first."""
    reference: str
    threshold: int | None
    """τ in exposures; None without an index, where every repeated bigram is a hit."""
    bins: Bins
    breakdowns: Breakdowns
    date: str
    fingerprint: str
    run: str
    """The result's folder as it was named."""
    evaluation: EvaluationRecord
    index: IndexRecord | None
    versions: dict[str, str]
    slices: tuple[SliceResult, ...] = ()
    """The AR hits and the slices that `argap score` was given."""
    documents: int | None = None
    """Documents that windows belong to, the units of the bootstrap; None in older results."""
    effective_documents: float | None = None
    """How many documents of equal size they are worth (`argap.intervals.effective_documents`)."""
    curve: tuple[ThresholdShare, ...] = ()
    """At the upper ends of the frequency bins, ascending; empty without an index, and in older results."""
    unit: Unit = "token"
    """``byte``: every ``n`` counts bytes, every NLL and difference is in nats a byte, and ``ppl`` is exp of that."""

    def __post_init__(self) -> None:
        if self.reference not in self.models:
            raise ValueError(f"the reference {self.reference!r} has no row")
        finite = {row.model for row in self.rows if row.overall.nll is not None}
        for name in Breakdowns.__struct_fields__:
            for part in getattr(self.breakdowns, name):
                if part.nll.keys() != finite or part.contribution.keys() != self.deltas.keys():
                    raise ValueError(f"breakdowns.{name}: {part.bin}: expected the models {', '.join(self.models)}")

    @property
    def hits(self) -> str:
        """What the hits are called: without an index they are all repeated bigrams."""
        return "repeated bigrams" if self.index is None else "AR hits"

    @property
    def models(self) -> list[str]:
        """Names in the order of the rows."""
        return [row.model for row in self.rows]

    @property
    def compared(self) -> list[GapRow]:
        """The rows of all models but the reference."""
        return [row for row in self.rows if not row.reference]

    @property
    def deltas(self) -> dict[str, float]:
        """The gap of each compared model where it is finite, ΔNLL in nats."""
        return {row.model: row.delta.nll for row in self.compared if row.delta is not None}

    def row(self, model: str) -> GapRow:
        """The row of one model; `KeyError` for an unknown one."""
        return next(row for row in self.rows if row.model == model)


def read_gap(folder: Path) -> Gap:
    """The ``gap.json`` of a result. Raises `FormatError` for a folder without one, or with a broken one."""
    path = Path(folder) / "gap.json"
    if not path.is_file():
        raise FormatError(f"{folder}: no gap.json there; expected a folder that `argap score` or `argap compare` wrote")
    return read_record(path, Gap, newest=GAP_FORMAT, remedy=GAP_REMEDY)


# ── labels.json and run.json ──────────────────────────────────────────────────────────────────────────────────


class LabelsRecord(Record, frozen=True):
    """``labels.json``."""

    format: int
    evaluation: EvaluationRecord
    index: IndexRecord | None
    """None where nothing was counted in training text."""
    sources: tuple[str, ...]
    """The source of each document, for people."""


class SourceRecord(EvaluationSpec, frozen=True):
    """What a run was asked to evaluate on, and the index that its labels come from."""

    index: str | None = None


class ServerRecord(Record, frozen=True):
    """How a server gave the log-probs of a run."""

    model: str
    """As the server names it."""
    logprobs: Literal["prompt_logprobs", "echo"]
    """The parameter that asked for them."""
    prompts: Literal["token ids", "text"]
    bos: bool
    """Whether the server read a token of its own before each window: one more token of context."""
    decimals: int | None
    """All log-probs are rounded to this many decimals; None: not rounded, or to more than 4."""
    retries: int
    """Requests repeated by the last call."""


class RunResult(Record, frozen=True):
    """How a finished run went."""

    parameters: int | None
    """None where the log-probs were made elsewhere."""
    head: Literal["chunked", "model", "import", "server"]
    """``chunked``: log-probs without logits in memory; ``model``: through the model's own logits; ``import``: made
    elsewhere (`argap.importing`); ``server``: asked for (`argap.server`)."""
    windows_per_batch: int = msgspec.field(name="windows per batch")
    device_name: str = msgspec.field(name="device name")
    processes: int
    seconds: float
    tokens_per_second: float | None = msgspec.field(name="tokens per second")
    server: ServerRecord | None = None


class RunIdentity(Record, frozen=True):
    """Two runs are the same where these agree."""

    checkpoint: str
    evaluation_set: str = msgspec.field(name="evaluation set")
    dtype: str
    device: str
    batch_size: int | Literal["auto"] = msgspec.field(name="batch size")
    backend: Literal["native", "hf", "import", "server", "memory"]


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


# ── examples.json ─────────────────────────────────────────────────────────────────────────────────────────────


class EarlierOccurrence(Record, frozen=True):
    """The surroundings of a hit's earlier occurrence that lies too far back to be shown in place."""

    start: int
    tokens: tuple[str, ...]
    focus: int


class ExampleWindow(Record, frozen=True):
    """A stretch of text around one AR hit; all sequences have one entry a token."""

    window: int
    document: int
    domain: str
    source: str
    model: str
    """The model that loses there."""
    start: int
    """Position of the first token in its window."""
    tokens: tuple[str, ...]
    repeated: tuple[bool, ...]
    ar_hit: tuple[bool, ...]
    distance: tuple[int, ...]
    train_count: tuple[int, ...] | None
    """Exposures; None without an index."""
    logprob: dict[str, tuple[float | None, ...]]
    """Null for a token that has no score, such as the first of a window, and for a log-prob of −∞."""
    top1_correct: dict[str, tuple[bool, ...]]
    focus: int
    """The hit's index in these sequences."""
    earlier: EarlierOccurrence | None

    def __post_init__(self) -> None:
        length = len(self.tokens)
        lists = [self.repeated, self.ar_hit, self.distance, self.train_count or self.tokens]
        lists += [*self.logprob.values(), *self.top1_correct.values()]
        if any(len(each) != length for each in lists) or not 0 <= self.focus < length:
            raise ValueError(f"expected {length} entries in every list, one for each token, and a focus among them")
        if self.model not in self.logprob or self.logprob.keys() != self.top1_correct.keys():
            raise ValueError(f"expected the same models in logprob and top1_correct, {self.model} among them")


class Examples(Record, frozen=True):
    """``examples.json``."""

    tokenizer: str
    models: tuple[str, ...]
    reference: str
    rule: str
    """How the windows were chosen."""
    windows: tuple[ExampleWindow, ...]

    @property
    def known(self) -> tuple[ExampleWindow, ...]:
        """The windows whose hit has at least probability `KNOWN` under the reference; older files have others too."""
        chances = [each.logprob[self.reference][each.focus] for each in self.windows]
        return tuple(w for w, p in zip(self.windows, chances, strict=True) if p is not None and exp(p) >= KNOWN)
