"""The relation between recall gaps and AR gaps across models.

Golds are often further back than the AR hits of running text, and a model may recall what is near but not what is far,
as with a window. The AR gap is therefore also computed at the distances of the golds, by direct standardisation: the
gaps on the hits at each distance are weighted by the share of examples whose gold is that far back.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import asdict

from argap.errors import ArgapError
from argap.recall.scores import DISTANCES, NOT_IN_PROMPT, Score, bin_names
from argap.records import Record, read_gap
from argap.slices.cells import PREFIX, CellFile, ar_hits, models_of, sum_by, sum_cells

LEAST = 3
"""Minimum number of models for a correlation."""


class ArNll(NamedTuple):
    """One model's NLL on the AR hits of a text, in nats."""

    mean: float
    by_distance: Mapping[str, float] = {}
    """By those bins of `argap.recall.scores.Score.by_distance` that hold hits."""


class LinkPoint(Record, frozen=True):
    """One model's gaps to the reference."""

    model: str
    ar_gap_nll: float
    """On the AR hits, in nats."""
    recall_gap: float
    gold_gap_nll: float | None = None
    """On the tokens of the golds, in nats; None without log-probs (the copy baseline), and if the file omits it."""
    ar_gap_at_distances: float | None = None
    """On the AR hits, reweighted to the golds' distances, in nats; None if a gold is farther back than every hit of the
    text, and if the file omits it."""


class Correlations(Record, frozen=True):
    """Correlations across models of AR gaps with gaps on a task.

    None for fewer than `LEAST` models, and if one of the gaps does not vary.
    """

    pearson: float | None = None
    """With the recall gaps."""
    spearman: float | None = None
    pearson_gold: float | None = None
    """With the gaps on the golds' tokens, which vary even where hardly any model answers."""
    spearman_gold: float | None = None


class GapLink(Record, frozen=True):
    """The models' recall gaps on one task beside their AR gaps."""

    task: str
    points: list[LinkPoint]
    pearson: float | None
    """Of ``ar_gap_nll``, as are the other three of `Correlations`."""
    spearman: float | None
    pearson_gold: float | None = None
    spearman_gold: float | None = None
    at_distances: Correlations = Correlations()
    """Of ``ar_gap_at_distances``."""


def read_ar_nlls(folder: Path, reference: str | None) -> dict[str, ArNll]:
    """Read each model's NLL on the AR hits in a folder with ``gap.json`` and ``cells.parquet``.

    A suite's further seeds are included. Raises `ArgapError` without a reference, against which recall gaps are
    measured, and `FormatError` for a broken file.
    """
    if reference is None:
        raise ArgapError(f"`gap` {folder}: the recall gap needs a reference; name it with `reference`")
    gap, path = read_gap(folder), folder / "cells.parquet"
    models = models_of(CellFile(path))
    sums = sum_cells(path, ["repeated", "frequency", "distance"], models, gap)
    lowest = np.array([each.low for each in gap.bins.distance])[sums["distance"]]
    sums["bin"] = np.array(bin_names(DISTANCES))[np.searchsorted(DISTANCES, lowest)]
    hits = sum_by(sums.loc[ar_hits(sums, gap.threshold, gap.bins)], ["bin"]).to_dict("list")
    nlls = {}
    for model in models if hits["n"] else ():
        lost = [-logprob for logprob in hits[PREFIX + model]]
        by_distance = {name: own / n for name, own, n in zip(hits["bin"], lost, hits["n"], strict=True)}
        nlls[model] = ArNll(sum(lost) / sum(hits["n"]), by_distance)
    return nlls


def link_to_gap(scores: Sequence[Score], ar_nlls: Mapping[str, ArNll], reference: str) -> list[GapLink]:
    """Pair the recall gap of each model with its AR gap, for each task; models without an AR gap are skipped."""
    links = []
    for task in dict.fromkeys(row.task for row in scores):
        rows = {row.model: row for row in scores if row.task == task and row.model in ar_nlls}
        if reference not in rows:
            continue
        against, points = rows.pop(reference), []
        for model, row in rows.items():
            gold = None if row.gold_nll is None or against.gold_nll is None else row.gold_nll - against.gold_nll
            own, other = ar_nlls[model], ar_nlls[reference]
            recall_gap, ar_gap = against.contains - row.contains, own.mean - other.mean
            points.append(LinkPoint(model, ar_gap, recall_gap, gold, _at_distances(against, own, other)))
        plain = _correlations(points, [point.ar_gap_nll for point in points])
        at_distances = _correlations(points, [point.ar_gap_at_distances for point in points])
        links.append(GapLink(task, points, **asdict(plain), at_distances=at_distances))
    return links


def _at_distances(row: Score, own: ArNll, other: ArNll) -> float | None:
    """Compute the gap between two models on AR hits, reweighted to the distances of the golds in ``row``'s prompts.

    None if the hits lack one of the distances.
    """
    examples = {group.bin: group.n for group in row.by_distance if group.bin != NOT_IN_PROMPT}
    if not examples or not examples.keys() <= own.by_distance.keys() & other.by_distance.keys():
        return None
    gaps = sum(n * (own.by_distance[name] - other.by_distance[name]) for name, n in examples.items())
    return gaps / sum(examples.values())


def _correlations(points: Sequence[LinkPoint], ar_gaps: Sequence[float | None]) -> Correlations:
    """Correlate ``ar_gaps``, one for each point, with the gaps of the points."""
    recall, golds = ([getattr(point, name) for point in points] for name in ("recall_gap", "gold_gap_nll"))
    return Correlations(*_correlate(ar_gaps, recall), *_correlate(ar_gaps, golds))


def _correlate(x: Sequence[float | None], y: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Compute Pearson's and Spearman's correlation over the pairs without a None.

    None for fewer than `LEAST` pairs, and if a side does not vary.
    """
    from scipy.stats import pearsonr, spearmanr

    pairs = [pair for pair in zip(x, y, strict=True) if None not in pair]
    if len(pairs) < LEAST or any(len(set(side)) < 2 for side in zip(*pairs, strict=True)):
        return None, None
    x, y = zip(*pairs, strict=True)
    return float(pearsonr(x, y).statistic), float(spearmanr(x, y).statistic)  # pyright: ignore
