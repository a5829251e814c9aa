"""Figures of a result: where the models are good, and where the gap to the reference lies.

Each function takes ``gap.json`` and returns a matplotlib figure; `draw_all` writes them all.
"""

from collections.abc import Sequence
from math import floor
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from argap.reports.drawing import FAINT, FORMATS, WIDTH, Look, grid, looks, panel_rows, plain, save, style
from argap.reports.tables import nats, percent, threshold_text

Part = dict[str, Any]

FEW = 30  # tokens: fewer in a bin make its mean a matter of luck, and it is drawn hollow
LABELLED = 0.015  # share of the gap from which a bar carries its percentage
TOP_DOMAINS = 12
KINDS = {True: "Repeated in the window", False: "Not repeated"}
COLUMNS = 3  # panels side by side


def draw_all(gap: dict[str, Any], folder: Path, formats: Sequence[str] = FORMATS) -> dict[str, Path]:
    """Write every figure to ``folder`` in the given formats; returns the path of each SVG by the figure's name.

    Without a model beside the reference there is no gap, and only the first figure.
    """
    figures = {"nll_by_frequency": nll_by_frequency(gap)}
    if len(gap["rows"]) > 1:
        figures["gap_by_frequency"] = gap_by_frequency(gap)
        figures["gap_by_distance"] = gap_by_bin(gap, "distance", "Tokens back to the bigram's nearest occurrence")
        figures["gap_by_position"] = gap_by_bin(gap, "position", "Position in the window")
        if len(gap["breakdowns"]["domain"]) > 1:
            figures["gap_by_domain"] = gap_by_domain(gap)
    return {name: save(figure, folder, name, formats) for name, figure in figures.items()}


@style()
def nll_by_frequency(gap: dict[str, Any]) -> Figure:
    """NLL against the training count of the bigram, repeated tokens and others side by side.

    The form of figure 1 of arXiv 2312.04927; below, how many tokens each point stands for.
    """
    models = [row["model"] for row in gap["rows"]]
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=(4, 1))
    order = _bin_order(gap, "frequency")
    look = looks(models)
    for repeated, (above, below) in zip((True, False), panels.T, strict=True):
        parts = [p for p in gap["breakdowns"]["frequency"] if p["repeated"] == repeated]
        places = [order[p["bin"]] for p in parts]
        for model in models:
            _line(above, places, parts, model, look[model])
        below.bar(places, [100 * p["share"] for p in parts], color="#b8b8b8", width=0.8)
        above.set_title(KINDS[repeated])
        for axes in (above, below):
            grid(axes)
            _threshold_line(axes, gap)
        _frequency_ticks(below, gap, order)
    _name_the_hits(panels[0, 0], gap)
    panels[0, 0].set_ylabel("NLL (nats per token)")
    panels[0, 0].set_ylim(bottom=min(0, panels[0, 0].get_ylim()[0]))
    panels[1, 0].set_ylabel("% of tokens")
    figure.supxlabel("Occurrences of the bigram in the training text", fontsize=9)
    handles = [Line2D([], [], markersize=5, label=plain(k), **v.curve) for k, v in look.items()]
    figure.legend(handles=handles, loc="outside upper left", ncols=min(4, len(handles)))
    return figure


@style()
def gap_by_frequency(gap: dict[str, Any]) -> Figure:
    """Each bin's part of the gap, repeated tokens and others side by side, one row a model.

    AR hits are drawn full, all other tokens pale.
    """
    look, deltas = _compared(gap)
    figure = Figure(figsize=(WIDTH, 1.1 + 1.9 * len(deltas)), layout="constrained")
    panels = figure.subplots(len(deltas), 2, sharex=True, sharey=True, squeeze=False)
    order = _bin_order(gap, "frequency")
    for model, row in zip(deltas, panels, strict=True):
        for repeated, axes in zip((True, False), row, strict=True):
            parts = [p for p in gap["breakdowns"]["frequency"] if p["repeated"] == repeated]
            values = [p["contribution"][model] for p in parts]
            places = [order[p["bin"]] for p in parts]
            full = [repeated and place < _threshold_place(gap) for place in places]
            _bars(axes, places, values, look[model], deltas[model], full, small=True)
            _threshold_line(axes, gap)
            _frequency_ticks(axes, gap, order)
            name = f"{plain(model, 20)}, repeated" if repeated else "Not repeated"
            axes.set_title(f"{name}: {_share_text(sum(values), deltas[model])}")
        _name_the_hits(row[0], gap)
    _headroom(panels)
    figure.supylabel("Part of the gap (nats per token)", fontsize=9)
    figure.supxlabel("Occurrences of the bigram in the training text", fontsize=9)
    return figure


@style()
def gap_by_bin(gap: dict[str, Any], kind: str, label: str) -> Figure:
    """Each bin's part of the gap by distance or by position, one row a model.

    Tokens that are not repeated are drawn pale: none of them is an AR hit.
    """
    look, deltas = _compared(gap)
    figure = Figure(figsize=(WIDTH, 0.8 + 1.9 * len(deltas)), layout="constrained")
    panels = figure.subplots(len(deltas), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    parts = gap["breakdowns"][kind]
    order = _bin_order(gap, kind)
    for model, axes in zip(deltas, panels, strict=True):
        values = [p["contribution"][model] for p in parts]
        full = [p["bin"] != "not repeated" for p in parts]
        _bars(axes, [order[p["bin"]] for p in parts], values, look[model], deltas[model], full)
        axes.set_title(f"{plain(model)}: gap {nats(deltas[model])} nats")
    panels[-1].set_xticks([order[p["bin"]] for p in parts], [_broken(p["bin"]) for p in parts])
    _headroom(panels)
    figure.supylabel("Part of the gap (nats per token)", fontsize=9)
    panels[-1].set_xlabel(label)
    return figure


@style()
def gap_by_domain(gap: dict[str, Any]) -> Figure:
    """Each domain's part of the gap, the largest first, one panel a model."""
    look, deltas = _compared(gap)
    parts = _top_domains(gap["breakdowns"]["domain"], list(deltas))
    places = np.arange(len(parts))[::-1]
    figure, each = panel_rows(len(deltas), across=COLUMNS, head=0.6, row=0.55 + 0.27 * len(parts))
    for model, axes in zip(deltas, each, strict=True):
        values = np.array([p["contribution"][model] for p in parts])
        axes.barh(places, values, height=0.7, color=look[model].colour)
        axes.grid(axis="x")
        axes.tick_params(length=0)
        axes.axvline(0, color=FAINT, linewidth=0.8)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_title(f"{plain(model, 20)}\n{nats(deltas[model])} nats")
        for place, value in zip(places, values, strict=True):
            axes.annotate(
                _percent_of(value, deltas[model]),
                (max(value, 0), place),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    each[0].margins(x=0.18)
    each[0].set_yticks(places, [f"{plain(p['bin'], 28)} ({100 * p['share']:.1f}% of tokens)" for p in parts])
    figure.supxlabel("Part of the gap (nats per token)", fontsize=9)
    return figure


def _compared(gap: dict[str, Any]) -> tuple[dict[str, Look], dict[str, float]]:
    """Looks of all models, and the gap in nats of each but the reference."""
    rows = gap["rows"]
    return looks([r["model"] for r in rows]), {r["model"]: r["delta"]["nll"] for r in rows if not r["reference"]}


def _bin_order(gap: dict[str, Any], kind: str) -> dict[str, int]:
    """The place of each bin on the axis, by its label."""
    return {b["label"]: k for k, b in enumerate(gap["bins"][kind])}


def _line(axes: Axes, places: list[int], parts: list[Part], model: str, look: Look) -> None:
    """One model's curve; points of few tokens are hollow."""
    nll = [p["nll"][model] for p in parts]
    axes.plot(places, nll, color=look.colour, linestyle=look.line, linewidth=1.6)
    for enough, face in ((True, look.colour), (False, "white")):
        chosen = [(x, y) for x, y, p in zip(places, nll, parts, strict=True) if (p["n"] >= FEW) == enough]
        if chosen:
            axes.plot(*zip(*chosen, strict=True), look.marker, color=look.colour, markerfacecolor=face, markersize=4.5)


def _bars(
    axes: Axes,
    places: list[int],
    values: list[float],
    look: Look,
    delta: float,
    full: list[bool],
    small: bool = False,
) -> None:
    """Bars of contributions, in the model's colour or pale, the larger ones with their share of the gap."""
    grid(axes)
    axes.bar(places, values, width=0.8, color=[look.colour if f else look.pale for f in full])
    axes.axhline(0, color=FAINT, linewidth=0.8)
    axes.spines["bottom"].set_visible(False)  # zero is the base, and need not be the lower end
    axes.yaxis.set_major_locator(MaxNLocator(5))
    for place, value in zip(places, values, strict=True):
        if delta <= 0 or abs(value) < LABELLED * delta:
            continue
        axes.annotate(
            _percent_of(value, delta).removesuffix("%" if small else ""),
            (place, value),
            xytext=(0, 2 if value > 0 else -2),
            textcoords="offset points",
            ha="center",
            va="bottom" if value > 0 else "top",
            fontsize=7 if small else 8,
        )


def _threshold_line(axes: Axes, gap: dict[str, Any]) -> None:
    """Between the last bin of AR hits and the next."""
    axes.axvline(_threshold_place(gap), color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)))


def _threshold_place(gap: dict[str, Any]) -> float:
    highs = [b["high"] for b in gap["bins"]["frequency"]]
    return highs.index(int(gap["threshold"])) + 0.5


def _name_the_hits(axes: Axes, gap: dict[str, Any]) -> None:
    """Say which side of the line the AR hits are."""
    axes.annotate(
        f"AR hits ◂ τ = {threshold_text(gap['threshold'])}",
        (_threshold_place(gap), 1),
        xycoords=("data", "axes fraction"),
        xytext=(-4, -2),
        textcoords="offset points",
        ha="right",
        va="top",
        fontsize=8,
        color=FAINT,
    )


def _frequency_ticks(axes: Axes, gap: dict[str, Any], order: dict[str, int]) -> None:
    """Name 0, 1, 10, 100 …: the upper ends of their bins.

    The axis ends with the last bin in use, and not before τ, whose label would lie outside and leave no room.
    """
    bins = gap["bins"]["frequency"]
    last = max([floor(_threshold_place(gap)), *(order[p["bin"]] for p in gap["breakdowns"]["frequency"])])
    ticks = {k: _compact(b["high"]) for k, b in enumerate(bins[: last + 1]) if _is_decade(b["high"])}
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_xlim(-0.7, last + 0.7)


def _is_decade(value: int | None) -> bool:
    return value is not None and (value == 0 or str(value).strip("0") == "1")


def _compact(value: int) -> str:
    """``10k`` for 10000."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if value >= size:
            return f"{value // size}{unit}"
    return str(value)


def _headroom(panels: np.ndarray) -> None:
    """Room for the percentages over the bars, and under those that fall, alike on all ``panels``."""
    ends = [y for axes in panels.flat for bar in axes.patches for y in (bar.get_y(), bar.get_y() + bar.get_height())]
    low, high = min(ends), max(ends)
    room = 0.2 * (high - low or 1.0)
    panels.flat[0].set_ylim(low - room if low < -0.05 * high else low, high + room if high > 0 else high)


def _top_domains(parts: list[Part], models: list[str]) -> list[Part]:
    """The domains with the largest parts of the gaps; the rest as one, so that the parts still add up."""
    ranked = sorted(parts, key=lambda p: (-sum(abs(p["contribution"][m]) for m in models), p["bin"]))
    if len(ranked) <= TOP_DOMAINS + 1:
        return ranked
    kept, rest = ranked[:TOP_DOMAINS], ranked[TOP_DOMAINS:]
    other = {
        "bin": f"{len(rest)} others",
        "share": sum(p["share"] for p in rest),
        "contribution": {m: sum(p["contribution"][m] for p in rest) for m in models},
    }
    return [*kept, other]


def _broken(label: str) -> str:
    """A long label on two lines."""
    low, dash, high = label.partition("–")
    if label == "not repeated":
        return "not\nrepeated"
    return f"{low}–\n{high}" if dash and len(label) > 6 else label


def _percent_of(value: float, delta: float) -> str:
    """A part of the gap in percent; nothing where there is no gap."""
    return percent(value / delta, 0) if delta > 0 else ""


def _share_text(total: float, delta: float) -> str:
    """``73%`` of the gap, or nats where there is no gap to take a share of."""
    return _percent_of(total, delta) if delta > 0 else f"{nats(total)} nats"
