"""The table and the figure of a sweep over tasks: accuracy by task and model, and what is printed of MAD beside it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, PercentFormatter

from argap.atomic import write_text
from argap.reports.drawing import COLOURS, FAINT, GRID, panel_rows, plain, save, style
from argap.reports.tables import DASH, Column, Table, csv_of, markdown
from argap.synthetics.published import MAD_TASKS, PRINTED, SOURCE, PrintedScores, printed_of

ACROSS = 3
NOTE = "Test accuracy in percent; of learning rates and seeds the run that was best on the validation set."
NOT_THE_SAME = (
    f"printed: {SOURCE}. MAD's scores are means over each task's baseline and harder variants of it (longer, larger "
    "vocabularies, fewer examples, more noise), each the best run on the test set; ours are of the tasks named here."
)


def write_tasks(out: Path, runs: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Write ``tasks.md``, ``tasks.csv`` and the figure of a sweep's finished runs; returns the rows of the CSV, and the
    table as text."""
    best = best_by_task(runs)
    text = markdown(task_table(best))
    write_text(out / "tasks.md", text)
    write_text(out / "tasks.csv", csv_of(best.to_dict("records"), list(best.columns)))  # pyright: ignore[reportArgumentType]
    save(task_figure(best), out, "tasks")
    return best, text


def best_by_task(runs: pd.DataFrame) -> pd.DataFrame:
    """Of each task, member and width the run with the best *validation* accuracy, in the order of the sweep, and what
    is ``printed`` of the same mixer on the same task, as a fraction too (NaN: nothing).

    The ``model`` is the member, with its width where a sweep has several.
    """
    several = len(set(runs["width"])) > 1
    models = [f"{n}, width {w}" if several else n for n, w in zip(runs["name"], runs["width"], strict=True)]
    runs = runs.assign(model=models)
    places = {column: {each: k for k, each in enumerate(dict.fromkeys(runs[column]))} for column in ("task", "model")}
    ordered = runs.sort_values(["validation_accuracy", "lr"], ascending=[False, True], kind="stable")
    best = cast(pd.DataFrame, ordered.drop_duplicates(["task", "model"]))
    best = best.sort_values(by=["task", "model"], key=lambda column: column.map(places[str(column.name)]))
    printed = [_printed(n, t) for n, t in zip(best["name"], best["task"], strict=True)]
    kept = best[["task", "model", "name", "width", "length", "lr", "seed", "validation_accuracy", "accuracy"]]
    return kept.assign(printed=pd.Series(printed, index=kept.index, dtype="float64")).reset_index(drop=True)


def _printed(member: str, task: str) -> float | None:
    row = printed_of(member)
    score = None if row is None else row.score(task)
    return None if score is None else score / 100


def task_table(best: pd.DataFrame) -> Table:
    """A row a model, and below it what is printed of its mixer; then what is printed of mixers that are not there."""
    tasks, models = list(dict.fromkeys(best["task"])), dict(zip(best["model"], best["name"], strict=True))
    columns = [Column("Model", "left"), Column("Figures", "left")]
    columns += [Column(task.replace("_", " ")) for task in (*tasks, "average")]
    left = list(PRINTED) if _of_mad(tasks) else []
    rows = []
    for model, member in models.items():
        own = best.loc[best["model"] == model]
        found = dict(zip(own["task"], own["accuracy"], strict=True))
        rows.append((model, "ours", *_cells([100 * found[task] if task in found else None for task in tasks])))
        row = printed_of(member)
        if row is not None and row in left:
            left.remove(row)
            rows.append(_printed_line(row, tasks))
    rows += [_printed_line(row, tasks) for row in left]
    return Table(tuple(columns), tuple(rows), (NOTE, NOT_THE_SAME) if _of_mad(tasks) else (NOTE,))


def _of_mad(tasks: list[str]) -> bool:
    return any(task in MAD_TASKS for task in tasks)


def _printed_line(row: PrintedScores, tasks: list[str]) -> tuple[str, ...]:
    return row.model, "printed", *_cells([row.score(task) for task in tasks])


def _cells(percents: Sequence[float | None]) -> Iterator[str]:
    """Each number and their mean, which wants all of them."""
    whole = [percent for percent in percents if percent is not None]
    mean = fmean(whole) if len(whole) == len(percents) else None
    yield from (DASH if percent is None else f"{percent:.1f}" for percent in (*percents, mean))


@style()
def task_figure(best: pd.DataFrame) -> Figure:
    """Accuracy of each model, one panel a task: ours filled, what is printed of the same mixer as a ring."""
    tasks, models = best["task"].unique().tolist(), best["model"].unique().tolist()
    figure, panels = panel_rows(len(tasks), across=ACROSS, head=0.75, row=0.5 + 0.21 * len(models))
    for task, axes in zip(tasks, panels, strict=True):
        rows = best.loc[best["task"] == task]
        places = [models.index(model) for model in rows["model"].tolist()]
        ours, printed = rows["accuracy"].tolist(), rows["printed"].tolist()
        axes.hlines(places, ours, printed, color=GRID, linewidth=2.2, zorder=1)
        ring: dict[str, Any] = {"markerfacecolor": "white", "markeredgecolor": FAINT, "markeredgewidth": 1.3}
        axes.plot(printed, places, "o", markersize=8.5, clip_on=False, label=f"printed ({SOURCE})", zorder=2, **ring)
        axes.plot(ours, places, "o", color=COLOURS[0], markersize=5.5, clip_on=False, label="ours", zorder=3)
        axes.set_title(plain(task.replace("_", " ")))
        _percents(axes)
        axes.set_yticks(range(len(models)), [plain(model) for model in models])
        axes.set_ylim(len(models) - 0.5, -0.5)
    figure.supxlabel("Test accuracy", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    first = 0 if best["printed"].notna().to_numpy().any() else 1  # of a legend that names the printed before ours
    figure.legend(handles[first:][::-1], labels[first:][::-1], loc="outside upper left", ncols=2)
    return figure


def _percents(axes: Axes) -> None:
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_locator(FixedLocator([0, 0.5, 1]))
    axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.grid(axis="x")
    axes.tick_params(length=0)
