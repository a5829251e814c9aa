"""Recall of every model on every task, as bars."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from argap.recall.result import RecallResult
from argap.recall.scores import Score
from argap.reports.drawing import COLOURS, INK, SHARE, dashed, grid, panel_rows, plain, style
from argap.reports.hover import tell

ACROSS = 3


@style()
def recall_figure(result: RecallResult) -> Figure:
    """A panel a task: percent of the answers that contain the gold, with 95% intervals. The reference is grey; the
    dashed line is the greatest score by chance."""
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
        axes.set_title("\n(".join(plain(part, 22) for part in task.label.split(" (", 1)))
        grid(axes, "x")
        axes.xaxis.set_major_locator(MaxNLocator(4))
        shown = [(value, _words(row)) if row else (None, "") for value, row in zip(values, found, strict=True)]
        tell(axes, list(at), models, {task.label: shown}, along="y")
    panels[0].set_xlim(left=0)
    panels[0].set_yticks(at, [plain(model, 24) for model in models])
    figure.supxlabel("% of the answers that contain the gold", fontsize=9)
    return figure


def _words(row: Score) -> str:
    text = f"{100 * row.contains:.1f}%"
    if row.ci95 is not None:
        text += f" ({100 * row.ci95[0]:.1f}–{100 * row.ci95[1]:.1f}%)"
    return f"{text} of {row.n:,} examples"
