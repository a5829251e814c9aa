"""Draw the recall of every model on every task as bars, and gaps on the golds against AR gaps."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from argap.recall.result import RecallResult
from argap.recall.scores import Score
from argap.reports.figures.drawing import (
    COLOURS,
    INK,
    SHARE,
    dashed,
    grid,
    legend_of_models,
    looks,
    panel_rows,
    plain,
    style,
)
from argap.reports.figures.hover import tell

ACROSS = 3


@style()
def recall_figure(result: RecallResult) -> Figure:
    """Draw one panel per task: percent of the answers that contain the gold, with 95% intervals.

    The reference is grey; the dashed line is the highest score by chance.
    """
    models = sorted(result.models, key=lambda model: model != result.reference)
    at = np.arange(len(models))[::-1]
    figure, panels = panel_rows(len(result.tasks), across=ACROSS, head=0.5, row=0.7 + 0.24 * len(models))
    for task, axes in zip(result.tasks, panels, strict=True):
        scores = {row.model: row for row in result.rows if row.task == task.label}
        found = [scores.get(model) for model in models]
        values = [0.0 if row is None else 100 * row.contains for row in found]
        axes.barh(at, values, height=0.7, color=[SHARE if m == result.reference else COLOURS[0] for m in models])
        for y, row in zip(at, found, strict=True):
            if row is not None and row.ci95 is not None:
                axes.hlines(y, 100 * row.ci95[0], 100 * row.ci95[1], color=INK, linewidth=0.9)
        chances = [row.chance for row in scores.values() if row.chance is not None]
        if chances:
            dashed(axes, 100 * max(chances))
        axes.set_title(_title(task.label))
        grid(axes, "x")
        axes.xaxis.set_major_locator(MaxNLocator(4))
        shown = [(value, _words(row)) if row else (None, "") for value, row in zip(values, found, strict=True)]
        tell(axes, list(at), models, {task.label: shown}, along="y")
    panels[0].set_xlim(0, max(1, panels[0].get_xlim()[1]))
    panels[0].set_yticks(at, [plain(model, 24) for model in models])
    figure.supxlabel("% of the answers that contain the gold", fontsize=9)
    return figure


@style()
def link_figure(result: RecallResult) -> Figure | None:
    """Draw each model's gap on the golds against its AR gap, in nats, one panel per task; None if nothing is known.

    Both gaps are to the reference. Points are hollow for all AR hits and filled for AR hits at the golds' distances.
    """
    gaps = {
        link.task: [
            (point.model, point.gold_gap_nll, (point.ar_gap_nll, point.ar_gap_at_distances))
            for point in link.points
            if point.gold_gap_nll is not None and point.ar_gap_at_distances is not None
        ]
        for link in result.link
    }
    drawn = {task: points for task, points in gaps.items() if points}
    if not drawn:
        return None
    look = looks(list(dict.fromkeys(model for points in drawn.values() for model, *_ in points)))
    figure, panels = panel_rows(len(drawn), across=ACROSS, head=0.9, row=2.3)
    for (task, points), axes in zip(drawn.items(), panels, strict=True):
        for model, gold, ar in points:
            own = look[model]
            axes.plot(ar, [gold, gold], color=own.colour, linewidth=0.8)
            for x, inside in zip(ar, ("white", own.colour), strict=True):
                axes.plot(x, gold, color=own.colour, marker=own.marker, markersize=6, markerfacecolor=inside)
        axes.update_datalim([(0, 0)])
        axes.set_title(_title(task))
        grid(axes, "both")
        axes.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    figure.supxlabel("AR gap (nats): hollow, all AR hits; filled, at the distances of the golds", fontsize=9)
    figure.supylabel("Gap on the golds (nats)", fontsize=9)
    legend_of_models(figure, look)
    return figure


def _title(task: str) -> str:
    return "\n(".join(plain(part, 22) for part in task.split(" (", 1))


def _words(row: Score) -> str:
    text = f"{100 * row.contains:.1f}%"
    if row.ci95 is not None:
        text += f" ({100 * row.ci95[0]:.1f}–{100 * row.ci95[1]:.1f}%)"
    return f"{text} of {row.n:,} examples"
