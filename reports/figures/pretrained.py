"""Draw how well trained models recall random pairs (`argap synthetics score`, and a suite's ``mqar``)."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from argap.files.atomic import write_json
from argap.records import Interval, as_json
from argap.reports.figures.drawing import (
    WIDTH,
    accuracy_axis,
    highlight,
    legend_of_models,
    log_axis,
    powers,
    save,
    style,
)
from argap.reports.figures.hover import tell
from argap.reports.tables.numbers import percent, perplexity
from argap.reports.tables.provenance import between_pairs
from argap.synthetics.pretrained.records import PretrainedScores, ScoreRow

METRICS = (("ppl", "Perplexity of the answers"), ("accuracy", "Accuracy of the answers"))


@style()
def pretrained_figure(scores: PretrainedScores) -> Figure:
    """Draw perplexity and accuracy of the answers against the number of KV pairs, with 95% intervals.

    This is the form of figure 7 of arXiv 2312.04927. With more models than colours, the three with the lowest and the
    three with the highest perplexity are in colour.
    """
    rows = [row for row in scores.rows if row.slice == "ar"]
    names = scores.models
    look = highlight(names, _extremes(rows, names))
    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    for (metric, label), axes in zip(METRICS, figure.subplots(1, len(METRICS)), strict=True):
        _tell_pairs(axes, rows, metric, names)
        for name in names:
            chosen = [row for row in rows if row.model == name]
            at = [row.pairs for row in chosen]
            values = np.array([getattr(row, metric) for row in chosen])
            low, high = np.array([getattr(row, f"{metric}_ci95") for row in chosen]).T
            beyond = np.maximum((values - low, high - values), 0)  # an interval may lie beside its value
            axes.errorbar(at, values, beyond, markersize=4.5, linewidth=look[name].width, **look[name].curve)
        axes.set_title(label)
        powers(axes, sorted({row.pairs for row in rows}))
        if metric == "accuracy":
            accuracy_axis(axes, min(1.0, max(0.1, 1.1 * max(row.accuracy_ci95[1] for row in rows))))
        else:
            log_axis(axes)
    between = "text" if scores.text else between_pairs(scores)
    figure.supxlabel(f"Pairs in {scores.length:,} tokens of {between}", fontsize=9)
    legend_of_models(figure, look)
    return figure


def _extremes(rows: list[ScoreRow], names: list[str]) -> list[str]:
    """Return the three models with the lowest and the three with the highest perplexity, over all numbers of pairs."""
    losses = {name: sum(np.log(row.ppl) for row in rows if row.model == name) for name in names}
    order = sorted(names, key=lambda name: losses[name])
    return [*order[:3], *order[-3:]]


def _tell_pairs(axes: Axes, rows: list[ScoreRow], metric: str, names: list[str]) -> None:
    """Register every model's value and interval at each number of pairs."""
    at = sorted({row.pairs for row in rows})
    found = {(row.model, row.pairs): (getattr(row, metric), getattr(row, f"{metric}_ci95")) for row in rows}

    def written(value: float) -> str:
        return percent(value) if metric == "accuracy" else perplexity(value)

    series = {name: [_said(found.get((name, pairs)), written) for pairs in at] for name in names}
    tell(axes, at, [f"{pairs} pairs" for pairs in at], series)


def _said(value: tuple[float, Interval] | None, written: Callable[[float], str]) -> tuple[float | None, str]:
    if value is None:
        return None, ""
    return value[0], f"{written(value[0])} ({' to '.join(map(written, value[1]))})"


def write_pretrained(scores: PretrainedScores, out: Path) -> None:
    """Write ``scores.json`` and the figure of ``argap synthetics score``."""
    write_json(out / "scores.json", as_json(scores), seal=False)
    save(pretrained_figure(scores), out, "pairs")
