"""Slices: named sets of scored tokens, and what each contributes to the gap of a model to its reference.

For a slice S with share p_S of the scored tokens, a model's contribution is p_S·Δnll_S, and its share of the gap (or of
the lead, where the model is ahead) is the contribution over Δnll. Slices may overlap; the contributions of a partition
add up to Δnll. Everything is computed from sums by document, so that every
figure has its interval.

A token of probability 0 makes the NLL of its slices infinite. Such a figure is None, with a reason, and so are the
differences and shares that need it; the other slices of that model keep theirs.
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
    """Collects slices as sums by document, then scores them all with the same resamples.

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
        """``n [D]`` and ``logprob [D, M]``: scored tokens and sums of log p (nats) of each document.

        ``by_unit``: a bootstrap and its documents' effective number; all sums are then by its units, ``[U]``.
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
        """Return the estimates of each slice in the order added, all tokens first; the reference's come first."""
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
        """Model ``m`` on a slice. ``drawn``: all tokens and the slice in every resample; None for a single document.
        ``whole``: the model on all tokens; None for that slice itself."""
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
        own = ends.contribution if part else None  # a slice without tokens has a part of exactly 0
        if (towards := direction(-delta, gap)) == LEVEL:
            return replace(made, reason=NO_SHARE)
        reason = unresolved(self._bootstrap.documents, self._worth, gap, own)
        share = share_of(-part, -delta, towards)
        return replace(made, share=share, share_ci95=ends.share, reason=reason)

    def _lost(self, logprob: np.ndarray) -> np.ndarray:
        """Log-probs ``[…, M]`` minus the reference's: ±∞ or NaN where one of them is −∞."""
        with np.errstate(invalid="ignore"):
            return logprob - logprob[..., [self.reference]]

    def _resampled(self) -> list["_Drawn"]:
        """Of each slice, its tokens and the differences to the reference in every resample.

        Where these are not finite they count as 0, which nobody reads: the slice has no interval then."""
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
    """None where all resamples go the other way."""


NO_ENDS = _Ends(None, None, None)
"""Of a single document."""


def _intervals(whole: _Drawn, slice_: _Drawn, model: int) -> _Ends:
    """Return every interval of a model on a slice. Nothing else here computes one."""
    delta = whole.lost[:, model] / whole.n  # mean log-prob: negative where the model is worse
    part = slice_.lost[:, model] / whole.n
    some = slice_.n > 0
    on_slice = interval(-slice_.lost[some, model] / slice_.n[some]) if some.any() else None
    towards = np.sign(delta.mean())  # of a gap; the other way, of a lead
    kept = towards * delta > 0
    if not kept.any():
        return _Ends(on_slice, interval(-part), None)
    # Not capped at 1. A resample that goes the other way counts as the largest quotient where the slice does not (it
    # diverges as the gap goes to 0), and has no number where it does.
    value = np.full(len(delta), np.nan)
    value[kept] = part[kept] / delta[kept]
    value[~kept & (towards * part > 0)] = max(value[kept].max(), 1.0)
    return _Ends(on_slice, interval(-part), interval(value[~np.isnan(value)]))


Masks = Callable[[pd.DataFrame], Mapping[Key, np.ndarray]]
"""Of some cells ``[C]``, those of each slice that their keys tell (bool ``[C]``)."""


def slices_of_cells(
    cells: pd.DataFrame | CellFile | Margins, masks: Masks | Mapping[Key, np.ndarray], reference: str
) -> dict[Key, Part]:
    """Return the slices that boolean ``masks`` over the cells select, and first `WHOLE`.

    A function is called with each of the `Margins` in place of the cells, and names the slices that depend on its keys
    alone. A slice that it never names is not there.
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
            if key not in sums:  # every margin gives all tokens
                rows = np.flatnonzero(mask)
                added = [np.bincount(unit[rows], column[rows], minlength=bootstrap.units) for column in columns]
                sums[key] = np.column_stack(added)
    whole = sums.pop(WHOLE)
    scorer = SliceScorer(models, reference, whole[:, 0], whole[:, 1:], by_unit=(bootstrap, effective_documents(n)))
    for key, columns in sums.items():
        scorer.add(key, columns[:, 0], columns[:, 1:])
    return dict(zip([WHOLE, *sums], scorer.results(), strict=True))


def documents_of(cells: pd.DataFrame | CellFile | Margins) -> tuple[np.ndarray, np.ndarray]:
    """The documents in the cells, ascending, and the tokens of each."""
    if isinstance(cells, Margins):
        return cells.documents, cells.n
    parts = [
        tally([part["document"].to_numpy()], [], part["n"].to_numpy()) for part in parts_of(cells, ["document", "n"])
    ]
    groups = joined(parts)
    return groups.keys[0], groups.n
