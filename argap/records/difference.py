"""Define the difference of two runs of the same weights: what ``argap diff --json`` prints, and `Fidelity`."""

from typing import Literal, NamedTuple

from argap.files.record import Record

Interval = tuple[float, float]
"""Both ends of a 95% interval."""
MOVED = 0.05
"""Nats by which a token's log-prob must differ to count as moved: 5% in probability."""
FRACTIONS = (0.5, 0.9, 0.99, 0.999)
"""Quantiles of |Δ log p| that are kept."""


class Quantiles(NamedTuple):
    """|Δ log p| in nats, at the `FRACTIONS` of the scored tokens and at its largest; None if infinite."""

    median: float | None
    q90: float | None
    q99: float | None
    q999: float | None
    largest: float | None


class Fidelity(Record, frozen=True, kw_only=True):
    """A model beside the reference on a set of scored tokens, with 95% intervals over documents.

    Δ log p is the model's log-prob of a token minus the reference's. Signed, small changes cancel, as those of a
    quantisation do. A mean is None if it is infinite.
    """

    model: str
    name: str
    """Of the slice or bin; ``all``."""
    n: int
    share_of_tokens: float
    delta: float | None = None
    """Mean of Δ log p with the sign of ΔNLL, positive behind, in nats."""
    absolute: float | None = None
    """Mean of |Δ log p| in nats."""
    absolute_ci95: Interval | None = None
    rms: float | None = None
    """Root mean square of Δ log p in nats."""
    quantiles: Quantiles | None = None
    """On all tokens."""
    moved: float | None = None
    """Share of the tokens with |Δ log p| above `MOVED`."""
    agreement: float | None = None
    """Share of the tokens at which both have the same most likely token."""
    agreement_ci95: Interval | None = None
    kl: float | None = None
    """Mean of KL(reference ‖ model) in nats; None without `argap score --kl` against this reference."""
    kl_ci95: Interval | None = None
    share_of_kl: float | None = None
    """Of the sum of KL over all scored tokens."""
    entropy: float | None = None
    """Mean entropy of the model in nats; None without `argap score --kl`."""
    reference_entropy: float | None = None


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
