"""Define the difference of two runs of the same weights: what ``argap diff --json`` prints."""

from typing import Literal

from argap.files.record import Record
from argap.records.fidelity import Fidelity

Where = Literal[
    "identical", "short windows", "shared prefix", "few windows", "onset", "growth", "decline", "distance", "even"
]
"""What a `Finding` says of the place of a difference."""


class Finding(Record, frozen=True, kw_only=True):
    """One place where the difference of two runs lies, against all other tokens."""

    where: Where
    n: int
    """Tokens there."""
    share_of_tokens: float
    share: float
    """Of Σ|Δ log p|."""
    inside: float
    """Mean of |Δ log p| there, in nats."""
    outside: float | None = None
    """Mean of |Δ log p| elsewhere; None if there is no other token."""
    low: int | None = None
    """First position (``onset``, ``growth``, ``decline``) or distance of the place."""
    high: int | None = None
    """Last position or distance; None: no upper bound."""
    windows: int | None = None
    """Windows in which it is seen."""
    of_windows: int | None = None
    """Windows that could show it: the short ones, those with a shared prefix, or all."""
    block: int | None = None
    """``onset``: every difference begins behind a multiple of this many tokens."""


class Bundle(Record, frozen=True, kw_only=True):
    """|Δ log p| on some tokens: one bin of a breakdown, a window or a document."""

    name: str
    n: int
    absolute: float | None
    """Mean of |Δ log p| in nats; None if infinite."""
    largest: float | None
    agreement: float
    share: float | None
    """Of Σ|Δ log p|."""


class MovedToken(Record, frozen=True, kw_only=True):
    """A token whose log-prob differs most."""

    window: int
    position: int
    source: str | None
    """The document's source; None without labels beside the runs."""
    before: str
    """Text before the token."""
    token: str
    logprobs: tuple[float | None, float | None]
    """Of the first and the second run; None: −∞."""
    top1: tuple[str, str]
    """Each run's most likely token."""


class Difference(Record, frozen=True, kw_only=True):
    """Two runs over the same tokens. Δ log p is the second's log-prob minus the first's."""

    runs: tuple[str, str]
    """Folders."""
    names: tuple[str, str]
    settings: dict[str, tuple[str, str]]
    """What differs of how they were made: checkpoint, dtype, device, batch size, backend, BOS, versions."""
    whole: Fidelity
    """Intervals are over windows."""
    findings: tuple[Finding, ...]
    """Where the difference lies, the most telling first."""
    breakdowns: dict[str, tuple[Bundle, ...]]
    """By ``position``, ``distance``, ``length`` of the window, ``window`` (the worst), ``document`` (the worst)."""
    worst: tuple[MovedToken, ...]
    tolerance: float | None = None
    beyond: int | None = None
    """Tokens whose |Δ log p| exceeds the tolerance; None without one."""
