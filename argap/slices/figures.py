"""Compute how much each slice, a named set of scored tokens, contributes to a model's gap to its reference.

For a slice S with share p_S of the scored tokens, a model's contribution is p_S·Δnll_S, and its share of the gap (or of
the lead, if the model is ahead) is the contribution over Δnll. Slices may overlap; the contributions of a partition
add up to Δnll. All figures are computed from sums by document, and for models trained from several seeds by seed, so
each has an interval: Student-t over documents and seeds, and Fieller's for shares (`argap.metric.influence`).

A token of probability 0 makes the NLL of its slices infinite. Such a figure is None, with a reason, and so are the
differences and shares that depend on it; the model's other slices keep theirs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
from msgspec.structs import replace

from argap.metric.documents import Figures, group_of, units_of
from argap.metric.influence import Estimates, simultaneous
from argap.metric.seeds import OverSeeds, figures_over_seeds, pool_seeds
from argap.metric.share import contains_zero, gap_due_to_ar, perplexity
from argap.records import ALL, INFINITE, Estimate, Interval, Part, SliceInfo
from argap.slices.cells import PREFIX, CellFile, models_of, parts_of
from argap.slices.margins import Margins, sum_margins
from argap.slices.tally import joined, tally

Seeds = Mapping[str, Sequence[str]]
"""The columns of sums of each model: itself, then its further seeds."""
BY_SLICE = ("nll", "delta", "contribution", "share")
"""The fields of `argap.metric.documents.Figures` that have a value per slice."""
PART_UNRESOLVED = "the interval of the slice's part of the gap contains 0"
"""Why a share must not be claimed."""


class Key(NamedTuple):
    """A bin of a partition, as `argap.records.Estimate` names it."""

    partition: str
    bin: str
    repeated: bool | None = None


TOGETHER = 16
"""Models scored at a time, besides the reference: their sums by slice and document take some 15 MB each."""
WHOLE = Key(ALL, ALL)
"""All scored tokens, always the first part."""


@dataclass(frozen=True)
class _Sums:
    key: Key
    n: np.ndarray
    """``[U]``: scored tokens of the slice in each unit."""
    logprob: np.ndarray
    """``[K, U]``: sums of log p."""
    about: SliceInfo | None


class SliceScorer:
    """Collect slices as sums by document, then compute all their figures with intervals.

    A model trained from several seeds has a column of sums for each; its figures are means over them, and intervals
    cover documents and seeds (`argap.metric.seeds`).

    Legend: D documents, U units (documents, or groups of them), M models, K columns: the seeds of all models.
    """

    def __init__(
        self,
        columns: Sequence[str],
        reference: str,
        n: np.ndarray,
        logprob: np.ndarray,
        *,
        seeds: Seeds | None = None,
    ) -> None:
        """Start with all tokens: ``n [D]`` and ``logprob [D, K]``, scored tokens and sums of log p (nats) by document.

        Sums may be by unit (`argap.metric.documents.group_of`) instead, ``[U]``. ``seeds``: the columns of each model,
        its own first; None: every column is a model.
        """
        of_model = {name: (name,) for name in columns} if seeds is None else seeds
        number = {name: k for k, name in enumerate(columns)}
        self._columns = {model: [number[name] for name in names] for model, names in of_model.items()}
        self.reference = reference
        self._slices: list[_Sums] = []
        self.add(WHOLE, n, logprob)

    def add(self, key: Key, n: np.ndarray, logprob: np.ndarray, *, about: SliceInfo | None = None) -> None:
        """Add the slice of ``n [D]`` tokens with sums of log p ``logprob [D, K]``."""
        columns = [n, *logprob.T]
        if len(n) > units_of(len(n)):
            unit = group_of(len(n))
            columns = [np.bincount(unit, column, units_of(len(n))) for column in columns]
        self._slices.append(_Sums(key, columns[0], np.stack(columns[1:]), about))

    def results(self, *, together: str | None = None) -> list[Part]:
        """Return one part per slice: all tokens, then slices as added. The reference is each part's first model.

        ``together``: the start of the names of bins that are looked at as one list; the intervals of their
        contributions hold simultaneously (`argap.metric.influence`).
        """
        n = np.stack([each.n for each in self._slices]).astype(np.float64)
        logprob = np.stack([each.logprob for each in self._slices]).astype(np.float64)
        several = [logprob[:, of] for of in self._columns.values() if len(of) > 1]
        pool = pool_seeds(several) if several else None
        widened = np.array([together is not None and each.key.bin.startswith(together) for each in self._slices])
        theirs = logprob[:, self._columns[self.reference]]
        found: dict[str, list[Estimate]] = {}
        for model in sorted(self._columns, key=lambda model: model != self.reference):
            over = figures_over_seeds(n, logprob[:, self._columns[model]], theirs, pool)
            figures = over.figures
            if widened.any() and model != self.reference:
                figures = figures._replace(contribution=_widened(over, widened))
            found[model] = [
                self._estimate(each.key, float(n[k].sum()), float(n[0].sum()), model, _at(figures, k))
                for k, each in enumerate(self._slices)
            ]
        return [Part([found[model][k] for model in found], each.about) for k, each in enumerate(self._slices)]

    def _estimate(self, key: Key, n: float, total: float, model: str, of: Figures) -> Estimate:
        """Return the estimate of a model on a slice of ``n`` of the ``total`` tokens."""
        nll = _number(of.nll.value)
        made = Estimate(
            model,
            key.partition,
            key.bin,
            round(n),
            n / total,
            nll=nll,
            ppl=None if nll is None else perplexity(nll),
            repeated=key.repeated,
        )
        part, gap = _number(of.contribution.value), _number(of.gap.value)
        if model == self.reference:
            return made
        if part is None:
            return replace(made, reason=INFINITE)
        made = replace(
            made,
            delta=(_number(of.delta.value) or 0.0) + 0.0,
            delta_ci95=_ends(of.delta),
            contribution=part + 0.0,
            contribution_ci95=_ends(of.contribution),
        )
        on_slice = -part / made.share_of_tokens if n else 0.0
        rule = gap_due_to_ar(on_slice, -np.inf if gap is None else -gap, made.share_of_tokens)
        made = replace(made, paper_rule=rule.value)
        if gap is None:
            return replace(made, reason=INFINITE)
        if key == WHOLE:
            made = replace(made, worth=float(of.worth))
        share, reason = _number(of.share.value), str(of.share.reason) or None
        if reason is None and part and contains_zero(made.contribution_ci95):
            reason = PART_UNRESOLVED
        return replace(made, share=share, share_ci95=_ends(of.share), reason=reason)


def _widened(over: OverSeeds, chosen: np.ndarray) -> Estimates:
    """Replace the intervals of the ``chosen`` contributions (bool ``[S]``) by simultaneous ones."""
    wide, all_of = simultaneous(over.contribution.of(chosen)).estimates, over.figures.contribution
    low, high = all_of.low.copy(), all_of.high.copy()
    low[chosen], high[chosen] = wide.low, wide.high
    return all_of._replace(low=low, high=high)


def _at(figures: Figures, k: int) -> Figures:
    """Return the figures of one slice."""
    chosen = {name: Estimates(*(each[k] for each in getattr(figures, name))) for name in BY_SLICE}
    return figures._replace(**chosen)


def _number(value: np.ndarray) -> float | None:
    """Return a figure, or None if it is NaN."""
    return None if np.isnan(value) else float(value)


def _ends(of: Estimates) -> Interval | None:
    """Return the interval of a figure, if it has one."""
    return None if np.isnan(of.low) else (float(of.low), float(of.high))


Masks = Callable[[pd.DataFrame], Mapping[Key, np.ndarray]]
"""A function from cells ``[C]`` to the cells (bool ``[C]``) of each slice that their keys determine."""


def slices_of_cells(
    cells: pd.DataFrame | CellFile | Margins,
    masks: Masks | Mapping[Key, np.ndarray],
    reference: str,
    *,
    seeds: Seeds | None = None,
    together: str | None = None,
) -> dict[Key, Part]:
    """Score `WHOLE`, then the slices that boolean ``masks`` over the cells select.

    If ``masks`` is a function, it is called with each of the `Margins` instead of the cells and returns the slices that
    depend only on that margin's keys. Slices that it never returns are missing from the result. ``seeds``,
    ``together``: as in `SliceScorer`.
    """
    documents, n = documents_of(cells)
    if callable(masks):
        margins = cells if isinstance(cells, Margins) else sum_margins(cells, documents, n)
        chosen = [(part, part["unit"].to_numpy(), masks(part)) for part in margins.frames()]
    else:
        assert isinstance(cells, pd.DataFrame)
        unit = group_of(len(documents))[np.searchsorted(documents, cells["document"].to_numpy())]
        chosen = [(cells, unit, masks)]
    models = models_of(cells)
    others = [model for model in models if model != reference]
    together_at_most = len(models) if seeds else TOGETHER  # seeds of different models are pooled
    scored: dict[Key, Part] = {}
    for start in range(0, max(1, len(others)), together_at_most):
        some = [reference, *others[start : start + together_at_most]]
        names = [model for model in models if model in some]
        of_some = _scored_together(chosen, names, reference, units_of(len(documents)), seeds, together)
        for key, part in of_some.items():
            before = [] if key not in scored else [*scored[key].estimates.values()]
            scored[key] = Part([*before, *[*part.estimates.values()][1 if before else 0 :]], part.about)
    return scored


def _scored_together(
    chosen: Sequence[tuple[pd.DataFrame, np.ndarray, Mapping[Key, np.ndarray]]],
    models: Sequence[str],
    reference: str,
    units: int,
    seeds: Seeds | None,
    together: str | None,
) -> dict[Key, Part]:
    """Score `WHOLE` and the slices of some models; ``chosen``: cells, the unit of each, and the cells of each slice."""
    sums: dict[Key, list[np.ndarray]] = {}
    for part, unit, of_part in chosen:
        columns = [part["n"].to_numpy(dtype=np.float64), *part[[PREFIX + model for model in models]].to_numpy().T]
        for key, mask in {WHOLE: np.ones(len(part), dtype=bool), **of_part}.items():
            if key not in sums:  # every margin holds all tokens
                rows = np.flatnonzero(mask)
                sums[key] = [np.bincount(unit[rows], column[rows], minlength=units) for column in columns]
    whole, *added = sums.pop(WHOLE)
    scorer = SliceScorer(models, reference, whole, np.column_stack(added), seeds=seeds)
    keys = [WHOLE, *sums]
    for key in keys[1:]:
        n, *added = sums.pop(key)  # each is in memory once
        scorer.add(key, n, np.column_stack(added))
    return dict(zip(keys, scorer.results(together=together), strict=True))


def documents_of(cells: pd.DataFrame | CellFile | Margins) -> tuple[np.ndarray, np.ndarray]:
    """Return the documents in the cells, ascending, and the tokens of each."""
    if isinstance(cells, Margins):
        return cells.documents, cells.n
    parts = [
        tally([part["document"].to_numpy()], [], part["n"].to_numpy()) for part in parts_of(cells, ["document", "n"])
    ]
    groups = joined(parts)
    return groups.keys[0], groups.n
