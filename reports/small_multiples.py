"""Each bin's part of the gap for many models: small panels with one scale, smallest gap first."""

from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from argap.records import Gap, Part
from argap.reports.drawing import COLOURS, FAINT, INK, SHARE, Look, panel_rows, plain, style
from argap.reports.numbers import nats, short
from argap.reports.overview import by_gap
from argap.reports.panels import bin_numbers, draw_threshold, set_frequency_ticks, threshold_position
from argap.reports.tables import gap_cell

ACROSS = 4
LOOK = Look(COLOURS[0], "o", "-")
"""One colour for all: the panels carry the names."""
LABELS = {
    "distance": "Tokens back to the bigram's nearest occurrence, from",
    "position": "Position in the window, from",
}


@style()
def small_frequency(gap: Gap) -> Figure:
    """A panel a model: repeated bigrams by training frequency, AR hits in full colour, and in grey those that are not
    repeated. The bars of a panel add up to the model's gap."""
    figure, panels = _panels(gap)
    number = bin_numbers(gap.bins.frequency)
    for row, axes in zip(by_gap(gap), panels, strict=True):
        for repeated, shift in ((True, -0.22), (False, 0.22)):
            parts = [part for part in gap.breakdowns.frequency if part.repeated == repeated]
            x = [number[part.bin] for part in parts]
            hits = [repeated and k < threshold_position(gap) for k in x]
            colours = [LOOK.colour if hit else LOOK.pale if repeated else SHARE for hit in hits]
            _bars(axes, [k + shift for k in x], parts, row.model, colours, width=0.44)
        draw_threshold(axes, gap)
        set_frequency_ticks(axes, gap)
        ticks = axes.get_xticks()[::3]
        axes.set_xticks(ticks, [short(gap.bins.frequency[int(k)].high or 0) for k in ticks])
        _title(axes, gap, row.model)
    figure.supxlabel("Training count of the bigram", fontsize=9)
    return figure


@style()
def small_bins(gap: Gap, by: Literal["distance", "position"]) -> Figure:
    """A panel a model: its gap by distance or position; tokens that are not repeated are pale."""
    figure, panels = _panels(gap)
    parts: list[Part] = list(getattr(gap.breakdowns, by))
    number = bin_numbers(getattr(gap.bins, by))
    x = [number[part.bin] for part in parts]
    colours = [LOOK.pale if part.bin == "not repeated" else LOOK.colour for part in parts]
    for row, axes in zip(by_gap(gap), panels, strict=True):
        _bars(axes, x, parts, row.model, colours, width=0.8)
        every = max(1, len(x) // 4)
        ticks = list(range(1, len(x), every)) if by == "distance" else list(range(0, len(x), every))
        axes.set_xticks([x[k] for k in ticks], [_start(parts[k].bin) for k in ticks])
        _title(axes, gap, row.model)
    figure.supxlabel(LABELS[by], fontsize=9)
    return figure


def _panels(gap: Gap) -> tuple[Figure, list[Axes]]:
    figure, panels = panel_rows(len(gap.deltas), across=ACROSS, head=0.5, row=1.3)
    figure.supylabel(f"Part of the gap (nats per {gap.unit})", fontsize=9)
    for axes in panels:
        axes.grid(axis="y")
        axes.tick_params(length=0, labelsize=7.5)
        axes.axhline(0, color=FAINT, linewidth=0.8)
        axes.spines["bottom"].set_visible(False)
        axes.yaxis.set_major_locator(MaxNLocator(4))
    return figure, panels


def _bars(axes: Axes, x: list[Any], parts: list[Part], model: str, colours: list[Any], width: float) -> None:
    axes.bar(x, [part.contribution[model] for part in parts], width=width, color=colours)
    ends = [(at, *pair) for at, part in zip(x, parts, strict=True) if (pair := part.ci95.get(model))]
    if ends:
        axes.vlines(*zip(*ends, strict=True), color=INK, linewidth=0.5)


def _title(axes: Axes, gap: Gap, model: str) -> None:
    """The gap in nats, and what the table says of its part on the AR hits."""
    due = gap_cell(gap.row(model).gap_due_to_ar)
    axes.set_title(f"{plain(model, 24)}\n{nats(gap.deltas[model])}, {due}", fontsize=7.5)


def _start(label: str) -> str:
    """The first number of a bin's label."""
    return label.partition("–")[0]
