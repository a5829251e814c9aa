"""Define the figures of slices, and what of them concerns documents alone: groups, worth, and sources left out.

Documents are a sample of a population of texts, and windows of one document are not independent, so all sums are by
document.

Legend: S slices, the first of them all scored tokens; M models; D documents. All arrays are float64, log-probs in nats.
"""

from typing import NamedTuple

import numpy as np

from argap.metric.influence import Estimates, Figure, effective_number, estimates, ratio_of_figures
from argap.metric.share import LEVEL, NO_SHARE, directions
from argap.records import INFINITE

GROUPS = 4096
"""More documents than this are summed in groups."""
SEED = 1234


class Figures(NamedTuple):
    """The figures of some models on some slices. Differences are model minus reference, positive behind."""

    gap: Estimates
    """``[M]``: Δ, in nats per scored token."""
    direction: np.ndarray
    """``[M]``: ``behind``, ``ahead`` or ``level``."""
    worth: np.ndarray
    """``[M]``: effective number of documents of the gap."""
    nll: Estimates
    """``[S, M]``: nats per token of the slice."""
    delta: Estimates
    """``[S, M]``: Δ on the tokens of the slice."""
    contribution: Estimates
    """``[S, M]``: nats per scored token of the whole text; those of a partition add up to Δ."""
    share: Estimates
    """``[S, M]``: contribution / Δ, signed and not capped; no value if the models are level."""


def effective_documents(lost: np.ndarray) -> np.ndarray:
    """Return the effective number of documents of a gap, (Σ c)² / Σ c² of its parts ``lost [..., D]``.

    It is near 0 for level models, whose documents cancel out. Infinite parts do not count.
    """
    return effective_number(np.where(np.isfinite(lost), lost, 0.0))


def behind(logprob: np.ndarray, reference: int) -> np.ndarray:
    """Return the reference's log-probs minus those of each model ``[..., M, D]``; ±∞ or NaN where one is −∞."""
    with np.errstate(invalid="ignore"):
        return logprob[..., [reference], :] - logprob


def shares(contribution: Figure, gap: Figure) -> Estimates:
    """Return contribution / gap, without a value and interval if the models are level."""
    found, whole = ratio_of_figures(contribution, gap), estimates(gap)
    level = np.broadcast_to(directions(gap.value, whole.low, whole.high) == LEVEL, found.value.shape)
    value, low, high, error = (np.where(level, np.nan, each) for each in found[:4])
    reason = np.where(level & (found.reason != INFINITE), NO_SHARE, found.reason)
    return Estimates(value, low, high, error, found.freedom, reason)


def units_of(documents: int) -> int:
    """Return the number of different groups in `group_of`."""
    return min(documents, GROUPS)


def group_of(documents: int, seed: int = SEED) -> np.ndarray:
    """Return the group of each document ``[D]``: its own, or with more than `GROUPS` documents a random one of as many.

    Sums over groups have the same variance as sums over documents, and arrays stop growing.
    """
    if documents <= GROUPS:
        return np.arange(documents)
    return np.random.default_rng(seed).permutation(documents) * GROUPS // documents


class Units(NamedTuple):
    """What intervals resample: documents, or groups of them."""

    of_document: np.ndarray
    """int32 ``[D]``; -1 for documents that are left out."""
    number: int
    """U."""


def units_among(chosen: np.ndarray) -> Units:
    """Return the units of the documents that are not 0 in ``chosen [D]``."""
    documents = np.flatnonzero(chosen)
    of_document = np.full(len(chosen), -1, dtype=np.int32)
    of_document[documents] = group_of(len(documents))
    return Units(of_document, units_of(len(documents)))


class LeftOut(NamedTuple):
    """Shares of a gap by source (G data sets or domains). NaN if there is no such share."""

    part: np.ndarray
    """``[M, G]``: the source's share of the gap."""
    share: np.ndarray
    """``[S, M, G]``: the slice's share of the gap on all other sources."""


def leave_one_source_out(lost: np.ndarray, source: np.ndarray) -> LeftOut:
    """Return each source's share of the gap, and each slice's share of the gap without that source.

    ``lost [S, M, D]``: see `behind`. ``source``: integers ``[D]`` from 0 to G − 1.
    """
    member = np.eye(int(source.max()) + 1)[source]
    with np.errstate(divide="ignore", invalid="ignore"):
        sums = lost @ member
        total = sums.sum(axis=-1, keepdims=True)
        rest = total - sums
        part, share = sums[0] / total[0], rest / rest[0]
    part, share = (np.where(np.isfinite(each), each, np.nan) for each in (part, share))
    return LeftOut(part, share)
