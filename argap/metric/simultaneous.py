"""Widen the intervals of a tree's leaves so that they hold simultaneously.

A tree has many leaves and a reader looks at the largest. The max-t interval of each accounts for that, and for the
correlation of the leaves: Hothorn, Bretz and Westfall, Biometrical Journal 50 (2008) 346–363; the multiplier bootstrap
is from Chernozhukov, Chetverikov and Kato, Annals of Statistics 41 (2013) 2786–2819.

Legend: L leaves, B draws, D documents.
"""

from typing import NamedTuple

import numpy as np
from scipy.special import chdtri, stdtr, stdtrit

from argap.metric.influence import LEVEL, Estimates, Figure, estimates, freedom

DRAWS = 10_000
SEED = 1234
AT_ONCE = 2**22


class Simultaneous(NamedTuple):
    """Intervals that hold for all leaves simultaneously with a probability of 95%."""

    critical: np.ndarray
    """``[L]``: half-width in standard errors; the same for leaves with equal degrees of freedom."""
    each: float
    """The level at which each interval alone would hold: between 95% and Bonferroni's 1 − 5% / L."""
    estimates: Estimates
    """``[L]``."""


def simultaneous(leaves: Figure, *, draws: int = DRAWS, seed: int = SEED) -> Simultaneous:
    """Return the intervals of ``leaves [L]``, figures with influence rows ``[L, D]`` (`argap.metric.influence.ratio`).

    Each draw multiplies the documents by normal variates, the same for all leaves, and the standard errors by the root
    of one χ² over its degrees of freedom. The 5% quantile of the smallest p-value among the leaves is the level of
    each. Leaves without an interval of their own get none and do not count.
    """
    alone = estimates(leaves)
    own = freedom(leaves.components)
    counted = (alone.reason == "") & (alone.error > 0)
    smallest = _smallest_p(leaves, counted, own, draws, seed)
    level = float(np.quantile(smallest, 1 - LEVEL)) if counted.any() else 1 - LEVEL
    level = min(level, 1 - LEVEL)
    critical = np.asarray(stdtrit(own, 1 - level / 2))
    half = critical * alone.error
    return Simultaneous(critical, 1 - level, alone._replace(low=alone.value - half, high=alone.value + half))


def _smallest_p(leaves: Figure, counted: np.ndarray, own: np.ndarray, draws: int, seed: int) -> np.ndarray:
    """Return the smallest p-value among the counted leaves in each draw ``[B]``."""
    generator = np.random.default_rng(seed)
    rows = np.concatenate([each.rows[counted] for each in leaves.components], axis=-1)
    rows = rows / np.sqrt((rows**2).sum(axis=-1, keepdims=True))
    uniform = generator.random((draws, 1))
    step = max(1, AT_ONCE // max(rows.shape[-1], 1))
    sizes = [min(step, draws - start) for start in range(0, draws, step)]
    normal = np.concatenate([generator.standard_normal((size, rows.shape[-1])) @ rows.T for size in sizes])
    scale = np.sqrt(chdtri(own[counted], uniform) / own[counted])
    return 2 * stdtr(own[counted], -np.abs(normal) / scale).min(axis=-1, initial=0.5)
