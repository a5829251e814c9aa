"""Tabulate and draw a sweep over tasks: accuracy by task and model, beside the published scores of MAD."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, PercentFormatter

from argap.files.atomic import write_text
from argap.reports.figures.drawing import COLOURS, FAINT, GRID, grid, panel_rows, plain, save, style
from argap.reports.tables.formats import Table, csv_of_frame, markdown
from argap.reports.tables.numbers import DASH
from argap.synthetics.sweeps.selection import best_by_validation

SOURCE = "arXiv 2406.06484, table 1"
MAD_TASKS = ("compression", "fuzzy_recall", "in_context_recall", "memorization", "noisy_recall", "selective_copy")
"""Names in `argap.synthetics.tasks.registry.TASKS`, in the order of the table."""


class PublishedScores(NamedTuple):
    """One row of the table."""

    model: str
    member: str | None
    """The same mixer in `argap.synthetics.training.models.MEMBERS`, or None."""
    scores: tuple[float, ...]
    """Scores in the order of `MAD_TASKS`."""
    average: float

    def score(self, task: str) -> float | None:
        """Return the score on a task, given by its label; None if the table does not have it."""
        return self.scores[MAD_TASKS.index(task)] if task in MAD_TASKS else None


PUBLISHED = (
    PublishedScores("Transformer", "attention", (51.6, 29.8, 94.1, 85.2, 86.8, 99.6), 74.5),
    PublishedScores("Hyena", "hyena", (45.2, 7.9, 81.7, 89.5, 78.8, 93.1), 66.0),
    PublishedScores("Multihead Hyena", "multihead_hyena", (44.8, 14.4, 99.0, 89.4, 98.6, 93.0), 73.2),
    PublishedScores("Mamba", "mamba", (52.7, 6.7, 90.4, 89.5, 90.1, 86.3), 69.3),
    PublishedScores("GLA", "gla", (38.8, 6.9, 80.8, 63.3, 81.6, 88.6), 60.0),
    PublishedScores("DeltaNet", "delta_net", (42.2, 35.7, 100.0, 52.8, 100.0, 100.0), 71.8),
)


def published_scores(member: str) -> PublishedScores | None:
    """Return the row of a member's mixer, or None."""
    return next((row for row in PUBLISHED if row.member == member), None)


ACROSS = 3
NOTE = "Test accuracy in percent; of learning rates and seeds the run that was best on the validation set."
NOT_THE_SAME = (
    f"printed: {SOURCE}. MAD's scores are means over each task's baseline and harder variants of it (longer, larger "
    "vocabularies, fewer examples, more noise), each the best run on the test set; ours are of the tasks named here."
)


def write_tasks(out: Path, runs: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Write ``tasks.md``, ``tasks.csv`` and the figure of a sweep's finished runs.

    Return the rows of the CSV, and the table as text.
    """
    best = best_by_task(runs)
    text = markdown(task_table(best))
    write_text(out / "tasks.md", text)
    write_text(out / "tasks.csv", csv_of_frame(best))
    save(task_figure(best), out, "tasks")
    return best, text


def best_by_task(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the run with the best *validation* accuracy for each task, member and width, in the order of the sweep.

    ``printed`` is the published accuracy of the same mixer on the same task, also as a fraction (NaN if there is none).
    ``model`` is the member, followed by the width if a sweep has several widths.
    """
    several = len(set(runs["width"])) > 1
    models = [f"{n}, width {w}" if several else n for n, w in zip(runs["name"], runs["width"], strict=True)]
    runs = runs.assign(model=models)
    rank = {column: {each: k for k, each in enumerate(dict.fromkeys(runs[column]))} for column in ("task", "model")}
    best = best_by_validation(runs, ["task", "model"])
    best = best.sort_values(by=["task", "model"], key=lambda column: column.map(rank[str(column.name)]))
    printed = [_published(n, t) for n, t in zip(best["name"], best["task"], strict=True)]
    kept = best[["task", "model", "name", "width", "length", "lr", "seed", "validation_accuracy", "accuracy"]]
    return kept.assign(printed=pd.Series(printed, index=kept.index, dtype="float64")).reset_index(drop=True)


def _published(member: str, task: str) -> float | None:
    row = published_scores(member)
    score = None if row is None else row.score(task)
    return None if score is None else score / 100


def task_table(best: pd.DataFrame) -> Table:
    """Return one row per model, each followed by its mixer's published row; then the published rows of other mixers."""
    tasks, models = list(dict.fromkeys(best["task"])), dict(zip(best["model"], best["name"], strict=True))
    columns = ("Model", "Figures", *(task.replace("_", " ") for task in (*tasks, "average")))
    left = list(PUBLISHED) if _of_mad(tasks) else []
    rows = []
    for model, member in models.items():
        own = best.loc[best["model"] == model]
        accuracy = dict(zip(own["task"], own["accuracy"], strict=True))
        rows.append((model, "ours", *_cells([100 * accuracy[task] if task in accuracy else None for task in tasks])))
        row = published_scores(member)
        if row is not None and row in left:
            left.remove(row)
            rows.append(_published_cells(row, tasks))
    rows += [_published_cells(row, tasks) for row in left]
    return Table(columns, rows, (NOTE, NOT_THE_SAME) if _of_mad(tasks) else (NOTE,), left=(0, 1))


def _of_mad(tasks: list[str]) -> bool:
    return any(task in MAD_TASKS for task in tasks)


def _published_cells(row: PublishedScores, tasks: list[str]) -> tuple[str, ...]:
    return row.model, "printed", *_cells([row.score(task) for task in tasks])


def _cells(percents: Sequence[float | None]) -> Iterator[str]:
    """Each number, then their mean, or a dash if one is missing."""
    whole = [percent for percent in percents if percent is not None]
    mean = fmean(whole) if len(whole) == len(percents) else None
    yield from (DASH if percent is None else f"{percent:.1f}" for percent in (*percents, mean))


@style()
def task_figure(best: pd.DataFrame) -> Figure:
    """Draw each model's accuracy, one panel per task: ours as a dot, the published one of the same mixer as a ring."""
    tasks, models = best["task"].unique().tolist(), best["model"].unique().tolist()
    figure, panels = panel_rows(len(tasks), across=ACROSS, head=0.75, row=0.5 + 0.21 * len(models))
    for task, axes in zip(tasks, panels, strict=True):
        rows = best.loc[best["task"] == task]
        rows_at = [models.index(model) for model in rows["model"].tolist()]
        ours, printed = rows["accuracy"].tolist(), rows["printed"].tolist()
        axes.hlines(rows_at, ours, printed, color=GRID, linewidth=2.2, zorder=1)
        ring: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": FAINT, "markeredgewidth": 1.3}
        axes.plot(printed, rows_at, "o", markersize=8.5, clip_on=False, label=f"printed ({SOURCE})", zorder=2, **ring)
        axes.plot(ours, rows_at, "o", color=COLOURS[0], markersize=5.5, clip_on=False, label="ours", zorder=3)
        axes.set_title(plain(task.replace("_", " ")))
        axes.set_xlim(0, 1)
        axes.xaxis.set_major_locator(FixedLocator([0, 0.5, 1]))
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        grid(axes, "x")
        axes.set_yticks(range(len(models)), [plain(model) for model in models])
        axes.set_ylim(len(models) - 0.5, -0.5)
    figure.supxlabel("Test accuracy", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    first = 0 if best["printed"].notna().to_numpy().any() else 1  # the legend lists the published entry first
    figure.legend(handles[first:][::-1], labels[first:][::-1], loc="outside upper left", ncols=2)
    return figure
