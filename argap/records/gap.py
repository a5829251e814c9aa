"""Define ``gap.json``: every model of a comparison against one reference, as one flat list of estimates.

Tables, frames and figures filter that list by partition with `Gap.parts`.
"""

import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

import msgspec

from argap.errors import FormatError
from argap.files.record import Record, read_record, write_record
from argap.files.remedies import remedy_for
from argap.records.difference import Fidelity, Interval
from argap.records.evaluation import EvaluationRecord, IndexRecord, Unit

Direction = Literal["behind", "ahead", "level"]
"""Of a model relative to the reference: level if the interval of ΔNLL contains 0."""
INFINITE = "a log-prob is −∞"
"""Reason for a missing figure: some token has probability 0 under the model or the reference."""
GAP_FORMAT = 3
"""Format of ``gap.json``."""
ALL, SLICE, THRESHOLD, NAMED = "all", "slice", "threshold", "named"
"""Partitions by name: all tokens; AR hits and other tokens; the AR hits at each τ, which are nested; and the slices of
`Gap.slices`, which may overlap. The others are those of `Bins`, ``domain``, `COPY` and `INDUCTION`."""
AR_HITS, OTHER = "ar_hits", "other"
"""Bins of `SLICE`."""
COPY, INDUCTION = "copy", "induction"
"""Partitions by what can be copied from the window (`argap.tokens.copies`); labels of format 1 have neither."""
NEW_KEY, MISS, HIT = "new key", "miss", "hit, match "
COPIES = {NEW_KEY: -1, MISS: 0, f"{HIT}1": 1, f"{HIT}2": 2, f"{HIT}3–4": 3, f"{HIT}5+": 5}
"""Bins of `COPY`, as the cells number them: no opportunity, a miss, and hits (repeated bigrams, at any τ) by the
smallest match length of each bin."""
RIGHT, WRONG, NO_PREDICTION = "right", "wrong", "none"
"""Bins of `INDUCTION`: whether copying after the longest suffix that occurred before predicts the token."""


class Estimate(Record, frozen=True):
    """One model on one set of scored tokens, with 95% intervals.

    The reference has no differences; nor has a model if its NLL or the reference's is infinite.
    """

    model: str
    partition: str
    """`ALL`, `SLICE`, `THRESHOLD`, `NAMED`, `COPY`, `INDUCTION`, ``frequency``, ``distance``, ``position``, ``domain``,
    or a column."""
    bin: str
    n: int
    share_of_tokens: float
    """Of all scored tokens."""
    nll: float | None = None
    """Mean of −log p in nats; None without tokens, and if it is infinite."""
    ppl: float | None = None
    """exp(nll); None without tokens, and if it overflows float64."""
    delta: float | None = None
    """ΔNLL on these tokens, model minus reference, in nats."""
    delta_ci95: Interval | None = None
    contribution: float | None = None
    """The share of the tokens times `delta`: these tokens' part of the gap, in nats per token."""
    contribution_ci95: Interval | None = None
    share: float | None = None
    """`contribution` over the whole gap or lead, not capped: above 1 if the other tokens go the other way, negative if
    these do; None if the model is level with the reference."""
    share_ci95: Interval | None = None
    paper_rule: float | None = None
    """The paper's "% of gap due to" these tokens, a fraction (`argap.metric.share.gap_due_to_ar`)."""
    reason: str | None = None
    """Reason why there is no share, or why it must not be claimed."""
    repeated: bool | None = None
    """By frequency: whether the bigrams are repeated in their window."""
    worth: float | None = None
    """On all tokens: how many documents of equal parts would carry the gap, (Σ c)² / Σ c² of their parts c."""

    @property
    def infinite(self) -> bool:
        """Return whether the NLL is infinite; JSON cannot express that."""
        return self.nll is None and self.n > 0


class SliceInfo(Record, frozen=True):
    """A readable description of a slice."""

    name: str
    where: str | None = None
    """The condition that selects it; None for a built-in slice."""
    title: str = ""
    note: str = ""
    ar_hits: float | None = None
    """The share of its tokens that are AR hits; None if not computed, or without tokens."""


class Part:
    """The estimates of every model on the same tokens, by model: one bin of a partition, or a slice."""

    def __init__(self, estimates: Iterable[Estimate], about: SliceInfo | None = None) -> None:
        self.estimates = {each.model: each for each in estimates}
        first = next(iter(self.estimates.values()))
        self.partition, self.bin, self.repeated = first.partition, first.bin, first.repeated
        self.n, self.share_of_tokens = first.n, first.share_of_tokens
        self.about = about or SliceInfo(first.bin)

    def __getitem__(self, model: str) -> Estimate:
        return self.estimates[model]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Part) and (self.estimates, self.about) == (other.estimates, other.about)

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        return f"<Part {self.partition} {self.bin}: {', '.join(self.estimates)}>"

    def among(self, models: Collection[str]) -> "Part":
        """Return the part with only the estimates of ``models``."""
        return Part((each for each in self.estimates.values() if each.model in models), self.about)

    def moved(self, partition: str, name: str) -> "Part":
        """Return the same estimates under another partition and bin."""
        changed = [
            msgspec.structs.replace(each, partition=partition, bin=name, repeated=None)
            for each in self.estimates.values()
        ]
        return Part(changed, msgspec.structs.replace(self.about, name=name))


class ContextUse(Record, frozen=True, omit_defaults=False):
    """A point of a model's context-use curve: its loss with a short context, on tokens that have a longer one.

    All points of a result are over the same tokens: those with at least the longest short context before them.
    """

    model: str
    context: int | None
    """Tokens of the windows in which tokens are read, with half of them as the stride; None: the whole window."""
    n: int
    nll: float | None
    """Mean of −log p in nats; None if it is infinite, and so for the other figures."""
    nll_ci95: Interval | None
    gain: float | None = None
    """What the whole window adds: `nll` minus that with the whole window; None for the whole window."""
    gain_ci95: Interval | None = None
    delta: float | None = None
    """`nll` minus the reference's with the same context; None for the reference, and if it has no such pass."""
    delta_ci95: Interval | None = None


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
    """A model of a comparison."""

    model: str
    direction: Direction | None = None
    """None for the reference, and if ΔNLL is not finite."""
    parameters: int | None = None
    run: str = ""
    """The run's folder; in a suite's result the checkpoint's fingerprint."""
    closed: Closed | None = None
    seeds: tuple[str, ...] = ()
    """The columns of the cells that are its seeds, if it was trained from several: its figures are means over them."""


class Bin(Record, frozen=True):
    """The integers ``low … high`` of a binned quantity; ``high`` None: no upper bound."""

    label: str
    low: int
    high: int | None


class Bins(Record, frozen=True):
    """The bins that cells and partitions refer to."""

    frequency: tuple[Bin, ...]
    distance: tuple[Bin, ...]
    position: tuple[Bin, ...]


class Gap(Record, frozen=True, dict=True):
    """``gap.json``: every model of a comparison against one reference."""

    format: int
    reference: str
    threshold: int | None
    """τ in exposures; None without an index, where every repeated bigram is a hit."""
    unit: Unit
    """``byte``: every ``n`` counts bytes, every NLL and difference is in nats per byte, and ``ppl`` is exp of that."""
    rows: tuple[GapRow, ...] = msgspec.field(name="models")
    """The reference first."""
    slices: tuple[SliceInfo, ...]
    """The slices given to `argap score`, bins of the partition `NAMED`."""
    date: str
    run: str
    """The result's folder as it was named."""
    evaluation: EvaluationRecord
    index: IndexRecord | None
    versions: dict[str, str]
    documents: int | None
    """Documents that windows belong to; None if not counted."""
    bins: Bins
    estimates: tuple[Estimate, ...]
    fidelity: tuple[Fidelity, ...] = ()
    """How closely each compared model follows the reference, token by token; none by segments and for suites."""
    warnings: tuple[str, ...] = ()
    """Problems of the text, one line each (`argap.results.text_warnings`)."""
    context: tuple[ContextUse, ...] = ()
    """The context-use curves of the models that were also scored with a short context; by model, then by context."""
    scores: dict[str, str] = msgspec.field(default_factory=dict)
    """`RunIdentity.scores` of the run of each model; none in a suite's result, and in those of earlier versions."""

    def __post_init__(self) -> None:
        if self.reference not in self.models:
            raise ValueError(f"the reference {self.reference!r} is not one of `models`")
        columns = Counter(name.lower() for names in self.seeds.values() for name in names)
        if twice := next((name for name, count in columns.items() if count > 1), None):
            raise ValueError(f"models: two are called {twice}, case aside; DuckDB tells them not apart")
        for name, parts in self._partitions.items():
            for part in parts.values():
                if part.estimates.keys() != set(self.models):
                    raise ValueError(f"estimates: {name} {part.bin}: expected the models {', '.join(self.models)}")
        for name in Bins.__struct_fields__:
            known = {each.label for each in getattr(self.bins, name)}
            if unknown := [part.bin for part in self.parts(name) if part.bin not in known]:
                raise ValueError(f"estimates: {name} {unknown[0][:40]}: not one of `bins.{name}`")
        known = {(part.partition, part.bin) for part in (*self.parts(ALL), *self.parts(SLICE))}
        if missing := [key for key in ((ALL, ALL), (SLICE, AR_HITS), (SLICE, OTHER)) if key not in known]:
            raise ValueError(f"estimates: none of {missing[0][1]}")

    @cached_property
    def _partitions(self) -> dict[str, dict[tuple[str, bool | None], Part]]:
        """Return the parts of each partition by bin, in the order of the list."""
        found: dict[str, dict[tuple[str, bool | None], list[Estimate]]] = {}
        for each in self.estimates:
            found.setdefault(each.partition, {}).setdefault((each.bin, each.repeated), []).append(each)
        about = {each.name: each for each in self.slices}
        return {
            name: {key: Part(of, about.get(key[0]) if name == NAMED else None) for key, of in bins.items()}
            for name, bins in found.items()
        }

    def parts(self, partition: str) -> list[Part]:
        """Return the bins of a partition in order; none if it was not computed."""
        return list(self._partitions.get(partition, {}).values())

    @property
    def on_all(self) -> Part:
        """Return the estimates on all scored tokens."""
        return self._partitions[ALL][ALL, None]

    @property
    def on_hits(self) -> Part:
        """Return the estimates on the AR hits."""
        return self._partitions[SLICE][AR_HITS, None]

    @property
    def on_other(self) -> Part:
        """Return the estimates on all other tokens."""
        return self._partitions[SLICE][OTHER, None]

    @cached_property
    def named(self) -> list[Part]:
        """Return the AR hits and the recorded slices; empty if no slice was recorded."""
        recorded = self.parts(NAMED)
        hits = Part(self.on_hits.estimates.values(), SliceInfo(AR_HITS, ar_hits=1.0 if self.on_hits.n else None))
        return [hits, *recorded] if recorded else []

    @cached_property
    def curve(self) -> list[Part]:
        """Return the AR hits at each recorded τ, ascending.

        They include the result's own τ, unless every repeated bigram is a hit at a lower one.
        """
        points = {int(part.bin): part for part in self.parts(THRESHOLD)}
        tau = self.threshold
        if tau is not None and points and (tau <= max(points) or self.on_hits.n > points[max(points)].n):
            points[tau] = self.on_hits.moved(THRESHOLD, str(tau))
        return [points[tau] for tau in sorted(points)]

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the evaluation set."""
        return self.evaluation.fingerprint

    @property
    def hits(self) -> str:
        """Return the name of the hits; without an index they are all repeated bigrams."""
        return "repeated bigrams" if self.index is None else "AR hits"

    @property
    def models(self) -> list[str]:
        """Return the models' names in the order of the rows."""
        return [row.model for row in self.rows]

    @property
    def seeds(self) -> dict[str, tuple[str, ...]]:
        """Return the columns of the cells of each model, its own first."""
        return {row.model: row.seeds or (row.model,) for row in self.rows}

    @property
    def compared(self) -> list[GapRow]:
        """Return the rows of all models but the reference."""
        return [row for row in self.rows if row.model != self.reference]

    @property
    def directions(self) -> dict[str, Direction]:
        """Return the direction of each compared model with a finite ΔNLL."""
        return {row.model: row.direction for row in self.compared if row.direction is not None}

    @property
    def deltas(self) -> dict[str, float]:
        """Return each finite ΔNLL of the compared models, in nats: negative if a model is ahead."""
        deltas = {row.model: self.on_all[row.model].delta for row in self.compared}
        return {model: delta for model, delta in deltas.items() if delta is not None}

    @property
    def worth(self) -> dict[str, float]:
        """Return how many documents the gap or lead of each model is worth; none for level models."""
        worth = {row.model: self.on_all[row.model].worth for row in self.compared if row.direction != "level"}
        return {model: each for model, each in worth.items() if each is not None}

    def replaced(self, partitions: Mapping[str, Iterable[Part]]) -> "Gap":
        """Return the result with the bins of some partitions replaced."""
        kept = [each for each in self.estimates if each.partition not in partitions]
        return msgspec.structs.replace(self, estimates=(*kept, *estimates_of(partitions.values())))


def estimates_of(partitions: Iterable[Iterable[Part]]) -> tuple[Estimate, ...]:
    """Return the estimates of several partitions' parts, in order."""
    return tuple(each for parts in partitions for part in parts for each in part.estimates.values())


def save_gap(path: Path, gap: Gap) -> None:
    """Write a ``gap.json`` atomically, one estimate per line.

    Raises `FormatError`, and leaves the earlier file, for one that `read_gap` would refuse: damaged tables make such.
    """
    _check_sums(path, gap)
    write_record(path, gap, lines="estimates")


def read_gap(folder: Path, name: str = "gap.json") -> Gap:
    """Read the ``gap.json`` of a result. Raises `FormatError` if it is missing, broken, or of another format.

    ``name``: another file name with the same contents.
    """
    path = Path(folder) / name
    if not path.is_file():
        whole = next((each for each in path.absolute().parents[1:3] if (each / name).is_file()), None)
        if whole is not None:
            shown = whole if path.is_absolute() else os.path.relpath(whole)
            raise FormatError(f"{folder}: part of the result {shown}; give that folder instead")
        raise FormatError(f"{folder}: no gap.json there; expected a folder that `argap score` or `argap compare` wrote")
    gap = read_record(path, Gap, oldest=GAP_FORMAT, newest=GAP_FORMAT)
    _check_sums(path, gap)
    return gap


def _check_sums(path: Path, gap: Gap) -> None:
    """Raise `FormatError` for partitions that do not add up. Only for files: a gap in memory may lack partitions."""
    again = remedy_for(path)
    if (gap.index is None) != (gap.threshold is None):
        raise FormatError(f"{path}: `index` and `threshold`: expected both or neither, found one null{again}")
    scored = gap.on_all.n
    for partition in (SLICE, *Bins.__struct_fields__, "domain", COPY, INDUCTION):
        parts = gap.parts(partition)
        if not parts and partition == "position":
            continue  # older results have no sums by position and document
        expected = 0 if partition == "frequency" and gap.index is None else scored  # nothing is counted without one
        if (n := sum(part.n for part in parts)) != expected and (parts or partition not in (COPY, INDUCTION)):
            raise FormatError(f"{path}: estimates: {partition}: {n:,} {gap.unit}s, expected {expected:,}{again}")
