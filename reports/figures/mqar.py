"""Draw and tabulate MQAR sweeps, and draw pretrained models on MQAR."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, PercentFormatter

from argap.errors import ArgapError
from argap.files.atomic import write_json, write_text
from argap.records import Interval, as_json, read_gap
from argap.reports.figures.drawing import (
    WIDTH,
    decades,
    grid,
    highlight,
    legend_above,
    legend_of_models,
    looks,
    panel_rows,
    plain,
    save,
    short_ticks,
    style,
)
from argap.reports.figures.hover import tell
from argap.reports.figures.lengths import write_lengths
from argap.reports.figures.tasks import write_tasks
from argap.reports.tables.formats import Table, csv_of_frame, markdown
from argap.reports.tables.numbers import DASH, percent, perplexity
from argap.reports.tables.provenance import between_pairs
from argap.reports.tables.suites.mqar_link import link_rows, link_table
from argap.synthetics.pretrained.records import PretrainedScores, ScoreRow
from argap.synthetics.sweeps.selection import across_seeds, best_runs, smallest_solving

COLUMNS = 4
Axis = Literal["width", "pairs", "state_size"]
AXES = {"width": "Width", "pairs": "Pairs of key and value", "state_size": "State (elements)"}
MEASURES = {
    "flops": "Operations of an example",
    "state_size": "State (elements)",
    "parameters": "Parameters",
}
METRICS = (("ppl", "Perplexity of the answers"), ("accuracy", "Accuracy of the answers"))


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
        _accuracy_axis(axes)
        axes.tick_params("x", pad=5)  # markers at 0 reach below the axis
        if axis == "state_size":
            axes.set_xscale("log")
            decades(axes, "x", subs=(1, 2, 5))
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            _powers(axes, sorted(set(best["at"])))
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
        _log_axis(axes)
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
        _powers(axes, sorted({row.pairs for row in rows}))
        if metric == "accuracy":
            _accuracy_axis(axes, min(1.0, max(0.1, 1.1 * max(row.accuracy_ci95[1] for row in rows))))
        else:
            _log_axis(axes)
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


def _accuracy_axis(axes: Axes, top: float = 1.0) -> None:
    axes.set_ylim(0, top)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    grid(axes)


def _log_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    decades(axes, "y", subs=(1, 2, 5))
    axes.yaxis.set_minor_locator(NullLocator())
    grid(axes)


def _spaced(pairs: str) -> str:
    """Format ``4,8,16`` as ``4, 8, 16``."""
    return pairs.replace(",", ", ")


def _powers(axes: Axes, ticks: list[int]) -> None:
    """Set up a horizontal axis of powers of two, with plain numbers."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.set_xlim(ticks[0] / 1.2, ticks[-1] * 1.2)
    axes.xaxis.set_minor_locator(NullLocator())
    short_ticks(axes.xaxis)
