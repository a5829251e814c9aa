"""Draw and tabulate MQAR sweeps, and draw pretrained models on MQAR."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from argap.errors import ArgapError
from argap.files.atomic import write_text
from argap.records import read_gap
from argap.reports.figures.drawing import (
    WIDTH,
    accuracy_axis,
    decades,
    legend_above,
    log_axis,
    looks,
    panel_rows,
    plain,
    powers,
    save,
    style,
)
from argap.reports.figures.lengths import write_lengths
from argap.reports.figures.tasks import write_tasks
from argap.reports.tables.formats import Table, csv_of_frame, markdown
from argap.reports.tables.numbers import DASH
from argap.reports.tables.suites.mqar_link import link_rows, link_table
from argap.synthetics.sweeps.selection import across_seeds, best_runs, smallest_solving

COLUMNS = 4
Axis = Literal["width", "pairs", "state_size"]
AXES = {"width": "Width", "pairs": "Pairs of key and value", "state_size": "State (elements)"}
MEASURES = {
    "flops": "Operations of an example",
    "state_size": "State (elements)",
    "parameters": "Parameters",
}


def write_sweep(out: Path, gaps: Sequence[Path] = ()) -> tuple[pd.DataFrame, str]:
    """Draw a sweep's figures into its folder and write its tables; return the first table, and all as text.

    The tables are ``solve.csv`` and, for several seeds, ``seeds.csv`` and ``seeds.md``; with ``gaps``, folders with
    ``gap.json``, also ``gaps.md``: accuracies beside the AR gaps of the models that have the mixers' names. A sweep
    over tasks gets the table and figure of `argap.reports.figures.tasks` instead, and those of
    `argap.reports.figures.lengths` if runs are tested at multiples of their length.
    """
    from argap.synthetics.sweeps.store import read_runs, read_sweep

    sweep, runs = read_sweep(out), read_runs(out)
    if sweep.tasks and gaps:
        raise ArgapError(f"`gap`: {out} is a sweep over tasks; expected one of MQAR alone")
    linked, cells = link_rows(runs, [read_gap(folder) for folder in gaps])
    if gaps and not linked:
        raise ArgapError(f"`gap`: no model of {', '.join(map(str, gaps))} has the name of a mixer of {out}")
    if sweep.tasks:
        table, text = write_tasks(out, runs)
        lengths = write_lengths(out)
        return table, f"{text}\n{lengths}" if lengths else text
    save(accuracy_figure(runs, sweep.axis), out, "accuracy")
    solved = smallest_solving(runs)
    known = solved.astype(object).where(solved.notna(), None)
    write_text(out / "solve.csv", csv_of_frame(known))
    if not solved["flops"].isna().to_numpy().all():
        save(solve_figure(solved), out, "solve")
    text = solve_text(solved)
    if len(set(runs["seed"].dropna())) > 1:
        seeds = across_seeds(runs)
        write_text(out / "seeds.csv", csv_of_frame(seeds))
        table = markdown(seeds_table(seeds))
        write_text(out / "seeds.md", table)
        text += f"\n\n{table}"
    if linked:
        table = markdown(link_table(linked, cells))
        write_text(out / "gaps.md", table)
        text += f"\n\n{table}"
    return solved, text


def seeds_table(seeds: pd.DataFrame) -> Table:
    """Return the table of `across_seeds`, in percent."""
    titles = ("N", "D", "Model", "Width", "Seeds", "Accuracy", "Standard deviation", "Range")
    rows = []
    for row in seeds.to_dict("records"):
        mean, deviation, lowest, highest = (
            DASH if pd.isna(row[key]) else f"{100 * row[key]:.1f}"
            for key in ("accuracy", "deviation", "lowest", "highest")
        )
        head = (str(row["length"]), str(row["pairs"]), str(row["name"]), str(row["width"]), str(row["seeds"]))
        rows.append((*head, mean, deviation, f"{lowest}–{highest}"))
    note = "Test accuracy in percent over seeds, each at the learning rate that was best on its validation set."
    return Table(titles, rows, (note,), left=(2,))


@style()
def accuracy_figure(runs: pd.DataFrame, axis: Axis) -> Figure:
    """Draw each model's test accuracy against ``axis``, one panel per length and number of pairs.

    This is the form of figure 2 of arXiv 2312.04927. Each point is the learning rate and seed with the best validation
    accuracy. With ``pairs`` as the axis there is a panel for each length and width.
    """
    best = best_runs(runs)
    best = best.assign(at=pd.to_numeric(best[axis]))
    by = ["length", "width"] if axis == "pairs" else ["length", "pairs"]
    rows = [tuple(row) for row in best[by].itertuples(index=False)]  # sorted by `best_runs`
    shapes = list(dict.fromkeys(rows))
    figure, each = panel_rows(len(shapes), across=COLUMNS, head=0.9, row=2.2, sharex=axis != "state_size")
    names = list(dict.fromkeys(runs["name"]))
    look = looks(names)
    for (length, other), axes in zip(shapes, each, strict=True):
        for name, beneath in zip(names, np.linspace(1, 0, len(names)), strict=True):  # keep coinciding lines visible
            points = best.loc[(best["name"] == name) & (best[by[0]] == length) & (best[by[1]] == other)]
            points = points.sort_values(by=["at"])
            # An unclipped line without points would have an infinite extent and collapse the layout.
            drawn = look[name].curve | {"markersize": 4 + 3 * beneath, "linewidth": 1.3 + 1.9 * beneath}
            drawn["clip_on"] = points.empty
            axes.plot(points["at"], points["accuracy"], label=plain(name), **drawn)
        axes.set_title(f"N {length}, width {other}" if axis == "pairs" else f"N {length}, D {_spaced(other)}")
        accuracy_axis(axes)
        axes.tick_params("x", pad=5)  # markers at 0 reach below the axis
        if axis == "state_size":
            axes.set_xscale("log")
            decades(axes, "x", subs=(1, 2, 5))
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            powers(axes, sorted(set(best["at"])))
    each[0].set_ylabel("Test accuracy")
    figure.supxlabel(AXES[axis], fontsize=9)
    legend_above(figure, each[0].get_legend_handles_labels()[0], 5)
    return figure


@style()
def solve_figure(solved: pd.DataFrame) -> Figure:
    """Draw the cost of each mixer's smallest model that reaches 99%: one panel per measure, one tick per task.

    A mixer without a point does not solve the task at any width tried.
    """
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    panels = figure.subplots(1, len(MEASURES), sharex=True)
    names = list(dict.fromkeys(solved["name"]))
    look = looks(names)
    tasks = list(dict.fromkeys(zip(solved["length"], solved["pairs"], strict=True)))
    for (measure, label), axes in zip(MEASURES.items(), panels, strict=True):
        for number, name in enumerate(names):
            shift = 0.5 * (number / max(1, len(names) - 1) - 0.5)
            rows = solved[(solved["name"] == name) & solved[measure].notna()]
            at = [tasks.index((n, d)) + shift for n, d in zip(rows["length"], rows["pairs"], strict=True)]
            values = rows[measure].astype("float64").tolist()
            axes.plot(at, values, look[name].marker, color=look[name].colour, markersize=5, label=plain(name))
        axes.set_title(label)
        log_axis(axes)
        axes.set_xticks(range(len(tasks)), [f"N {n}\nD {_spaced(d)}" for n, d in tasks])
        axes.set_xlim(-0.5, len(tasks) - 0.5)
        axes.margins(y=0.15)
    legend_above(figure, panels[0].get_legend_handles_labels()[0], 5)
    return figure


def solve_text(solved: pd.DataFrame) -> str:
    """Return `smallest_solving` as a Markdown table; unsolved tasks have em dashes and the best accuracy."""
    lines = [
        "| N | D | model | width | operations | state | parameters | best accuracy |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in solved.to_dict("records"):
        least = [row["width"], row["flops"], row["state_size"], row["parameters"]]
        cells = ["—" if pd.isna(value) else f"{int(value):,}" for value in least]
        if pd.isna(row["width"]):
            cells[0] = f"> {row['widest']:,}"
        head = [str(row["length"]), str(row["pairs"]), str(row["name"])]
        lines.append("| " + " | ".join([*head, *cells, f"{row['best']:.3f}"]) + " |")
    return "\n".join(lines)


def _spaced(pairs: str) -> str:
    """Format ``4,8,16`` as ``4, 8, 16``."""
    return pairs.replace(",", ", ")
