"""Turn the influence of documents and seeds on a figure into Student-t intervals.

Every figure is a ratio of sums, R = Σ y_d / Σ x_d over documents d. Its influence rows say how much each document moves
it; their squares add up to its variance, and the rows of a difference or a ratio of figures are linear in the rows of
the two. Seeds have rows of their own, so that one set of functions serves both documents and seeds.

Legend: D documents, K rows of a component; ``...`` any leading axes (slices, models). All arrays are float64.

- Linearised ratio: Cochran, Sampling Techniques, 3rd ed. (1977), chapter 6.
- Delete-one jackknife: Wolter, Introduction to Variance Estimation (2007), chapter 4.
- Degrees of freedom: Satterthwaite, Biometrics Bulletin 2 (1946) 110–114.
- Interval of a ratio of two figures: Fieller, Journal of the Royal Statistical Society B 16 (1954) 175–185.

A tree has many leaves and a reader looks at the largest. The max-t interval of each accounts for that, and for the
correlation of the leaves: Hothorn, Bretz and Westfall, Biometrical Journal 50 (2008) 346–363; the multiplier bootstrap
is from Chernozhukov, Chetverikov and Kato, Annals of Statistics 41 (2013) 2786–2819.
"""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from argap.records import INFINITE

LEVEL = 0.95
EMPTY = "no tokens"
ONE_DOCUMENT = "a single document"
UNCERTAIN = "the gap is too uncertain for an interval of its share"
"""Why a share has no interval although the gap's interval does not contain 0: see `ratio_of_figures`."""


class Component(NamedTuple):
    """One source of uncertainty of some figures."""

    rows: np.ndarray
    """``[..., K]``: the squares add up to this component's part of the variance."""
    freedom: np.ndarray | float
    """``[...]``: degrees of freedom; if ``measured``, their upper limit."""
    measured: bool
    """Whether the degrees of freedom are `effective_freedom`, at most ``freedom``."""

    def of(self, chosen: np.ndarray | int) -> "Component":
        """Return the component of the ``chosen`` figures, bool ``[S]``, or of one."""
        return self._replace(
            rows=self.rows[chosen], freedom=np.broadcast_to(self.freedom, self.rows.shape[:-1])[chosen]
        )

    def reasons(self, value: np.ndarray) -> np.ndarray:
        """Return why figures ``[...]`` over documents have no interval: strings, empty if they have one."""
        documents = np.asarray(self.freedom) + 1
        reason = np.where(documents < 1, EMPTY, np.where(~np.isfinite(value), INFINITE, ""))
        return np.where((reason == "") & (documents < 2), ONE_DOCUMENT, reason)


class Estimates(NamedTuple):
    """Figures with their intervals. All arrays have the same shape ``[...]``."""

    value: np.ndarray
    """NaN if there is none."""
    low: np.ndarray
    high: np.ndarray
    """Ends of the 95% interval; NaN if there is none."""
    error: np.ndarray
    """Standard error; NaN if unknown."""
    freedom: np.ndarray
    """Degrees of freedom of the Student-t quantile."""
    reason: np.ndarray
    """Strings: why there is no interval; empty if there is one."""


class Figure(NamedTuple):
    """The value of some figures ``[...]`` and the components of their uncertainty."""

    value: np.ndarray
    components: tuple[Component, ...]

    def of(self, chosen: np.ndarray | int) -> "Figure":
        """Return the ``chosen`` figures, bool ``[S]``, or one of them."""
        return Figure(self.value[chosen], tuple(each.of(chosen) for each in self.components))


def ratio(top: np.ndarray, bottom: np.ndarray) -> Figure:
    """Return Σ top / Σ bottom over documents, with the influence of each document.

    ``top``, ``bottom``: ``[..., D]``, broadcast; ``bottom`` is not negative. Leaving document d out moves the ratio by
    (y_d − R x_d) / (X − x_d): the rows are these jackknife residuals, times √((D − 1) / D). Unlike the linearised
    residuals over X, they account for a long document pulling the ratio towards itself. The value is NaN if ``bottom``
    is 0 throughout, and not finite if ``top`` is not. Documents without ``bottom`` add no degree of freedom.
    """
    top, bottom = np.broadcast_arrays(np.asarray(top, dtype=np.float64), np.asarray(bottom, dtype=np.float64))
    total = bottom.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = top.sum(axis=-1, keepdims=True) / total
        rows = (top - value * bottom) / (total - bottom)
    documents = top.shape[-1]
    rows = np.where(np.isfinite(rows), rows, 0.0) * np.sqrt((documents - 1) / documents)
    return Figure(value[..., 0], (Component(rows, (bottom > 0).sum(axis=-1) - 1.0, True),))


def effective_number(parts: np.ndarray) -> np.ndarray:
    """Return Kish's effective number (Σ c)² / Σ c² of the parts ``c [..., K]``; 0 if all are 0.

    For the contributions of documents to a gap, it says how many equal documents would carry the gap. It goes to 0 as
    contributions of opposite signs cancel, when the models are level.
    """
    parts = np.asarray(parts, dtype=np.float64)
    squares = (parts**2).sum(axis=-1)
    return np.divide(parts.sum(axis=-1) ** 2, squares, out=np.zeros_like(squares), where=squares > 0)


def effective_freedom(rows: np.ndarray, most: np.ndarray | float) -> np.ndarray:
    """Return the degrees of freedom of the variance Σ rows² of ``rows [..., K]``: 2 (W − 1), from 1 to ``most``.

    W is the `effective_number` of the squares: how many documents the variance rests on, about K / 3 for normal rows.
    Satterthwaite's 2 V² / Var(V) is 2 W with Var(V) estimated by Σ rows⁴. The formula was chosen by coverage, with 20
    documents of the committed results: K − 1 covers 88–95%, 3 W − 2 covers 91–95%, this 93–97% and W − 1 covers
    95–99%. Kish's number of the signed contributions, minus 1, cannot be used: it is below 0 for level models.
    """
    squares = rows**2
    measured = 2 * (effective_number(squares) - 1)
    return np.clip(np.where(squares.any(axis=-1), measured, most), 1, np.maximum(most, 1))


def freedom(components: Sequence[Component]) -> np.ndarray:
    """Return Satterthwaite's degrees of freedom ``[...]`` of a sum of variances: V² / Σ (V_k² / f_k)."""
    variances = [(each.rows**2).sum(axis=-1) for each in components]
    own = [effective_freedom(each.rows, each.freedom) if each.measured else each.freedom for each in components]
    total = _sum(variances)
    parts = _sum([variance**2 / np.maximum(each, 1) for variance, each in zip(variances, own, strict=True)])
    most = np.maximum(np.broadcast_to(own[0], np.shape(total)), 1.0)
    return np.divide(total**2, parts, out=np.array(most), where=parts > 0)


def quantile(freedom: np.ndarray) -> np.ndarray:
    """Return the Student-t quantile of the 95% interval."""
    from scipy.special import stdtrit  # late: opening a result needs none

    return np.asarray(stdtrit(freedom, (1 + LEVEL) / 2))


def estimates(figure: Figure) -> Estimates:
    """Return figures with Student-t intervals.

    A figure has none without tokens, for sums that are not finite, and with a single document. The first component is
    that of documents.
    """
    value, components = figure
    error = np.sqrt(_product(components, components))
    own = freedom(components)
    reason = components[0].reasons(value)
    half = quantile(own) * error
    return _known(value, value - half, value + half, error, own, reason)


def combined(left: Figure, right: Figure, scale: np.ndarray) -> tuple[Component, ...]:
    """Return the components of ``left`` − ``scale`` · ``right``, two figures with the same components."""
    factor = np.where(np.isfinite(scale), scale, 0.0)[..., None]
    return tuple(
        Component(mine.rows - factor * theirs.rows, np.minimum(mine.freedom, theirs.freedom), mine.measured)
        for mine, theirs in zip(left.components, right.components, strict=True)
    )


def ratio_of_figures(part: Figure, whole: Figure) -> Estimates:
    """Return ``part`` / ``whole`` with Fieller's interval: all ρ whose ``part`` − ρ · ``whole`` may be 0.

    For a ``whole`` far from 0 this is the linearised interval; near 0 it is longer on the side away from 0. With 50
    documents that resolve a gap in half of the draws (7M, DeltaNet) the linearised interval covers 80%, Fieller's 95%;
    with 20 that resolve it in a fifth, 59% and 89%. Fieller's is bounded if the interval of ``whole``, with the degrees
    of freedom of the ratio, does not contain 0 (`UNCERTAIN` otherwise). The standard error is the linearised one.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        value = part.value / whole.value
        linear = combined(part, whole, value)
        own = freedom(linear)
        error = np.sqrt(_product(linear, linear)) / np.abs(whole.value)
        square = quantile(own) ** 2
        a = whole.value**2 - square * _product(whole.components, whole.components)
        b = part.value * whole.value - square * _product(part.components, whole.components)
        c = part.value**2 - square * _product(part.components, part.components)
        root = np.sqrt(np.maximum(b**2 - a * c, 0.0))
        low, high = (b - root) / a, (b + root) / a
    finite = np.isfinite(part.value) & np.isfinite(whole.value)
    value = np.where(finite, value, np.nan)
    reason = linear[0].reasons(np.where(finite, 0.0, np.nan))
    reason = np.where((reason == "") & ~(a > 0), UNCERTAIN, reason)
    return _known(value, low, high, error, own, reason)


def _known(
    value: np.ndarray, low: np.ndarray, high: np.ndarray, error: np.ndarray, freedom: np.ndarray, reason: np.ndarray
) -> Estimates:
    """Return figures with NaN for values that are not finite and for intervals with a ``reason`` against them."""
    value = np.where(np.isfinite(value), value, np.nan)
    low, high, error = (np.where(reason == "", each, np.nan) for each in (low, high, error))
    return Estimates(value, low, high, error, np.broadcast_to(freedom, value.shape), reason)


def _product(left: Sequence[Component], right: Sequence[Component]) -> np.ndarray:
    """Return the covariance ``[...]`` of two figures with the same components."""
    return _sum([(a.rows * b.rows).sum(axis=-1) for a, b in zip(left, right, strict=True)])


def _sum(parts: Sequence[np.ndarray]) -> np.ndarray:
    return reduce(np.add, parts)


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
    """Return the intervals of ``leaves [L]``, figures with influence rows ``[L, D]`` (`ratio`).

    Each draw multiplies the documents by normal variates, the same for all leaves, and the standard errors by the root
    of one χ² over its degrees of freedom. The 5% quantile of the smallest p-value among the leaves is the level of
    each. Leaves without an interval of their own get none and do not count.
    """
    from scipy.special import stdtrit

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
    from scipy.special import chdtri, stdtr

    generator = np.random.default_rng(seed)
    rows = np.concatenate([each.rows[counted] for each in leaves.components], axis=-1)
    rows = rows / np.sqrt((rows**2).sum(axis=-1, keepdims=True))
    uniform = generator.random((draws, 1))
    step = max(1, AT_ONCE // max(rows.shape[-1], 1))
    sizes = [min(step, draws - start) for start in range(0, draws, step)]
    normal = np.concatenate([generator.standard_normal((size, rows.shape[-1])) @ rows.T for size in sizes])
    scale = np.sqrt(chdtri(own[counted], uniform) / own[counted])
    return 2 * stdtr(own[counted], -np.abs(normal) / scale).min(axis=-1, initial=0.5)
