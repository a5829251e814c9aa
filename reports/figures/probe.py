"""Draw ``argap probe``: accuracy and NLL against the load of each task, and heat maps of layers and heads."""

from pathlib import Path
from typing import Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, PercentFormatter

from argap.files.atomic import write_text
from argap.probe.records import LayerRow, LayersResult, ProbeResult, ProbeRow, by_task
from argap.probe.tasks import TASKS
from argap.reports.figures.drawing import (
    COLOURS,
    FAINT,
    INK,
    WIDTH,
    Look,
    grid,
    highlight,
    legend_of_models,
    plain,
    save,
    short_ticks,
    style,
)
from argap.reports.figures.hover import tell
from argap.reports.tables.formats import markdown
from argap.reports.tables.numbers import percent
from argap.reports.tables.probe import distances_table, layers_table, probe_table

ACROSS = 4
Metric = Literal["accuracy", "token_nll"]


def write_probe(result: ProbeResult, out: Path) -> None:
    """Write ``probe.svg`` and ``probe.md``, the tables by load and by distance, beside ``probe.json``."""
    save(probe_figure(result), out, "probe")
    write_text(out / "probe.md", f"{markdown(probe_table(result))}\n{markdown(distances_table(result))}")


def write_layers(result: LayersResult, out: Path) -> None:
    """Write ``layers.svg`` and ``layers.md`` beside ``layers.json``."""
    save(layers_figure(result), out, "layers")
    write_text(out / "layers.md", markdown(layers_table(result)))


@style()
def probe_figure(result: ProbeResult) -> Figure:
    """Draw a panel for each task, form and length: accuracy of the answers above, their NLL per token below.

    Accuracy has 95% intervals over prompts; its grey line is chance. In the NLL of the induction task the grey line is
    the first occurrence of the same tokens. With more models than colours, those with the lowest NLL are in colour.
    """
    groups = by_task(result.rows)
    models = result.models
    losses = {model: np.mean([row.token_nll for row in result.rows if row.model == model]) for model in models}
    look = highlight(models, sorted(models, key=lambda model: losses[model])[: len(COLOURS)])
    columns = min(ACROSS, len(groups))
    lines = -(-len(groups) // columns)
    figure = Figure(figsize=(WIDTH, 0.8 + 3.2 * lines), layout="constrained")
    panels = figure.subplots(2 * lines, columns, squeeze=False)
    for k, ((task, form, length), rows) in enumerate(groups.items()):
        upper, lower = (panels[2 * (k // columns) + below, k % columns] for below in (0, 1))
        _panel(upper, rows, "accuracy", models, look)
        _panel(lower, rows, "token_nll", models, look)
        if k % columns == 0:
            upper.set_ylabel("Accuracy")
            lower.set_ylabel("NLL per token")
        upper.tick_params(labelbottom=False)
        upper.set_title(f"{task}, {form}{f', {length}' if length else ''}", fontsize=8.5)
        lower.set_xlabel(TASKS[task].load, fontsize=8.5)
    for k in range(len(groups), lines * columns):
        for below in (0, 1):
            panels[2 * (k // columns) + below, k % columns].remove()
    legend_of_models(figure, look)
    return figure


def _panel(axes: Axes, rows: list[ProbeRow], metric: Metric, models: list[str], look: dict[str, Look]) -> None:
    loads = sorted({row.load for row in rows})
    told = {}
    for model in models:
        own = sorted((row for row in rows if row.model == model), key=lambda row: row.load)
        at, values = [row.load for row in own], np.array([getattr(row, metric) for row in own])
        axes.plot(at, values, markersize=4, linewidth=look[model].width, clip_on=False, **look[model].curve)
        if metric == "accuracy":
            ends = np.array([row.accuracy_ci95 for row in own])
            axes.vlines(at, ends[:, 0], ends[:, 1], color=look[model].colour, linewidth=0.9)
        words = [_words(row) for row in own]
        told[model] = list(zip(values.tolist(), words, strict=True))
    first = sorted((row for row in rows if row.model == models[0]), key=lambda row: row.load)
    known = [row.chance if metric == "accuracy" else row.control_nll for row in first]
    line = [value for value in known if value is not None]
    if len(line) == len(known):
        axes.plot(loads, line, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)))
    axes.set_xscale("log", base=2)
    axes.set_xlim(loads[0] / 1.3, loads[-1] * 1.3)
    axes.xaxis.set_major_locator(FixedLocator(loads))
    axes.xaxis.set_minor_locator(NullLocator())
    short_ticks(axes.xaxis)
    if metric == "accuracy":
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    else:
        axes.set_ylim(0, None)
        axes.yaxis.set_major_locator(MaxNLocator(4))
    grid(axes)
    tell(axes, loads, [f"{TASKS[rows[0].task].load} {load}" for load in loads], told)


def _words(row: ProbeRow) -> str:
    low, high = row.accuracy_ci95
    return f"{percent(row.accuracy)} ({percent(low)} to {percent(high)}), NLL {row.token_nll:.2f}"


@style()
def layers_figure(result: LayersResult) -> Figure:
    """Draw for each model a heat map of layers and heads, and beside it what zeroing each layer costs.

    Layers without attention weights are blank in the map. Both models' maps share one scale, from 0 to 1.
    """
    models = result.models
    by_model = {model: [row for row in result.rows if row.model == model] for model in models}
    heights = [0.55 + 0.16 * len(rows) for rows in by_model.values()]
    figure = Figure(figsize=(WIDTH, 0.6 + sum(heights)), layout="constrained")
    panels = figure.subplots(len(models), 2, squeeze=False, sharey="row", height_ratios=heights, width_ratios=[3, 2])
    shades = LinearSegmentedColormap.from_list("score", ["#f4f4f4", COLOURS[0]])
    mesh = None
    for (model, rows), (heads, effects) in zip(by_model.items(), panels, strict=True):
        mesh = _heat_map(heads, rows, shades) or mesh
        heads.set_title(f"{plain(model)}: attention of each head", fontsize=8.5)
        heads.set_ylabel("Layer")
        at = [row.layer for row in rows]
        effects.barh(at, [row.effect for row in rows], height=0.7, color=COLOURS[1])
        for row in rows:
            effects.hlines(row.layer, *row.effect_ci95, color=INK, linewidth=0.9)
        effects.set_title("NLL added by zeroing the layer", fontsize=8.5)
        effects.axvline(0, color=FAINT, linewidth=0.8)
        effects.xaxis.set_major_locator(MaxNLocator(4))
        grid(effects, "x")
        texts = [(row.effect, f"{row.mixer}: {row.effect:+.3f} nats") for row in rows]
        tell(effects, at, [f"layer {row.layer}" for row in rows], {model: texts}, along="y")
    panels[-1, 0].set_xlabel("Head")
    panels[-1, 1].set_xlabel("Nats per token")
    if mesh is not None:
        bar = figure.colorbar(mesh, ax=panels[:, 0].tolist(), location="bottom", shrink=0.6, aspect=40, pad=0.02)
        bar.ax.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        bar.set_label("Attention to the token after the earlier occurrence", fontsize=8)
        bar.ax.tick_params(labelsize=7.5)
        bar.outline.set_visible(False)
    return figure


def _heat_map(axes: Axes, rows: list[LayerRow], shades: LinearSegmentedColormap) -> QuadMesh | None:
    """Draw layers down, heads across; None if no layer has weights."""
    most = max((len(row.heads or ()) for row in rows), default=0)
    axes.set_yticks([row.layer for row in rows][:: 1 + len(rows) // 16])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(length=0)
    if not most:
        axes.set_xticks([])
        axes.text(0.5, 0.5, "no attention weights", transform=axes.transAxes, ha="center", color=FAINT, fontsize=8.5)
        return None
    values = np.full((len(rows), most), np.nan)
    for k, row in enumerate(rows):
        values[k, : len(row.heads or ())] = row.heads or ()
    edges = [np.arange(count + 1) - 0.5 for count in (most, len(rows))]
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    return axes.pcolormesh(*edges, values, cmap=shades, vmin=0, vmax=1, edgecolors="white", linewidth=0.8)
