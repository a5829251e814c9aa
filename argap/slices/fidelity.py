"""Sum over the tokens how closely models follow the reference: for a whole result, and slice by slice."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from argap.errors import ArgapError
from argap.metric.documents import units_among
from argap.metric.fidelity import STORED, SUMMED, Spread, fidelity
from argap.records import ALL, AR_HITS, OTHER, SLICE, Fidelity, Gap
from argap.records.columns import FOLLOWED
from argap.slices.conditions import COPIED_AS, hits_of
from argap.slices.of_tokens import Slice, bin_of, checked
from argap.slices.sums import sums
from argap.tokens.portions import Portion
from argap.tokens.runs import Run
from argap.tokens.table import TokenTable


class Compared(NamedTuple):
    """A model beside the reference in one portion. Legend: C measures, U units of documents."""

    sums: np.ndarray
    """``[C, U]``."""
    absolute: np.ndarray
    """float32: |Δ log p| of each scored token."""


class Followed:
    """All models beside the reference on all scored tokens, added up portion by portion."""

    def __init__(self, table: TokenTable) -> None:
        """Prepare for the runs of ``table``, the reference first. Nothing is summed if they hold segments."""
        n = table.scored_of_document
        self._reference, *others = table.runs
        self._others = others if table.record.evaluation.unit == "token" else []
        self._measures = [measures_of(run, self._reference) for run in self._others]
        self._unit, units = units_among(n)
        self._n = np.bincount(self._unit[n > 0], n[n > 0], units)
        self._sums = [np.zeros((len(names), len(self._n))) for names in self._measures]
        self._spread = [Spread() for _ in self._others]

    def compare(self, portion: Portion) -> list[Compared]:
        """Compare each model in a portion; may run in several threads."""
        rows = np.flatnonzero(portion.labels.scored)
        unit = self._unit[portion.labels.document_of_window[portion.labels.window[rows]]]
        made = []
        for run, names in zip(self._others, self._measures, strict=True):
            found = portion.beside(run.model, self._reference.model)
            table = [np.bincount(unit, found[name][rows], len(self._n)) for name in names]
            made.append(Compared(np.array(table), found["absolute"][rows].astype(np.float32)))
        return made

    def add(self, compared: Sequence[Compared]) -> None:
        """Add the models of a portion."""
        for k, each in enumerate(compared):
            with np.errstate(invalid="ignore"):  # ∞ − ∞
                self._sums[k] += each.sums
            self._spread[k].add(each.absolute)

    def results(self) -> tuple[Fidelity, ...]:
        """Return the figures of each model on all scored tokens."""
        found = []
        for run, names, table, spread in zip(self._others, self._measures, self._sums, self._spread, strict=True):
            by_name = dict(zip(names, table, strict=True))
            whole = {"n": self._n.sum(), "kl": by_name["kl"].sum() if "kl" in by_name else 0.0}
            quantiles = spread.quantiles()
            found.append(fidelity(run.model, ALL, self._n, by_name, of_all=whole, quantiles=quantiles))
        return tuple(found)


def measures_of(run: Run, reference: Run) -> tuple[str, ...]:
    """Return what is summed for a run: KL only if it is from this reference, entropies where they are stored."""
    own, theirs = run.record.identity, reference.record.identity
    known = {"entropy": own.entropy, "reference_entropy": theirs.entropy, "kl": False}
    if own.kl is not None:
        asked = own.kl.checkpoint, own.kl.dtype, own.kl.backend, own.kl.bos
        known["kl"] = asked == (theirs.checkpoint, theirs.dtype, theirs.backend, theirs.bos)
    return (*SUMMED, *(name for name in STORED if known[name]))


def score_fidelity(
    table: TokenTable, slices: Sequence[Slice], *, threshold: int | None, by: str | None = None
) -> list[Fidelity]:
    """Return the figures of each model on all tokens, the AR hits and ``slices``, in one pass over the tokens.

    ``by``: a column (`argap.slices.of_tokens.grouped`); each of its values is one more slice. Raises as
    `argap.slices.of_tokens.score_slices`, but for slices without tokens, whose figures are None.
    """
    reference, *others = table.runs
    if table.record.evaluation.unit == "byte":
        raise ArgapError("fidelity: the models' tokenizers differ, so their tokens cannot be compared one by one")
    conditions = {each.name: checked(table, each.where) for each in (Slice(AR_HITS, hits_of(threshold)), *slices)}
    unit, units = units_among(table.scored_of_document)
    measures = [measures_of(run, reference) for run in others]
    columns = [f"{FOLLOWED}{name} {m}" for m, names in enumerate(measures, 1) for name in names]
    made = sums(table, conditions, unit, units, by=by, values=columns)
    parts = [(ALL, made.whole), *zip(conditions, made.slices, strict=True)]
    parts += [(bin_of(table, by, value).name, each) for value, each in made.values.items()] if by else []
    found, start = [], 0
    for run, names in zip(others, measures, strict=True):
        number = dict(zip(names, range(start, start + len(names)), strict=True))
        start += len(names)
        total = {"n": made.whole.n.sum(), "kl": made.whole.logprob[:, number["kl"]].sum() if "kl" in number else 0.0}
        for name, each in parts:
            by_name = {key: each.logprob[:, k] for key, k in number.items()}
            found.append(fidelity(run.model, name, each.n, by_name, of_all=total))
    return found


def bin_slices(gap: Gap, by: str) -> list[Slice]:
    """Return the bins of a partition of ``gap.json`` as slices; none if it is a column of the tokens."""
    if by == SLICE:
        return [Slice(OTHER, f"NOT ({hits_of(gap.threshold)})")]
    if by in COPIED_AS:
        return [Slice(name, where) for name, where in COPIED_AS[by].items()]
    column = {"frequency": "train_count", "distance": "distance", "position": "pos"}.get(by)
    if column is None:
        return []
    return [
        Slice(each.label, f"{column} >= {each.low}" + ("" if each.high is None else f" AND {column} <= {each.high}"))
        for each in getattr(gap.bins, by)
    ]
