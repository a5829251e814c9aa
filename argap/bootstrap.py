"""Paired bootstrap over documents, from sums, never from tokens.

Windows of one document are not independent (a novel gives hundreds), so whole documents are drawn with
replacement, for both models together, and every statistic is taken from the drawn sums.
"""

from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000
SEED = 1234
LEVEL = 0.95
UNRESOLVED = 0.025  # share of resamples without a gap above which its parts have no interval
WEIGHTS_AT_ONCE = 2**24


class Sums(NamedTuple):
    """Per-document sums, each float64 ``[D]``; of resamples ``[R]``; log-probs in nats."""

    n: np.ndarray
    """Scored tokens."""
    model: np.ndarray
    """Sum of the model's log-probs on all scored tokens."""
    model_hits: np.ndarray
    reference: np.ndarray
    reference_hits: np.ndarray


class Intervals(NamedTuple):
    """95% percentile intervals, None where there is none; ``reason`` says why the gap's share has none."""

    gap_due_to_ar: tuple[float, float] | None
    delta: tuple[float, float] | None
    """Of the model's NLL minus the reference's."""
    delta_ar: tuple[float, float] | None
    """Of share × ΔNLL on the AR hits: the hits' part of ``delta``."""
    reason: str | None = None


def bootstrap(sums: Sums, *, resamples: int = RESAMPLES, seed: int = SEED) -> Intervals:
    """Intervals of the gap, of its part on the AR hits and of their quotient."""
    if len(sums.n) < 2:
        return Intervals(None, None, None, reason="a single document")
    drawn = _resample(sums, resamples, seed)
    delta = (drawn.model - drawn.reference) / drawn.n  # mean log-prob: negative where the model is worse
    part = (drawn.model_hits - drawn.reference_hits) / drawn.n
    gap = delta < 0
    # The four cases of `argap.gap.gap_due_to_ar`, vectorised: a resample without a gap counts as all
    # recall where the hits are worse, and has no number where they are not.
    value = np.full(resamples, np.nan)
    value[gap] = np.minimum(part[gap] / delta[gap], 1.0)
    value[~gap & (part < 0)] = 1.0
    resolved = np.mean(~gap) <= UNRESOLVED
    return Intervals(
        gap_due_to_ar=_interval(value[~np.isnan(value)]) if resolved else None,
        delta=_interval(-delta),
        delta_ar=_interval(-part),
        reason=None if resolved else "gap not resolved",
    )


def _resample(sums: Sums, resamples: int, seed: int) -> Sums:
    """Sums of ``resamples`` draws of as many documents as there are."""
    table = np.stack(sums, axis=1)
    documents = len(table)
    generator = np.random.default_rng(seed)
    even = np.full(documents, 1 / documents)
    chunk = max(1, WEIGHTS_AT_ONCE // documents)
    parts = [
        generator.multinomial(documents, even, size=min(chunk, resamples - start)) @ table
        for start in range(0, resamples, chunk)
    ]
    return Sums(*np.concatenate(parts).T)


def _interval(values: np.ndarray) -> tuple[float, float]:
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)
