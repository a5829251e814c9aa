"""``gap.json``: every model of a comparison against one reference, by slice and by partition."""

from collections.abc import Collection
from pathlib import Path
from typing import Literal

import msgspec

from argap.errors import FormatError
from argap.files.record import Record, read_record
from argap.records.evaluation import EvaluationRecord, IndexRecord, Unit

Case = Literal["explained", "recall_only", "no_gap", "reversed", "infinite"]
Interval = tuple[float, float]
"""Both ends of a 95% interval."""
INFINITE = "a log-prob is −∞"
"""Why a figure has no number: some token has probability 0 under the model or the reference."""
GAP_FORMAT = 2
"""Of ``gap.json``. Format 1 had no number, and no intervals in its breakdowns."""
GAP_REMEDY = "run `argap score` or `argap compare` again"


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
    """The "% of gap due to" a slice, as a fraction (`argap.metric.share.gap_due_to_ar`)."""

    value: float | None
    raw: float | None
    case: Case
    ci95: Interval | None
    reason: str | None
    """Why there is no interval."""
    unresolved: str | None = None
    """Why the value must not be claimed (`argap.metric.intervals.unresolved`); None where it may, or the file omits
    it."""


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

    def among(self, models: Collection[str]) -> "SliceResult":
        """Only the figures of some models."""
        return msgspec.structs.replace(self, models=tuple(each for each in self.models if each.model in models))


class Sample(Record, frozen=True):
    """Documents drawn at random."""

    documents: int
    of: int
    """Documents with scored tokens."""
    share: float
    """Of all scored tokens."""
    seed: int


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
    ci95: dict[str, Interval | None] = msgspec.field(default_factory=dict)
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
    """Documents that windows belong to, the units of the bootstrap; None where the file omits it."""
    effective_documents: float | None = None
    """How many documents of equal size they are worth (`argap.metric.intervals.effective_documents`)."""
    curve: tuple[ThresholdShare, ...] = ()
    """At the upper ends of the frequency bins, ascending; empty without an index, and in files of format 1."""
    unit: Unit = "token"
    """``byte``: every ``n`` counts bytes, every NLL and difference is in nats per byte, and ``ppl`` is exp of that."""
    warnings: tuple[str, ...] = ()
    """What is wrong with the text (`argap.results.text_warnings`), one line each."""

    def __post_init__(self) -> None:
        if self.reference not in self.models:
            raise ValueError(f"the reference {self.reference!r} has no row")
        finite = {row.model for row in self.rows if row.overall.nll is not None}
        for name in Breakdowns.__struct_fields__:
            for part in getattr(self.breakdowns, name):
                if part.nll.keys() != finite or part.contribution.keys() != self.deltas.keys():
                    raise ValueError(f"breakdowns.{name}: {part.bin}: expected the models {', '.join(self.models)}")
        for point in self.curve:
            if missing := [row.model for row in self.compared if row.model not in point.gap_due_to]:
                raise ValueError(f"curve: τ = {point.threshold}: no share of {missing[0]}")
        for name in Bins.__struct_fields__:
            known = {each.label for each in getattr(self.bins, name)}
            if unknown := [part.bin for part in getattr(self.breakdowns, name) if part.bin not in known]:
                raise ValueError(f"breakdowns.{name}: {unknown[0][:40]}: not one of `bins.{name}`")

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


def read_gap(folder: Path, name: str = "gap.json", *, remedy: str = GAP_REMEDY) -> Gap:
    """The ``gap.json`` of a result. Raises `FormatError` for a folder without one, or with a broken one.

    ``name``: of another file with the same content; ``remedy``: what to do about a broken one.
    """
    path = Path(folder) / name
    if not path.is_file():
        raise FormatError(f"{folder}: no gap.json there; expected a folder that `argap score` or `argap compare` wrote")
    gap = read_record(path, Gap, newest=GAP_FORMAT, remedy=remedy)
    # Of files alone: a gap that is restated in memory may lack breakdowns.
    if (gap.index is None) != (gap.threshold is None):
        raise FormatError(f"{path}: `index` and `threshold`: expected both or neither, found one null; {remedy}")
    scored = gap.rows[0].overall.n
    for name in Breakdowns.__struct_fields__:
        expected = 0 if name == "frequency" and gap.index is None else scored  # nothing is counted without an index
        parts = getattr(gap.breakdowns, name)
        if not parts and name == "position" and gap.evaluation.left_out is not None:
            continue  # the sums by position of format 1 have no documents
        if (n := sum(part.n for part in parts)) != expected:
            raise FormatError(f"{path}: breakdowns.{name}: {n:,} {gap.unit}s in all, expected {expected:,}; {remedy}")
    return gap
