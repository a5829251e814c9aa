"""Define the records that `argap.view.answers` sends to the page as JSON."""

from argap.records import ContextUse, EvaluationRecord, Gap, GapRow, IndexRecord, Part, Record, Unit
from argap.slices.library import SliceSpec
from argap.view.columns import Column
from argap.view.search import Match


class Mark(Record, frozen=True):
    """A published rule for τ."""

    threshold: int
    title: str


class Shown(Record, frozen=True, omit_defaults=False):
    """The parts of ``gap.json`` that the page shows, at its own τ and reference."""

    reference: str
    threshold: int | None
    unit: Unit
    rows: tuple[GapRow, ...]
    all: Part
    ar_hits: Part
    other: Part
    slices: tuple[Part, ...]
    evaluation: EvaluationRecord
    index: IndexRecord | None
    documents: int | None
    context: tuple[ContextUse, ...]
    """The curves of context use."""
    date: str

    @classmethod
    def of(cls, gap: Gap) -> "Shown":
        """Pick the parts of ``gap`` to show."""
        slices = {"all": gap.on_all, "ar_hits": gap.on_hits, "other": gap.on_other, "slices": tuple(gap.named)}
        return cls(**slices, **{name: getattr(gap, name) for name in cls.__struct_fields__ if name not in slices})


class Overview(Record, frozen=True):
    """Everything that the page needs on loading."""

    name: str
    gap: Shown
    hits: str
    """The name of the hits (`argap.records.Gap.hits`)."""
    thresholds: tuple[int, ...]
    counted: int | None
    """The highest training count of a repeated bigram here; None if above the last bin or not counted."""
    marks: tuple[Mark, ...]
    notes: tuple[str, ...]
    """Notes to the table, valid at every τ and reference."""
    no_tokens: str | None
    """Why the tokens cannot be shown; None if they can."""
    own_reference: str | None
    """Why the reference cannot be switched; None if it can."""
    library: tuple[SliceSpec, ...]
    columns: tuple[Column, ...]
    """Token columns for conditions."""
    partitions: tuple[str, ...]
    """Partitions of `Breakdown` with several parts."""
    grouped: tuple[str, ...]
    """Token columns that can break the gap down."""
    colours: tuple[str, ...]
    """All models in the order of their colours (`argap.reports.tables.overview.colour_order`)."""
    version: str
    bundled: tuple[int, ...] | None = None
    """The windows in a bundle (`argap.view.bundle`), where no server computes; None: all windows, and a server."""


class Bar(Record, frozen=True):
    """A part of a breakdown, and the condition that selects its tokens."""

    part: Part
    where: str


class Breakdown(Record, frozen=True):
    """The gap broken down by one partition of the tokens."""

    by: str
    bars: tuple[Bar, ...]


class Discovered(Record, frozen=True):
    """The conditions that explain a model's gap (`argap.slices.discover`)."""

    parts: tuple[Part, ...]
    """The leaves, then the wider conditions above them, each by contribution."""
    stability: dict[str, float]
    note: str


class WindowScore(Record, frozen=True):
    """A window and a model's loss in it."""

    window: int
    document: int
    domain: str
    source: str
    n: int
    delta: float
    """ΔNLL, model minus reference, in nats per token."""


class Matches(Record, frozen=True):
    """Tokens found by a search."""

    matches: tuple[Match, ...]
    more: bool
    """Whether there are more."""
