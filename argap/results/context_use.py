"""Compute the context-use curve of each model: its loss on the same tokens with more and more context.

Tokens are those with at least the longest short context before them, so each point's context is what its name says: a
short context of K tokens gives each from ⌈K/2⌉ to K − 1 of them (`argap.evaluation.windows`), the whole window all.
"""

from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing

import numpy as np

from argap.metric.documents import units_among
from argap.metric.influence import estimates, ratio
from argap.records import ContextUse, Interval
from argap.tokens.rows import read_rows
from argap.tokens.runs import check_parts, short_passes
from argap.tokens.table import TokenTable
from argap.tokens.weights import stored_weights

Point = tuple[str, int | None]
"""A model and its context; None: the whole window."""


def context_use(table: TokenTable) -> tuple[ContextUse, ...]:
    """Return the points of the curves of the models with passes over short contexts; empty without any.

    Intervals are Student-t over documents; those of differences are of the paired difference. Raises `FormatError` for
    damaged files.
    """
    runs = {}
    for run in table.runs:
        if passes := short_passes(run.folder, run.record.identity):
            runs |= {(run.model, context): each for context, each in passes.items()} | {(run.model, None): run}
    if not runs:
        return ()
    for run in runs.values():
        check_parts(run)
    least = max(context for _, context in runs if context)
    unit, units = units_among(table.scored_of_document)
    n, logprob = np.zeros(units), defaultdict(lambda: np.zeros(units))
    of_runs, of_labels = [["logprob"]] * len(runs), stored_weights(table.record.evaluation)
    read = read_rows([run.folder for run in runs.values()], table.labels, of_runs=of_runs, of_labels=of_labels)
    with closing(read) as portions:
        for rows in portions:
            chosen = np.flatnonzero(rows.pos >= least)
            of_token = unit[table.document_of_window[rows.window[chosen]]]
            n += np.bincount(of_token, minlength=units)
            for point, values in zip(runs, rows.runs, strict=True):
                logprob[point] += np.bincount(of_token, values["logprob"].to_numpy()[chosen], minlength=units)
    table.check_unchanged()
    return tuple(_point(point, n, logprob, table.models[0]) for point in runs)


def _point(point: Point, n: np.ndarray, logprob: Mapping[Point, np.ndarray], reference: str) -> ContextUse:
    """Return a point from the tokens ``n [U]`` and the sums of log p ``[U]`` of all points."""
    model, context = point
    nll = _mean(-logprob[point], n)
    gain = delta = None, None
    if context is not None:
        gain = _mean(logprob[model, None] - logprob[point], n)
    if model != reference and (reference, context) in logprob:
        delta = _mean(logprob[reference, context] - logprob[point], n)
    return ContextUse(model, context, round(n.sum()), *nll, *gain, *delta)


def _mean(sums: np.ndarray, n: np.ndarray) -> tuple[float | None, Interval | None]:
    """Return the mean over the tokens of units, and its interval over units; None if a sum is not finite."""
    of = estimates(ratio(sums, n))
    ends = None if np.isnan(of.low) else (float(of.low), float(of.high))
    return None if np.isnan(of.value) else float(of.value), ends
