"""Correlate two rankings, with an interval that says how little a few pairs show."""

import math
from collections.abc import Sequence
from typing import NamedTuple

FEWEST = 4
"""Pairs below which there is no interval."""


class RankCorrelation(NamedTuple):
    """Spearman's correlation of ``n`` pairs."""

    rho: float
    ci95: tuple[float, float] | None
    """None for fewer than `FEWEST` pairs, and if the rankings agree or disagree entirely."""
    n: int


def rank_correlation(x: Sequence[float], y: Sequence[float]) -> RankCorrelation | None:
    """Return Spearman's correlation of ``x`` and ``y`` with its 95% interval; None if a side does not vary.

    The interval is Fisher's z with the variance (1 + ρ²/2) / (n − 3) of Bonett and Wright (Psychometrika 65, 2000). It
    takes the pairs as independent, which mixers of one family are not.
    """
    from scipy.stats import norm, spearmanr

    if min(len(set(x)), len(set(y))) < 2:
        return None
    n, rho = len(x), float(spearmanr(x, y).statistic)  # pyright: ignore
    if n < FEWEST or abs(rho) > 1 - 1e-12:
        return RankCorrelation(rho, None, n)
    middle, half = math.atanh(rho), float(norm.ppf(0.975)) * math.sqrt((1 + rho**2 / 2) / (n - 3))
    return RankCorrelation(rho, (math.tanh(middle - half), math.tanh(middle + half)), n)
