"""Compare recall of random pairs in MQAR with AR gaps on text: does the one predict the other?"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from argap.records import Gap
from argap.reports.tables.formats import Table
from argap.reports.tables.numbers import percent, signed, signed_range
from argap.synthetics.sweeps.selection import SOLVED, best_runs

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


class LinkRow(NamedTuple):
    """A mixer with both measurements."""

    name: str
    accuracies: tuple[float, ...]
    """On the test set of each cell of the sweep, at the rate that its validation set chose."""
    gap: float
    """ΔNLL on the AR hits of the text, in nats."""
    ci95: tuple[float, float] | None

    @property
    def mean(self) -> float:
        """Return the mean accuracy over the cells."""
        return sum(self.accuracies) / len(self.accuracies)


def cells_of(runs: pd.DataFrame) -> list[tuple[int, int]]:
    """Return each length and width of a sweep that every mixer has."""
    of = runs.groupby("name")[["length", "width"]].apply(lambda rows: set(rows.itertuples(index=False, name=None)))
    return sorted(set.intersection(*of))


def link_rows(runs: pd.DataFrame, gaps: Sequence[Gap]) -> tuple[list[LinkRow], list[tuple[int, int]]]:
    """Return the mixers that both the sweep and one of ``gaps`` have, by AR gap, and the cells that they all have.

    A mixer has the gap of the first of ``gaps`` with it. The gaps must share reference and text. The reference, whose
    gap is 0 by definition, is not among them.
    """
    found = {}
    for name in dict.fromkeys(runs["name"]):
        gap = next((gap for gap in gaps if name in [row.model for row in gap.compared]), None)
        if gap is not None and (hits := gap.on_hits[name]).delta is not None:
            found[name] = hits.delta, hits.delta_ci95
    if not found:
        return [], []
    runs = runs.loc[runs["name"].isin(list(found))]
    best, cells = best_runs(runs).set_index(["name", "length", "width"])["accuracy"].to_dict(), cells_of(runs)
    rows = [LinkRow(name, tuple(best[name, *cell] for cell in cells), *gap) for name, gap in found.items()]
    return sorted(rows, key=lambda row: row.gap), cells


def correlations(rows: Sequence[LinkRow]) -> list[RankCorrelation | None]:
    """Return the correlation of error with AR gap in each cell, then of the mean error.

    Accuracies from `SOLVED` on are ties, because training ends soon after it.
    """
    gaps = [row.gap for row in rows]
    errors = [[1 - min(x, SOLVED) for x in each] for each in zip(*(row.accuracies for row in rows), strict=True)]
    means = [sum(each) / len(each) for each in zip(*errors, strict=True)]
    return [rank_correlation(each, gaps) for each in [*errors, means]]


def link_table(rows: Sequence[LinkRow], cells: Sequence[tuple[int, int]]) -> Table:
    """Return a row per mixer, and the rank correlation of each column with the AR gap below."""
    titles = ("Mixer", "AR hits, ΔNLL", "95% interval", *(f"N {n}, width {w}" for n, w in cells), "Mean")
    body = [
        (
            row.name,
            signed(row.gap),
            signed_range(row.ci95),
            *(percent(accuracy) for accuracy in (*row.accuracies, row.mean)),
        )
        for row in rows
    ]
    found = correlations(rows)
    body.append(("Spearman's ρ of error and gap", "", "", *(_rho(each) for each in found)))
    note = (
        f"MQAR accuracy on the test set beside the gap to the reference on AR hits of text, in nats; {len(rows)} "
        "mixers. Intervals of ρ (Bonett and Wright) take the mixers as a sample of independent ones, which they are "
        f"not: read them as at least so wide. For ρ accuracies of {percent(SOLVED, 0)} and more are ties."
    )
    return Table(titles, body, (note,))


def _rho(found: RankCorrelation | None) -> str:
    if found is None:
        return "—"
    ends = "" if found.ci95 is None else f" ({found.ci95[0]:.2f} to {found.ci95[1]:.2f})"
    return f"{found.rho:.2f}{ends}".replace("-", "−")
