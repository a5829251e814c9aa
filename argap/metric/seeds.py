"""Compute the figures of slices over several seeds of a model and of its reference.

Crossed random effects: documents, seeds of the model, seeds of the reference. The point estimate is the mean over all
pairs of seeds, which for differences of log-probs is the difference of the means over seeds. Its variance is the sum of
the three, and Satterthwaite's formula gives the degrees of freedom: with two or three seeds these are few, and the
intervals rightly wide. The interaction of documents with seeds is in both the documents' and the seeds' part, so it
counts twice; Cameron, Gelbach and Miller (Journal of Business & Economic Statistics 29 (2011) 238–249) subtract it
once. It is about 1% of the variance over documents in the committed suites, and without the subtraction no variance can
be negative. Seeds of the model and of the reference count as independent, as if trained on data in different orders.

Legend: S slices, the first of them all scored tokens; I seeds of the model, J of the reference; D documents.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from argap.metric.documents import Figures, effective_documents, shares
from argap.metric.influence import Component, Figure, estimates, ratio
from argap.metric.share import directions

SEEDS_NOT_COVERED = "one seed, and no other model of the suite has several: the interval is over documents alone"


class SeedPool(NamedTuple):
    """The variance over seeds pooled over a suite's models, for models with one seed."""

    rows: np.ndarray
    """``[S, P]``: the squares add up to the variance of one seed's sum of log-probs on the slice."""
    freedom: float
    """Number of seeds of all models minus number of models."""


class OverSeeds(NamedTuple):
    """The figures of a model over seeds."""

    figures: Figures
    """``[S]`` each; the gap, its direction and its worth are scalars ``[]``."""
    reason: str | None
    """Why the intervals do not cover seeds; None if they do."""
    contribution: Figure
    """``[S]``: the contributions with the components of their uncertainty, for simultaneous intervals."""


class SeedRange(NamedTuple):
    """The smallest and the largest value over all pairs of seeds, each ``[S]``.

    This is not an interval: it grows with the number of seeds and does not cover documents.
    """

    delta: tuple[np.ndarray, np.ndarray]
    contribution: tuple[np.ndarray, np.ndarray]
    share: tuple[np.ndarray, np.ndarray]
    """Over all pairs whose difference is not 0, level or not."""


def pool_seeds(models: Sequence[np.ndarray]) -> SeedPool | None:
    """Return the pooled variance within models, Σ over models and seeds of squared deviations / Σ (seeds − 1).

    ``models``: sums of log p ``[S, I, D]`` for each model, on the same documents; models with one seed or an infinite
    sum add nothing. Returns None if no model has several seeds.
    """
    sums = [np.asarray(each, dtype=np.float64).sum(axis=-1) for each in models]
    sums = [each for each in sums if each.shape[-1] > 1 and np.isfinite(each).all()]
    if not sums:
        return None
    freedom = float(sum(each.shape[-1] - 1 for each in sums))
    deviations = [each - each.mean(axis=-1, keepdims=True) for each in sums]
    return SeedPool(np.concatenate(deviations, axis=-1) / np.sqrt(freedom), freedom)


def figures_over_seeds(
    n: np.ndarray, model: np.ndarray, reference: np.ndarray, pool: SeedPool | None = None
) -> OverSeeds:
    """Return the figures of a model's seeds against those of the reference.

    ``n [S, D]``: scored tokens. ``model [S, I, D]``, ``reference [S, J, D]``: sums of log p of each seed. A side with
    one seed takes the variance of the ``pool``; without a pool, intervals do not cover the seeds of that side and
    ``reason`` says so. With one seed each and no pool, intervals are over documents alone.
    """
    n, model, reference = (np.asarray(each, dtype=np.float64) for each in (n, model, reference))
    lost = _behind(model.mean(axis=1), reference.mean(axis=1))
    own, theirs = _seed_rows(model, pool), _seed_rows(reference, pool)
    pooled = model.shape[1] == reference.shape[1] == 1
    both = _doubled(own) if pooled else [*_negated(own), *theirs]

    def over(top: np.ndarray, bottom: np.ndarray, seeds: Sequence[Component]) -> Figure:
        value, documents = ratio(top, bottom)
        total = np.maximum(bottom.sum(axis=-1), 1.0)[..., None]
        return Figure(value, (*documents, *(each._replace(rows=each.rows / total) for each in seeds)))

    contribution = over(lost, n[0], both)
    gap = contribution.of(0)
    whole = estimates(gap)
    found = Figures(
        whole,
        directions(gap.value, whole.low, whole.high),
        effective_documents(lost[0]),
        estimates(over(-model.mean(axis=1), n, own)),
        estimates(over(lost, n, both)),
        estimates(contribution),
        shares(contribution, gap),
    )
    return OverSeeds(found, None if own and theirs else SEEDS_NOT_COVERED, contribution)


def seed_range(n: np.ndarray, model: np.ndarray, reference: np.ndarray) -> SeedRange:
    """Return the range of each figure over all pairs of seeds; arguments as in `figures_over_seeds`."""
    sums = _behind(model.sum(axis=-1)[:, :, None], reference.sum(axis=-1)[:, None, :]).reshape(len(n), -1)
    tokens = n.sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = (sums / tokens[:, None], sums / tokens[0], sums / sums[0])
    delta, contribution, share = (_ends(each) for each in values)
    return SeedRange(delta, contribution, share)


def _ends(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return minimum and maximum ``[S]`` of the finite ``values [S, P]``; NaN if there are none."""
    finite = np.isfinite(values)
    low, high = (np.where(finite, values, end).T for end in (np.inf, -np.inf))
    some = finite.any(axis=-1)
    return np.where(some, low.min(axis=0), np.nan), np.where(some, high.max(axis=0), np.nan)


def _behind(model: np.ndarray, reference: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return reference - model


def _seed_rows(logprob: np.ndarray, pool: SeedPool | None) -> list[Component]:
    """Return the seed component of ``logprob [S, I, D]``: that of its sums ``[S]``, averaged over seeds.

    It is empty with one seed and no pool. Rows of infinite sums are 0: their figures are NaN.
    """
    seeds = logprob.shape[1]
    if seeds == 1:
        return [] if pool is None else [Component(pool.rows, pool.freedom, False)]
    with np.errstate(invalid="ignore"):
        sums = logprob.sum(axis=-1)
        rows = (sums - sums.mean(axis=-1, keepdims=True)) / np.sqrt(seeds * (seeds - 1))
    return [Component(np.where(np.isfinite(rows), rows, 0.0), float(seeds - 1), False)]


def _negated(components: Sequence[Component]) -> list[Component]:
    return [each._replace(rows=-each.rows) for each in components]


def _doubled(components: Sequence[Component]) -> list[Component]:
    """Return one component for two sides that share the pool, so that its degrees of freedom do not count twice."""
    return [each._replace(rows=each.rows * np.sqrt(2)) for each in components]
