"""Compute the metric: the share of a model's gap to a reference that falls on the AR hits, and decide who is ahead.

Everything here is a pure function of sums of log-probs, in float64. The paper's "% of gap due to AR" (`gap_due_to_ar`)
has its own rules, kept apart from those by which a slice has a share (`direction`).
"""

import math
from typing import Literal, NamedTuple, get_args

import numpy as np

from argap.records import ClosedShare, Interval

Case = Literal["explained", "recall_only", "no_gap", "reversed", "infinite"]


class GapDueToAR(NamedTuple):
    """The "% of gap due to AR" as a fraction, and its case."""

    value: float | None
    """min(raw, 1); 1 if the whole gap is recall; None without a finite gap."""
    raw: float | None
    """The uncapped quotient; None if the gap is exactly 0 or not finite."""
    case: Case


def gap_due_to_ar(delta_hits: float, delta_all: float, share: float) -> GapDueToAR:
    """Return the metric of section 3.1 of arXiv 2312.04927, with its cases named.

    ``delta_hits``, ``delta_all``: mean log-prob of the model minus the reference's, on the AR hits and on
    all scored tokens (nats; negative if the model is worse). ``share``: hits over scored tokens.
    Without hits pass ``delta_hits = 0, share = 0``.

    - ``explained``: worse overall: raw = delta_hits · share / delta_all
    - ``reversed``: worse overall but better on the hits: the same quotient, negative
    - ``recall_only``: as good overall, worse on the hits: 100%
    - ``no_gap``: as good on both: no number
    - ``infinite``: one of the two gave some token probability 0, so a mean is −∞: no number
    """
    if not (math.isfinite(delta_all) and math.isfinite(delta_hits)):
        return GapDueToAR(None, None, "infinite")
    raw = delta_hits * share / delta_all + 0.0 if delta_all else None  # + 0.0: no negative zero
    if raw is not None and delta_all < 0:
        return GapDueToAR(min(raw, 1.0), raw, "reversed" if raw < 0 else "explained")
    if delta_hits < 0:
        return GapDueToAR(1.0, raw, "recall_only")
    return GapDueToAR(None, raw, "no_gap")


def perplexity(nll: float) -> float | None:
    """Return exp of ``nll`` (nats); None above 709 nats, where float64 overflows: a model with broken weights."""
    try:
        return math.exp(nll)
    except OverflowError:
        return None


def share_closed(nll: float | None, base: float | None, reference: float | None) -> ClosedShare | None:
    """Return the share of a base model's gap to the reference that a model closes, from their NLLs (nats).

    In perplexity and in NLL; each None if the base has no gap to close, or no finite perplexity. Returns None if one
    of the NLLs is None.
    """
    if nll is None or base is None or reference is None:
        return None
    if not base > reference:
        return ClosedShare(None, None)
    own, worst, best = perplexity(nll), perplexity(base), perplexity(reference)
    return ClosedShare(
        ppl=None if own is None or worst is None or best is None else (worst - own) / (worst - best),
        nll=(base - nll) / (base - reference),
    )


Direction = Literal["behind", "ahead", "level"]
BEHIND, AHEAD, LEVEL = get_args(Direction)
NO_SHARE = "the interval of the gap contains 0"
"""Why a slice has no share: the models are level."""


def direction(delta: float, interval: Interval | None) -> Direction:
    """Return whether a model is behind its reference, ahead of it, or level with it.

    ``delta``: the model's NLL minus the reference's. ``interval``: of ``delta``; the models are level if it contains 0.
    Without an interval (a single document, an infinite NLL) the sign of ``delta`` decides, and NaN is level.
    """
    low, high = (np.nan, np.nan) if interval is None else interval
    return directions(np.array(delta), np.array(low), np.array(high)).item()


def contains_zero(ends: Interval | None) -> bool:
    """Return whether an interval contains 0; a missing one does not."""
    return ends is not None and ends[0] <= 0 <= ends[1]


def directions(delta: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the `direction` of each ``delta [...]``, a string array; NaN in ``low`` and ``high``: no interval."""
    level = ((low <= 0) & (high >= 0)) | np.isnan(delta) | (delta == 0)
    return np.where(level, LEVEL, np.where(delta > 0, BEHIND, AHEAD))
