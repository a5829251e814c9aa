"""Define how closely a model's distributions follow the reference's: part of ``gap.json``."""

from typing import NamedTuple

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
