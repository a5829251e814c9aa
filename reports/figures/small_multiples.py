"""Draw each bin's part of the gap for many models: small panels, or a map, lowest ΔNLL first.

`argap.reports.tables.overview.shown` chooses the models.
"""

from textwrap import wrap
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from argap.records import Gap, Part
from argap.reports.figures.drawing import (
    COLOURS,
    FAINT,
    GREY,
    PLAIN,
    SHARE,
    WIDTH,
    Look,
    highlight,
    panel_rows,
    plain,
    style,
)
from argap.reports.figures.hover import tell
from argap.reports.figures.panels import (
    bar_values,
    bin_numbers,
    by_frequency,
    deltas_to_share,
    draw_threshold,
    heads,
    set_frequency_ticks,
    share_text,
    threshold_position,
    top_domains,
    training_count,
    value_of,
)
from argap.reports.tables.numbers import percent, seen, short, signed
from argap.reports.tables.overview import ENDS, of_interest, shown
from argap.reports.tables.result import share_cell

ACROSS = 5
AHEAD, BEHIND = COLOURS[:2]
"""Shades of the cells in which a model is ahead and behind, as in `argap.view`."""
DARK = "#1a1a1a"
"""Text on shaded cells: a fixed colour, not mapped to the page's scheme (`argap.reports.figures.drawing.variables`)."""
LABELS = {
    "distance": "Tokens back to the bigram's nearest occurrence, from",
    "position": "Position in the window, from",
}


@style()
def small_frequency(gap: Gap, own: bool = False) -> Figure:
    """Draw one panel per model: its gap on repeated bigrams and on all others, by training frequency.

    AR hits have the full colour, other repeated bigrams a pale one, and bigrams that are not repeated are grey. The
    bars of a panel add up to the model's ΔNLL. ``own``: each panel has its own scale.
    """
    figure, panels = _panels(gap, own)
    number = bin_numbers(gap.bins.frequency)
    for row, axes in zip(shown(gap), panels, strict=True):
        look = _look(gap, row.model)
        for repeated, shift in ((True, -0.22), (False, 0.22)):
            parts = by_frequency(gap, repeated)
            x = [number[part.bin] for part in parts]
            hits = [repeated and k < threshold_position(gap) for k in x]
            colours = [look.colour if hit else look.pale if repeated else SHARE for hit in hits]
            _bars(axes, [k + shift for k in x], parts, row.model, colours, width=0.44)
        _tell_frequency(axes, gap, row.model, number, look)
        draw_threshold(axes, gap)
        set_frequency_ticks(axes, gap)
        ticks = axes.get_xticks()[::3]
        axes.set_xticks(ticks, [short(gap.bins.frequency[int(k)].high or 0) for k in ticks])
        _title(axes, gap, row.model)
    _below(figure, gap, training_count(gap))
    return figure


@style()
def small_bins(gap: Gap, by: Literal["distance", "position"], own: bool = False) -> Figure:
    """Draw one panel per model: its gap by distance or position; tokens that are not repeated are pale.

    ``own``: each panel has its own scale.
    """
    figure, panels = _panels(gap, own)
    parts, deltas = gap.parts(by), deltas_to_share(gap)
    number = bin_numbers(getattr(gap.bins, by))
    x = [number[part.bin] for part in parts]
    for row, axes in zip(shown(gap), panels, strict=True):
        look = _look(gap, row.model)
        colours = [look.pale if part.bin == "not repeated" else look.colour for part in parts]
        _bars(axes, x, parts, row.model, colours, width=0.8)
        tell(axes, x, heads(parts, gap), {row.model: bar_values(parts, row.model, deltas[row.model])})
        every = max(1, len(x) // 3)
        ticks = list(range(1, len(x), every)) if by == "distance" else list(range(0, len(x), every))
        axes.set_xticks([x[k] for k in ticks], [_start(parts[k].bin) for k in ticks])
        _title(axes, gap, row.model)
    _below(figure, gap, LABELS[by])
    return figure


@style()
def domain_map(gap: Gap) -> Figure:
    """Draw a map with one row per model, lowest ΔNLL first, and one column per domain, largest part first.

    Cells are labelled in percent of the model's ΔNLL (nats for a level model) and shaded by nats.
    """
    rows, parts, deltas = shown(gap), top_domains(gap), deltas_to_share(gap)
    values = np.array([[value_of(part[row.model]) for part in parts] for row in rows])
    layout = ConstrainedLayoutEngine(w_pad=0.1)  # a name is drawn a little wider than it was measured
    figure = Figure(figsize=(WIDTH, 1.3 + 0.2 * len(rows)), layout=layout)
    axes = figure.subplots()
    top = float(np.abs(values).max()) or 1.0
    shades = LinearSegmentedColormap.from_list("part", [AHEAD, "#ffffff", BEHIND])
    mesh = axes.pcolormesh(values, cmap=shades, vmin=-1.25 * top, vmax=1.25 * top, edgecolors="white", linewidth=1)
    for (k, j), value in np.ndenumerate(values):
        text = share_text(value, deltas[rows[k].model]).removesuffix(" nats")
        axes.text(j + 0.5, k + 0.5, text, ha="center", va="center", fontsize=7.5, color=DARK)
    axes.set_yticks(np.arange(len(rows)) + 0.5, [plain(row.model, 24) for row in rows])
    axes.set_xticks(np.arange(len(parts)) + 0.5, [_wrapped(part, gap) for part in parts])
    axes.invert_yaxis()
    axes.tick_params(length=0, labelsize=7.5, labeltop=True, labelbottom=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = figure.colorbar(
        mesh,
        ax=axes,
        shrink=0.8,
        boundaries=np.linspace(min(values.min(), 0), max(values.max(), 0), 50),
        ticks=MaxNLocator(4),
    )
    bar.set_label(f"Part of ΔNLL (nats per {gap.unit})", fontsize=8)
    bar.ax.tick_params(labelsize=7.5)
    bar.outline.set_visible(False)
    words = {row.model: bar_values(parts, row.model, deltas[row.model]) for row in rows}
    corners = {m: [(k + 0.22, text) for _, text in each] for k, (m, each) in enumerate(words.items())}
    tell(axes, list(np.arange(len(parts)) + 0.9), heads(parts, gap), corners, guide=False)
    _below(figure, gap)
    return figure


def _look(gap: Gap, model: str) -> Look:
    """Return the look of a model in the figures of many; panels carry names, so the others need no colour."""
    look = highlight(gap.models, of_interest(gap))[model]
    return Look(PLAIN, "o", "-") if look.colour == GREY else look


def _wrapped(part: Part, gap: Gap) -> str:
    """Return a domain's name on at most three lines, and its share of the tokens."""
    lines = wrap(plain(part.bin, 28), 14)
    return "\n".join([*lines[:3], percent(part.share_of_tokens, 0)])


def _panels(gap: Gap, own: bool) -> tuple[Figure, list[Axes]]:
    figure, panels = panel_rows(len(shown(gap)), across=ACROSS, head=0.5, row=1.15, sharey=not own)
    between = "\n" if len(panels) <= ACROSS else " "  # a single row is lower than the line is long
    figure.supylabel(f"Part of ΔNLL{between}(nats per {gap.unit})", fontsize=9)
    for axes in panels:
        axes.grid(axis="y")
        axes.tick_params(length=0, labelsize=7.5)
        axes.axhline(0, color=FAINT, linewidth=0.8)
        axes.spines["bottom"].set_visible(False)
        axes.yaxis.set_major_locator(MaxNLocator(4))
    return figure, panels


def _below(figure: Figure, gap: Gap, label: str = "") -> None:
    """Write the axis label, and which models are left out, below all panels."""
    lines = [label] if label else []
    if len(shown(gap)) < len(gap.deltas):
        lines.append(f"Of {len(gap.deltas)} models, the {ENDS} with the lowest ΔNLL and the {ENDS} with the highest")
    if lines:
        figure.supxlabel("\n".join(lines), fontsize=9)


def _bars(axes: Axes, x: list[Any], parts: list[Part], model: str, colours: list[Any], width: float) -> None:
    axes.bar(x, [value_of(part[model]) for part in parts], width=width, color=colours)
    ends = [(at, *pair) for at, part in zip(x, parts, strict=True) if (pair := part[model].contribution_ci95)]
    if ends:
        axes.vlines(*zip(*ends, strict=True), color=FAINT, linewidth=0.5)


def _tell_frequency(axes: Axes, gap: Gap, model: str, number: dict[str, int], look: Look) -> None:
    """Register both halves of the partition by frequency as series; a bin may be missing from either."""
    at = sorted({number[part.bin] for part in gap.parts("frequency")})
    values: dict[str, list[tuple[float | None, str]]] = {}
    for repeated, name in ((True, "repeated"), (False, "not repeated")):
        parts = by_frequency(gap, repeated)
        said = dict(
            zip(
                (number[part.bin] for part in parts), bar_values(parts, model, deltas_to_share(gap)[model]), strict=True
            )
        )
        values[f"{model}, {name}"] = [said.get(k, (None, "")) for k in at]
    tell(axes, at, [seen(gap.bins.frequency[k].label) for k in at], values, bins=len(gap.bins.frequency), hits=look)


def _title(axes: Axes, gap: Gap, model: str) -> None:
    """Title a panel with the gap in nats and the share on the AR hits, as the table prints it."""
    due = share_cell(gap.on_hits[model])
    axes.set_title(f"{plain(model, 19)}\n{signed(gap.deltas[model])}, {due}", fontsize=7.5)


def _start(label: str) -> str:
    """Return the first number of a bin's label."""
    return label.partition("–")[0]
