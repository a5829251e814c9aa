"""Slices: named sets of scored tokens, and what each contributes to the gap of a model to its reference.

For a slice S with share p_S of the scored tokens, a model's contribution is p_S·Δnll_S, and the "% of gap due to S" is
its contribution over the gap (`argap.metric.share.gap_due_to_ar`, with S in the place of the AR hits). Slices may
overlap; the contributions of a partition add up to the gap. Everything is computed from sums by document, so that every
figure has its interval.

A token of probability 0 makes the NLL of its slices infinite. Such a figure is None, with a reason, and so are the
differences and shares that need it; the other slices of that model keep theirs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import msgspec
import numpy as np
import pandas as pd

from argap.metric.intervals import DocumentBootstrap, effective_documents, interval, unresolved
from argap.metric.share import gap_due_to_ar, perplexity
from argap.records import INFINITE, Delta, GapShare, Interval, ModelOnSlice, SliceResult
from argap.slices.cells import PREFIX, CellFile, models_of, parts_of
from argap.slices.margins import Margins, sum_margins
from argap.slices.tally import joined, tally

ALL = "all"
"""The slice of all scored tokens, always there."""
UNRESOLVED = 0.025
"""Share of resamples without a gap above which a share of the gap has no interval."""


@dataclass(frozen=True)
class _Sums:
    name: str
    where: str | None
    n: np.ndarray
    """``[U]``: scored tokens of the slice in each unit."""
    logprob: np.ndarray
    """``[U, M]``: sums of log p."""
    title: str
    note: str
    ar_hits: int | None


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
        self.add(ALL, n, logprob)

    def add(
        self,
        name: str,
        n: np.ndarray,
        logprob: np.ndarray,
        *,
        where: str | None = None,
        title: str = "",
        note: str = "",
        ar_hits: int | None = None,
    ) -> None:
        """Add the slice of ``n [D]`` tokens with sums of log p ``logprob [D, M]``.

        ``where``, ``title``, ``note``: the condition that selects it and words on it, for people. ``ar_hits``: how many
        of its tokens are AR hits.
        """
        columns = np.column_stack([n, logprob])
        columns = columns if self._folded else self._bootstrap.by_unit(columns)
        self._slices.append(_Sums(name, where, columns[:, 0], columns[:, 1:], title, note, ar_hits))

    def results(self) -> list[SliceResult]:
        """The figures of each slice in the order added; the first is `ALL`."""
        whole = self._slices[0]
        total, delta = whole.n.sum(), self._lost(whole.logprob.sum(axis=0)) / whole.n.sum()
        drawn = self._resampled() if self._bootstrap.documents > 1 else None
        results: list[SliceResult] = []
        for k, each in enumerate(self._slices):
            n, sums = each.n.sum(), each.logprob.sum(axis=0)
            part = self._lost(sums) / total
            share = float(n / total)
            figures = []
            for m, model in enumerate(self.models):
                infinite = sums[m] == -np.inf
                nll = float(-sums[m] / n) if n and not infinite else None
                on_slice = contribution = due = None
                if m != self.reference:
                    resampled = None if drawn is None else (drawn[0], drawn[k])
                    on_slice, contribution, due = _gap(part[m], delta[m], share, resampled, m)
                    due = self._judged(due, contribution, results[0].models[m].contribution if k else contribution)
                figures.append(
                    ModelOnSlice(
                        model=model,
                        reference=m == self.reference,
                        nll=nll,
                        ppl=None if nll is None else perplexity(nll),
                        delta=on_slice,
                        contribution=contribution,
                        gap_due_to=due,
                        reason=INFINITE if infinite else None,
                    )
                )
            hits = each.ar_hits / float(n) if n and each.ar_hits is not None else None
            results.append(
                SliceResult(
                    each.name, each.where, round(n), share, tuple(figures), hits, title=each.title, note=each.note
                )
            )
        return results

    def _lost(self, logprob: np.ndarray) -> np.ndarray:
        """Log-probs ``[…, M]`` minus the reference's: ±∞ or NaN where one of them is −∞."""
        with np.errstate(invalid="ignore"):
            return logprob - logprob[..., [self.reference]]

    def _judged(self, due: GapShare, part: Delta | None, whole: Delta | None) -> GapShare:
        """``due``, with the reason why it must not be claimed. ``whole``: the gap on all tokens."""
        reason = INFINITE if due.case == "infinite" else None
        if due.value is not None:
            ends = part.ci95 if part and part.nll else None  # a slice without tokens has a part of exactly 0
            reason = unresolved(self._bootstrap.documents, self._worth, whole and whole.ci95, ends)
        return msgspec.structs.replace(due, unresolved=reason)

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


def _gap(
    part: float, delta: float, share: float, drawn: tuple[_Drawn, _Drawn] | None, model: int
) -> tuple[Delta | None, Delta | None, GapShare]:
    """ΔNLL on the slice, its contribution, and its share of the gap; None for those that are not finite.

    ``part``, ``delta``: mean log-prob of the model minus the reference's, summed over the slice and over all tokens,
    each over the number of all tokens. ``drawn``: all tokens and the slice; None for a single document.
    """
    part, delta = float(part), float(delta)
    on_slice = part / share if share else 0.0
    value, raw, case = gap_due_to_ar(on_slice, delta, share)
    unknown = None, None, None, "a single document"
    of_slice, of_part, of_share, reason = unknown if drawn is None else _intervals(*drawn, model)
    due = GapShare(value, raw, case, of_share, reason)
    if case == "infinite":
        due = GapShare(None, None, case, None, INFINITE)
        if not isfinite(part):
            return None, None, due
    return Delta(-on_slice + 0.0, of_slice), Delta(-part + 0.0, of_part), due


def _intervals(
    whole: _Drawn, slice_: _Drawn, model: int
) -> tuple[Interval | None, Interval | None, Interval | None, str | None]:
    """Of ΔNLL on the slice, of its contribution and of its share of the gap; why the last has none."""
    delta = whole.lost[:, model] / whole.n  # mean log-prob: negative where the model is worse
    part = slice_.lost[:, model] / whole.n
    some = slice_.n > 0
    on_slice = interval(-slice_.lost[some, model] / slice_.n[some]) if some.any() else None
    gap = delta < 0
    if np.mean(~gap) > UNRESOLVED:
        return on_slice, interval(-part), None, "gap not resolved"
    # Not capped at 1. A resample without a gap counts as the largest quotient where the slice is worse (it diverges as
    # the gap goes to 0), and has no number where it is not.
    value = np.full(len(delta), np.nan)
    value[gap] = part[gap] / delta[gap]
    value[~gap & (part < 0)] = max(value[gap].max(), 1.0)
    return on_slice, interval(-part), interval(value[~np.isnan(value)]), None


Masks = Callable[[pd.DataFrame], Mapping[str, np.ndarray]]
"""Of some cells ``[C]``, those of each slice that their keys tell (bool ``[C]``)."""


def slices_of_cells(
    cells: pd.DataFrame | CellFile | Margins, masks: Masks | Mapping[str, np.ndarray], reference: str
) -> list[SliceResult]:
    """The slices that boolean ``masks`` over the cells select; the first result is `ALL`.

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
    sums: dict[str, np.ndarray] = {}
    for part, unit, of_part in chosen:
        columns = [part["n"].to_numpy(dtype=np.float64), *part[[PREFIX + model for model in models]].to_numpy().T]
        for name, mask in {ALL: np.ones(len(part), dtype=bool), **of_part}.items():
            if name not in sums:  # every margin gives all tokens
                rows = np.flatnonzero(mask)
                added = [np.bincount(unit[rows], column[rows], minlength=bootstrap.units) for column in columns]
                sums[name] = np.column_stack(added)
    whole = sums.pop(ALL)
    scorer = SliceScorer(models, reference, whole[:, 0], whole[:, 1:], by_unit=(bootstrap, effective_documents(n)))
    for name, columns in sums.items():
        scorer.add(name, columns[:, 0], columns[:, 1:])
    return scorer.results()


def documents_of(cells: pd.DataFrame | CellFile | Margins) -> tuple[np.ndarray, np.ndarray]:
    """The documents in the cells, ascending, and the tokens of each."""
    if isinstance(cells, Margins):
        return cells.documents, cells.n
    parts = [
        tally([part["document"].to_numpy()], [], part["n"].to_numpy()) for part in parts_of(cells, ["document", "n"])
    ]
    groups = joined(parts)
    return groups.keys[0], groups.n
