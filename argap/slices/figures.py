"""Compute how much each slice, a named set of scored tokens, contributes to a model's gap to its reference.

For a slice S with share p_S of the scored tokens, a model's contribution is p_S·Δnll_S, and its share of the gap (or of
the lead, if the model is ahead) is the contribution over Δnll. Slices may overlap; the contributions of a partition
add up to Δnll. All figures are computed from sums by document, so each has an interval.

A token of probability 0 makes the NLL of its slices infinite. Such a figure is None, with a reason, and so are the
differences and shares that depend on it; the model's other slices keep theirs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple

import numpy as np
import pandas as pd
from msgspec.structs import replace

from argap.metric.direction import LEVEL, NO_SHARE, direction
from argap.metric.direction import share as share_of
from argap.metric.intervals import DocumentBootstrap, effective_documents, interval, unresolved
from argap.metric.share import gap_due_to_ar, perplexity
from argap.records import ALL, INFINITE, Estimate, Interval, Part, SliceInfo
from argap.slices.cells import PREFIX, CellFile, models_of, parts_of
from argap.slices.margins import Margins, sum_margins
from argap.slices.tally import joined, tally


class Key(NamedTuple):
    """A bin of a partition, as `argap.records.Estimate` names it."""

    partition: str
    bin: str
    repeated: bool | None = None


WHOLE = Key(ALL, ALL)
"""All scored tokens, always the first part."""


@dataclass(frozen=True)
class _Sums:
    key: Key
    n: np.ndarray
    """``[U]``: scored tokens of the slice in each unit."""
    logprob: np.ndarray
    """``[U, M]``: sums of log p."""
    about: SliceInfo | None
    tokens: float
    """Sum of ``n``."""
    total: np.ndarray
    """``[M]``: sum of ``logprob``."""


class SliceScorer:
    """Collect slices as sums by document, then score them all with the same resamples.

    Legend: D documents, U units of the bootstrap, R resamples, M models, the reference among them.
    """

    def __init__(
        self,
        models: Sequence[str],
        reference: str,
        n: np.ndarray,
        logprob: np.ndarray,
        *,
        by_unit: tuple[DocumentBootstrap, float] | None = None,
    ) -> None:
        """Start with all tokens: ``n [D]`` and ``logprob [D, M]``, scored tokens and sums of log p (nats) by document.

        ``by_unit``: a bootstrap and the effective number of documents; all sums are then by its units, ``[U]``.
        """
        self.models = list(models)
        self.reference = self.models.index(reference)
        self._folded = by_unit is not None
        self._bootstrap, self._worth = by_unit or (DocumentBootstrap(len(n)), effective_documents(n))
        self._slices: list[_Sums] = []
        self.add(WHOLE, n, logprob)

    def add(self, key: Key, n: np.ndarray, logprob: np.ndarray, *, about: SliceInfo | None = None) -> None:
        """Add the slice of ``n [D]`` tokens with sums of log p ``logprob [D, M]``."""
        columns = np.column_stack([n, logprob])
        columns = columns if self._folded else self._bootstrap.by_unit(columns)
        n, logprob = columns[:, 0], columns[:, 1:]
        self._slices.append(_Sums(key, n, logprob, about, n.sum(), logprob.sum(axis=0)))

    def results(self) -> list[Part]:
        """Return one part per slice: all tokens, then slices as added. The reference is each part's first model."""
        drawn = self._resampled() if self._bootstrap.documents > 1 else None
        order = sorted(range(len(self.models)), key=lambda m: m != self.reference)
        whole: dict[str, Estimate] = {}
        parts = []
        for k, each in enumerate(self._slices):
            pair = None if drawn is None else (drawn[0], drawn[k])
            found = [self._estimate(each, m, pair, whole.get(self.models[m])) for m in order]
            whole = whole or {each.model: each for each in found}
            parts.append(Part(found, each.about))
        return parts

    def _estimate(self, each: _Sums, m: int, drawn: "tuple[_Drawn, _Drawn] | None", whole: Estimate | None) -> Estimate:
        """Estimate model ``m`` on a slice.

        ``drawn``: all tokens and the slice in every resample; None for a single document. ``whole``: the model on all
        tokens; None when estimating all tokens.
        """
        everything, n = self._slices[0], each.tokens
        infinite = each.total[m] == -np.inf
        nll = float(-each.total[m] / n) if n and not infinite else None
        made = Estimate(
            self.models[m],
            each.key.partition,
            each.key.bin,
            round(n),
            float(n / everything.tokens),
            nll=nll,
            ppl=None if nll is None else perplexity(nll),
            repeated=each.key.repeated,
        )
        if m == self.reference:
            return made
        # Mean log-prob of the model minus the reference's, summed over the slice and over all tokens.
        part, delta = (float(self._lost(of.total)[m] / everything.tokens) for of in (each, everything))
        on_slice = part / made.share_of_tokens if n else 0.0
        if not isfinite(part):
            return replace(made, reason=INFINITE)
        ends = NO_ENDS if drawn is None else _intervals(*drawn, m)
        made = replace(
            made,
            delta=-on_slice + 0.0,
            delta_ci95=ends.delta,
            contribution=-part + 0.0,
            contribution_ci95=ends.contribution,
            paper_rule=gap_due_to_ar(on_slice, delta, made.share_of_tokens).value,
        )
        if not isfinite(delta):
            return replace(made, reason=INFINITE)
        gap = ends.contribution if whole is None else whole.contribution_ci95
        own = ends.contribution if part else None  # an empty slice contributes exactly 0
        if (towards := direction(-delta, gap)) == LEVEL:
            return replace(made, reason=NO_SHARE)
        reason = unresolved(self._bootstrap.documents, self._worth, gap, own)
        share = share_of(-part, -delta, towards)
        return replace(made, share=share, share_ci95=ends.share, reason=reason)

    def _lost(self, logprob: np.ndarray) -> np.ndarray:
        """Subtract the reference's log-probs from ``logprob [..., M]``: ±∞ or NaN where either is −∞."""
        with np.errstate(invalid="ignore"):
            return logprob - logprob[..., [self.reference]]

    def _resampled(self) -> list["_Drawn"]:
        """Return each slice's tokens and differences to the reference in every resample.

        Non-finite differences are set to 0, which is never read: such a slice has no interval.
        """
        width = 1 + len(self.models)
        lost = [self._lost(each.logprob) for each in self._slices]
        lost = [np.where(np.isfinite(each), each, 0.0) for each in lost]
        table = [np.column_stack([each.n, differences]) for each, differences in zip(self._slices, lost, strict=True)]
        drawn = self._bootstrap.resample(np.concatenate(table, axis=1))
        return [
            _Drawn(drawn[:, start], drawn[:, start + 1 : start + width]) for start in range(0, drawn.shape[1], width)
        ]


@dataclass(frozen=True)
class _Drawn:
    """A slice in every resample."""

    n: np.ndarray
    """``[R]``."""
    lost: np.ndarray
    """``[R, M]``: sums of log p, model minus reference."""


class _Ends(NamedTuple):
    """The intervals of an estimate."""

    delta: Interval | None
    contribution: Interval | None
    share: Interval | None
    """None if all resamples have the opposite sign."""


NO_ENDS = _Ends(None, None, None)
"""For a single document."""


def _intervals(whole: _Drawn, slice_: _Drawn, model: int) -> _Ends:
    """Return all intervals of a model on a slice; no other function computes any."""
    delta = whole.lost[:, model] / whole.n  # mean log-prob: negative if the model is worse
    part = slice_.lost[:, model] / whole.n
    some = slice_.n > 0
    on_slice = interval(-slice_.lost[some, model] / slice_.n[some]) if some.any() else None
    towards = np.sign(delta.mean())  # negative for a gap, positive for a lead
    kept = towards * delta > 0
    if not kept.any():
        return _Ends(on_slice, interval(-part), None)
    # Not capped at 1. In a resample where Δ changes sign, the quotient is undefined: it counts as the largest one if
    # the slice keeps its sign (the quotient diverges as Δ goes to 0), and is dropped otherwise.
    value = np.full(len(delta), np.nan)
    value[kept] = part[kept] / delta[kept]
    value[~kept & (towards * part > 0)] = max(value[kept].max(), 1.0)
    return _Ends(on_slice, interval(-part), interval(value[~np.isnan(value)]))


Masks = Callable[[pd.DataFrame], Mapping[Key, np.ndarray]]
"""A function from cells ``[C]`` to the cells (bool ``[C]``) of each slice that their keys determine."""


def slices_of_cells(
    cells: pd.DataFrame | CellFile | Margins, masks: Masks | Mapping[Key, np.ndarray], reference: str
) -> dict[Key, Part]:
    """Score `WHOLE`, then the slices that boolean ``masks`` over the cells select.

    If ``masks`` is a function, it is called with each of the `Margins` instead of the cells and returns the slices that
    depend only on that margin's keys. Slices that it never returns are missing from the result.
    """
    documents, n = documents_of(cells)
    if callable(masks):
        margins = cells if isinstance(cells, Margins) else sum_margins(cells, documents, n)
        chosen = [(part, part["unit"].to_numpy(), masks(part)) for part in margins.frames()]
        bootstrap = margins.bootstrap
    else:
        assert isinstance(cells, pd.DataFrame)
        bootstrap = DocumentBootstrap(len(documents))
        unit = bootstrap.unit[np.searchsorted(documents, cells["document"].to_numpy())]
        chosen = [(cells, unit, masks)]
    models = models_of(cells)
    sums: dict[Key, np.ndarray] = {}
    for part, unit, of_part in chosen:
        columns = [part["n"].to_numpy(dtype=np.float64), *part[[PREFIX + model for model in models]].to_numpy().T]
        for key, mask in {WHOLE: np.ones(len(part), dtype=bool), **of_part}.items():
            if key not in sums:  # every margin holds all tokens
                rows = np.flatnonzero(mask)
                added = [np.bincount(unit[rows], column[rows], minlength=bootstrap.units) for column in columns]
                sums[key] = np.column_stack(added)
    whole = sums.pop(WHOLE)
    scorer = SliceScorer(models, reference, whole[:, 0], whole[:, 1:], by_unit=(bootstrap, effective_documents(n)))
    for key, columns in sums.items():
        scorer.add(key, columns[:, 0], columns[:, 1:])
    return dict(zip([WHOLE, *sums], scorer.results(), strict=True))


def documents_of(cells: pd.DataFrame | CellFile | Margins) -> tuple[np.ndarray, np.ndarray]:
    """Return the documents in the cells, ascending, and the tokens of each."""
    if isinstance(cells, Margins):
        return cells.documents, cells.n
    parts = [
        tally([part["document"].to_numpy()], [], part["n"].to_numpy()) for part in parts_of(cells, ["document", "n"])
    ]
    groups = joined(parts)
    return groups.keys[0], groups.n
