"""What `argap.view.answers` gives to the page, which reads these records as JSON."""

from argap.records import EvaluationRecord, Gap, GapRow, IndexRecord, Part, Record, Unit
from argap.slices.library import SliceSpec
from argap.view.search import Match


class Mark(Record, frozen=True):
    """A published rule for τ."""

    threshold: int
    title: str


class Shown(Record, frozen=True, omit_defaults=False):
    """What the page shows of ``gap.json``: at its own τ and reference."""

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
    effective_documents: float | None
    date: str

    @classmethod
    def of(cls, gap: Gap) -> "Shown":
        """Pick what is shown."""
        slices = {"all": gap.on_all, "ar_hits": gap.on_hits, "other": gap.on_other, "slices": tuple(gap.named)}
        return cls(**slices, **{name: getattr(gap, name) for name in cls.__struct_fields__ if name not in slices})


class Overview(Record, frozen=True):
    """All that the first sight of the page needs."""

    name: str
    gap: Shown
    hits: str
    """What the hits are called (`argap.records.Gap.hits`)."""
    thresholds: tuple[int, ...]
    counted: int | None
    """The highest training count of a repeated bigram here; None: above the last bin, or not counted."""
    marks: tuple[Mark, ...]
    notes: tuple[str, ...]
    """Of the table, at every τ and reference."""
    no_tokens: str | None
    """Why the tokens cannot be shown; None where they can."""
    own_reference: str | None
    """Why the reference cannot be switched; None where it can."""
    library: tuple[SliceSpec, ...]
    columns: tuple[str, ...]
    """Of the tokens, for conditions."""
    grouped: tuple[str, ...]
    """Columns of the tokens that break the gap down."""
    version: str


class Bar(Record, frozen=True):
    """A part of a breakdown, and the condition that selects its tokens."""

    part: Part
    where: str


class Breakdown(Record, frozen=True):
    """The gap taken apart by one partition of the tokens."""

    by: str
    bars: tuple[Bar, ...]


class WindowScore(Record, frozen=True):
    """A window and what a model loses in it."""

    window: int
    document: int
    domain: str
    source: str
    n: int
    delta: float
    """ΔNLL, model minus reference: nats a token."""


class Matches(Record, frozen=True):
    """Tokens that were looked for."""

    matches: tuple[Match, ...]
    more: bool
    """Whether there are further ones."""
