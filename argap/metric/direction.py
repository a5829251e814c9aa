"""Decide who is ahead, and when a slice has a share of the gap or of the lead.

The paper's "% of gap due to AR" has its own rules (`argap.metric.share.gap_due_to_ar`), kept apart from these.
"""

from typing import Literal, get_args

import numpy as np

from argap.records import Interval

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
