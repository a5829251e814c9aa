"""Draw the figures of a suite: distances, prevalence, and the gap by distance and count."""

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import PercentFormatter

from argap.records import Bin
from argap.reports.figures.drawing import (
    COLOURS,
    FAINT,
    GREY,
    WIDTH,
    decades,
    grid,
    note,
    panel_rows,
    plain,
    style,
)
from argap.reports.figures.hover import tell
from argap.reports.figures.panels import training_count
from argap.reports.figures.pretrained import pretrained_figure
from argap.reports.figures.result import Drawn, written
from argap.reports.figures.training import learning_curves, recall_along_training
from argap.reports.tables.numbers import MANY, nats, percent, seen, short, whole
from argap.slices.cells import PREFIX
from argap.suite.repeats import power_law
from argap.suite.result import SizeResult

COLUMNS, MANY_COLUMNS = 3, 5
"""Panels side by side; of more than `MANY` models."""
SMALL = {"fontsize": 6.8, "fontweight": "normal"}
"""Text style that fits a title of 19 characters above one of five panels."""
BYTES = 2
"""Bytes of an element of the state, as in bfloat16."""
SHAPE = ("architecture", "mixers", "hidden_size", "num_layers", "model")
"""Settings of a training that make the model."""
BESIDE = tuple((side, off) for off in (0, 4, -4, 8, -8, 12, -12) for side in ("left", "right"))
"""Where a point's name may stand: which of its ends is near the point, and how many points higher."""
FEW = 30  # a mean over fewer tokens is mostly noise


CAPTIONS = {
    "learning_curves": (
        "Training loss minus the reference's on the same batches, both running means over 2% of the run, without the "
        "first tenth of it."
    ),
    "recall_along_training": (
        "NLL of the AR hits and of the other tokens, and the share of the gap due to AR, at checkpoints along training."
    ),
    "recall_of_pairs": (
        "Recall of random pairs (appendix G of the paper): perplexity and accuracy of the value when its key returns, "
        "by the number of pairs in a window, with 95% intervals. Of many models, the three least and the three most "
        "perplexed are in colour."
    ),
    "recall_against_state": (
        "NLL of the AR hits against the state that a sequence needs at the end of a window, at two bytes an element. "
        "The line joins the models that no other surpasses with as small a state. A model that was trained at several "
        "rates is shown at its best."
    ),
    "gap_by_distance_and_frequency": (
        "Nats lost to the reference on repeated bigrams, by the distance back to the nearest occurrence and by how "
        "often training saw the bigram. Cells of fewer than 30 tokens are empty."
    ),
    "distances": (
        "How far back the bigram of an AR hit last occurred, by domain. Orange: the power law with exponent α (95% "
        "interval in parentheses)."
    ),
    "prevalence": "The share of tokens that repeat a bigram of their window, by domain and by position in the window.",
}
"""Caption of each figure of a suite, in the order of the page."""


def draw_suite(result: SizeResult, folder: Path) -> dict[str, Drawn]:
    """Write every figure of one size as SVG, by name, in the order of `CAPTIONS`; some need AR hits or repeats."""
    figures = {
        "prevalence": prevalence(result),
        "learning_curves": learning_curves(result),
    }
    several, has_hits = len(result.gap.rows) > 1, result.gap.on_hits.n > 0
    if has_hits:
        figures["distances"] = distances(result)
    if several and has_hits:
        figures["recall_against_state"] = recall_against_state(result)
    if several and result.cells["repeated"].to_numpy().any():
        figures["gap_by_distance_and_frequency"] = heat(result)
    if (trajectory := result.trajectory()) is not None:
        gap = result.gap
        figures["recall_along_training"] = recall_along_training(trajectory, gap.models, result.reference, gap)
    if (scores := result.mqar()) is not None:
        figures["recall_of_pairs"] = pretrained_figure(scores)
    return written({name: figures[name] for name in CAPTIONS if name in figures}, folder)


@style()
def distances(result: SizeResult) -> Figure:
    """Draw the distances of AR hits in each domain, in bins of doubling width, with the fitted power law."""
    histogram = result.distances()
    exponents = {str(row["domain"]): row for row in result.exponents().to_dict("records")}
    names = list(exponents)
    figure, each = panel_rows(len(names), across=COLUMNS, head=0.7, row=1.9)
    longest = result.seq_len - 2
    for name, axes in zip(names, each, strict=True):
        part = histogram if name == "all" else histogram.loc[histogram["domain"] == name]
        counts = np.bincount(part["distance"].to_numpy(), part["n"].to_numpy(), minlength=longest + 1)[1:]
        centre, density = _doubling(counts / counts.sum())
        fit = exponents[name]
        axes.loglog(centre, density, "o", color="#0072B2", markersize=4)
        told = [f"{d:,.0f} tokens back" for d in centre]
        tell(axes, list(centre), told, {name: [(y, f"{100 * y:.2g}% a token") for y in density]})
        axes.loglog(*_doubling(power_law(np.array([fit["exponent"]]), longest)), color="#D55E00", linewidth=1.5)
        decades(axes, "x")
        decades(axes, "y")
        axes.set_title(plain(name, 24))
        axes.annotate(
            f"α = {fit['exponent']:.2f}\n({fit['low']:.2f}–{fit['high']:.2f})",
            (0.96, 0.94),
            xycoords="axes fraction",
            ha="right",
            va="top",
            fontsize=8,
        )
        grid(axes)
    figure.supxlabel("Tokens back to the bigram's nearest occurrence, d", fontsize=9)
    figure.supylabel("Share of the AR hits a token of distance", fontsize=9)
    return figure


@style()
def prevalence(result: SizeResult) -> Figure:
    """Draw the share of tokens that repeat a bigram of their window, by domain and by position."""
    table = result.prevalence()
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    subsets = {"all bigrams": table, "without function words and punctuation": table.loc[table["content"]]}
    domains, positions = sorted(table["domain"].unique()), sorted(table["position"].unique())
    values: dict[str, dict[str, list[tuple[float | None, str]]]] = {"domain": {}, "position": {}}
    for k, (label, part) in enumerate(subsets.items()):
        colour = ("#56B4E9", "#0072B2")[k]
        heights = np.arange(len(domains))[::-1] + (0.2 - 0.4 * k)
        left.barh(heights, _share(part, "domain", domains), 0.38, color=colour, label=label)
        for by, order in (("domain", domains), ("position", positions)):
            values[by][label] = [(share, percent(share)) for share in _share(part, by, order)]
        right.plot(positions, _share(part, "position", positions), "os"[k] + "-", color=colour, markersize=4)
    left.set_yticks(np.arange(len(domains))[::-1], [plain(d, 24) for d in domains])
    grid(left, "x")
    left.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    grid(right)
    right.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    right.set_ylim(bottom=0)
    ends = [bin_.high for bin_ in result.gap.bins.position]
    tell(left, list(np.arange(len(domains))[::-1]), [str(d) for d in domains], values["domain"], along="y")
    tell(right, positions, [f"up to position {ends[p]}" for p in positions], values["position"])
    right.set_xticks(positions, [str(ends[p]) if ends[p] is not None else "" for p in positions], rotation=45)
    right.set_xlabel("Position in the window, up to")
    left.set_xlabel("Tokens that repeat a bigram")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper left", ncols=2)
    return figure


@style()
def recall_against_state(result: SizeResult) -> Figure:
    """Draw each model's NLL on the AR hits against the bytes of its state, and the frontier of the two."""
    hits = result.gap.on_hits
    points = {
        model: (BYTES * result.member(model).state_size, nll)
        for model in at_best_rate(result)
        if (nll := hits[model].nll) is not None
    }
    figure = Figure(figsize=(WIDTH, 3.9), layout="constrained")
    axes = figure.subplots()
    best = frontier(points)
    axes.step(*zip(*(points[model] for model in best), strict=True), where="post", color=FAINT, linewidth=1, zorder=1)
    for model, (state, nll) in points.items():
        colour = COLOURS[0] if model == result.reference else COLOURS[1] if model in best else GREY
        axes.plot(state, nll, "o", color=colour, markersize=5)
    axes.set_xscale("log")
    decades(axes, "x", subs=(1, 2, 5))
    axes.margins(x=0.08)
    _name_points(axes, points)
    grid(axes, "both")
    axes.set_xlabel("State of a sequence (bytes)")
    axes.set_ylabel("NLL of the AR hits (nats)")
    shown = sorted(points, key=lambda model: points[model])
    told = [(nll, f"{nats(nll)} nats, {short(state)} bytes") for state, nll in (points[model] for model in shown)]
    tell(axes, [points[model][0] for model in shown], shown, {"AR hits": told}, guide=False)
    return figure


def at_best_rate(result: SizeResult) -> list[str]:
    """Return the models without those of the same shape as another that have a higher NLL, such as at another rate."""
    overall = {model: result.gap.on_all[model].nll or math.inf for model in result.gap.models}
    best: dict[str, str] = {}
    for model in sorted(overall, key=lambda model: (model != result.reference, overall[model])):
        config = result.member(model).train.config
        best.setdefault(repr([config.get(key) for key in SHAPE]), model)
    return [model for model in overall if model in best.values()]


def frontier(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Return the points, by falling second value, that none with as small a first value lies below."""
    best: list[str] = []
    for name in sorted(points, key=lambda name: points[name]):
        if not best or points[name][1] < points[best[-1]][1]:
            best.append(name)
    return best


def _name_points(axes: Axes, points: Mapping[str, tuple[float, float]]) -> None:
    """Write each name at the first of `BESIDE` its point that crosses the fewest names and points, and not the edge."""
    px = axes.figure.dpi / 72
    places = {name: axes.transData.transform(point) for name, point in points.items()}
    dots = {name: (x - 3 * px, x + 3 * px, y) for name, (x, y) in places.items()}
    names: list[tuple[float, float, float]] = []  # left and right end, height, in pixels
    for name in sorted(points, key=lambda name: points[name][1]):
        x, y = places[name]
        shown = plain(name, 24)
        width = 4 * px * len(shown)
        near = [*names, *(dot for other, dot in dots.items() if other != name)]
        spots = [(x + 5 * px if side == "left" else x - 5 * px - width, y + off * px) for side, off in BESIDE]
        crossed = [
            sum(begin < left + width and end > left and abs(height - at) < 7.5 * px for begin, end, at in near)
            + (left + width > axes.bbox.x1 + 5 * px)
            for left, height in spots
        ]
        best = crossed.index(min(crossed))
        (left, height), (side, off) = spots[best], BESIDE[best]
        names.append((left, left + width, height))
        halo = [withStroke(linewidth=2.5, foreground="white")]
        at = (5 if side == "left" else -5, off - 2.5)
        note(axes, shown, points[name], at, 7, ha=side, path_effects=halo)


@style()
def heat(result: SizeResult) -> Figure:
    """Draw each model's excess loss over the reference on repeated tokens, in nats per token, by distance and count.

    Cells with fewer than `FEW` tokens are empty.
    """
    table = result.heat()
    models = [row.model for row in result.gap.compared]
    bins = result.gap.bins
    rows, columns = sorted(table["frequency"].unique()), sorted(table["distance"].unique())
    many = len(models) > MANY
    across, high = (MANY_COLUMNS, 1.25) if many else (COLUMNS, 1.9)
    figure, each = panel_rows(len(models), across=across, head=0.9, row=high)
    grids = {model: _mean_loss(table, model, result.reference, rows, columns) for model in models}
    known = [values for values in grids.values() if not np.isnan(values).all()]
    top = max((float(np.nanquantile(values, 0.98)) for values in known), default=1.0)
    image, every = None, 4 if many else 2
    for model, axes in zip(models, each, strict=True):
        image = axes.imshow(grids[model], cmap="cividis", vmin=0, vmax=top, origin="lower", aspect="auto")
        axes.set_title(plain(model, 19 if many else 24), **(SMALL if many else {}))
        _tell_map(axes, grids[model], [bins.distance[k] for k in columns], [bins.frequency[k] for k in rows])
        x, y = range(0, len(columns), every), range(0, len(rows), every + 1)
        axes.set_xticks(x, [_end(bins.distance[columns[k]]) for k in x])
        axes.set_yticks(y, [_end(bins.frequency[rows[k]]) for k in y])
        axes.tick_params(length=0, labelsize=7.5)
    assert image is not None
    figure.colorbar(image, ax=each, label="Nats per token lost to the reference", shrink=0.8)
    figure.supxlabel("Tokens back to the bigram's nearest occurrence, up to", fontsize=9)
    figure.supylabel(f"{training_count(result.gap)}, up to", fontsize=9)
    return figure


def _doubling(density: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Average a density on 1 … L over the bins 1, 2–3, 4–7, 8–15 …; return geometric centres and means."""
    edges = np.unique(np.minimum(2 ** np.arange(np.ceil(np.log2(len(density))) + 2), len(density) + 1)).astype(int)
    pairs = list(pairwise(edges.tolist()))
    centre = np.array([np.sqrt(a * (b - 1)) for a, b in pairs])
    mean = np.array([density[a - 1 : b - 1].mean() for a, b in pairs])
    return centre[mean > 0], mean[mean > 0]


def _share(part: pd.DataFrame, by: str, order: list) -> list[float]:
    """Return the share of repeated tokens in each group."""
    group, n, repeated = (part[name].to_numpy() for name in (by, "n", "repeated"))
    return [repeated[group == each].sum() / n[group == each].sum() for each in order]


def _mean_loss(table: pd.DataFrame, model: str, reference: str, rows: list, columns: list) -> np.ndarray:
    """Return the loss in nats per token, ``[rows, columns]``; NaN if infinite or from fewer than `FEW` tokens."""
    lost = (table[PREFIX + reference] - table[PREFIX + model]).to_numpy()
    n = table["n"].to_numpy()
    mean = np.full((len(rows), len(columns)), np.nan)
    at = (np.searchsorted(rows, table["frequency"].to_numpy()), np.searchsorted(columns, table["distance"].to_numpy()))
    mean[at] = np.where((n >= FEW) & np.isfinite(lost), lost / n, np.nan)
    return mean


def _tell_map(axes: Axes, values: np.ndarray, columns: list[Bin], rows: list[Bin]) -> None:
    """Register each row of the map as a series over distances."""
    series: dict[str, list[tuple[float | None, str]]] = {}
    for k in reversed(range(len(rows))):
        series[seen(rows[k].label)] = [
            (None, "") if np.isnan(value) else (float(k), f"{nats(value)} nats per token") for value in values[k]
        ]
    tell(axes, list(range(len(columns))), [f"{each.label} tokens back" for each in columns], series, guide=False)


def _end(bin_: Bin) -> str:
    return "…" if bin_.high is None else whole(bin_.high)
