"""Draw the figures of a result: how good each model is, and where the gap to the reference lies.

Each function takes the `Gap` of a ``gap.json`` and returns a matplotlib figure, 7.2 inches wide; `draw_all` writes them
all. NLLs and parts of the gap are in nats per token, or per byte if the tokenizers differ.

    from pathlib import Path
    from argap.records import read_gap
    from argap.reports.figures import gap_by_frequency

    gap_by_frequency(read_gap(Path("runs/demo"))).savefig("gap.pdf")
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from argap.errors import ArgapError
from argap.records import ContextUse, Gap
from argap.reports.figures.drawing import (
    FAINT,
    GREY,
    INK,
    SHARE,
    WIDTH,
    grid,
    highlight,
    legend_of_models,
    looks,
    note,
    panel_rows,
    plain,
    save,
    style,
)
from argap.reports.figures.hover import Panel, tell, told
from argap.reports.figures.panels import (
    add_headroom,
    bar_values,
    bin_numbers,
    broken,
    by_frequency,
    deltas_to_share,
    draw_bars,
    draw_curve,
    draw_threshold,
    heads,
    name_the_hits,
    percent_of,
    set_frequency_ticks,
    share_text,
    threshold_position,
    top_domains,
    training_count,
    value_of,
)
from argap.reports.figures.small_multiples import domain_map, small_bins, small_frequency
from argap.reports.figures.threshold import share_by_threshold
from argap.reports.tables.numbers import MANY, nats, percent, seen, signed, signed_range
from argap.reports.tables.overview import of_interest
from argap.reports.tables.result import context_name
from argap.results.layout import OWN_SCALES

ACROSS = 3  # panels side by side
TITLES = {True: "Repeated in the window", False: "Not repeated"}
AXIS_LABELS: dict[Literal["distance", "position"], str] = {
    "distance": "Tokens back to the bigram's nearest occurrence",
    "position": "Position in the window",
}


class Drawn(NamedTuple):
    """A figure that was written."""

    path: Path
    """Path of the SVG."""
    panels: tuple[Panel, ...]
    """The values that it shows."""


def draw_all(gap: Gap, folder: Path, formats: Sequence[str] = ("svg",)) -> dict[str, Drawn]:
    """Write every figure to ``folder`` in the given formats, by name.

    A reference alone, or without a finite gap to it, has only the first figure. A text with one domain has no figure by
    domain, a result without training counts has none by frequency, and one without passes over a short context no curve
    of context use. More than `MANY` models are drawn as small multiples. Figures with a panel for each of several
    models come twice: with one scale, and, named with `OWN_SCALES`, with a scale for each.
    """
    counted, many = gap.index is not None, len(gap.compared) > MANY
    figures = {"nll_by_frequency": nll_by_frequency(gap)} if counted and _finite(gap) else {}
    for own in (False, True)[: len(gap.deltas)]:
        suffix = OWN_SCALES if own else ""
        if counted:
            figures[f"gap_by_frequency{suffix}"] = (small_frequency if many else gap_by_frequency)(gap, own)
        if len(gap.curve) > 1 and not own:
            figures["share_by_threshold"] = share_by_threshold(gap)
        for by in AXIS_LABELS:
            if gap.parts(by):
                figures[f"gap_by_{by}{suffix}"] = (small_bins if many else gap_by_bin)(gap, by, own)
        if len(gap.parts("domain")) > 1 and not (many and own):
            figures[f"gap_by_domain{suffix}"] = domain_map(gap) if many else gap_by_domain(gap, own)
    if gap.context:
        figures["context_use"] = context_use(gap)
    return written(figures, folder, formats)


def written(figures: Mapping[str, Figure], folder: Path, formats: Sequence[str] = ("svg",)) -> dict[str, Drawn]:
    """Write each figure to a file of its name."""
    return {name: Drawn(save(figure, folder, name, formats), told(figure)) for name, figure in figures.items()}


@style()
def nll_by_frequency(gap: Gap) -> Figure:
    """Draw NLL against the training count of the bigram, after figure 1 of arXiv 2312.04927.

    2 × 2 panels: repeated bigrams left, all others right; above NLL (one curve per model, hollow points for fewer than
    30 tokens), below the percentage of the scored tokens. The dashed line is τ. With many models, those of interest are
    in colour.
    """
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    panels = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=(4, 1))
    number = bin_numbers(gap.bins.frequency)
    of_each = highlight(gap.models, of_interest(gap))
    look = {model: of_each[model] for model in _finite(gap)}
    grey = [model for model in look if look[model].colour == GREY]
    coloured = [model for model in look if model not in grey]
    for repeated, (above, below) in zip((True, False), panels.T, strict=True):
        parts = by_frequency(gap, repeated)
        x = [number[part.bin] for part in parts]
        for model in grey + coloured:  # coloured curves on top
            draw_curve(above, x, parts, model, look[model])
        below.bar(x, [100 * part.share_of_tokens for part in parts], color=SHARE, width=0.8)
        bins = heads(parts, gap, seen)
        nll = {m: [(part[m].nll, f"{part[m].nll:.3f} nats") for part in parts] for m in coloured + grey}
        tell(above, x, bins, nll, bins=len(gap.bins.frequency))
        tell(
            below,
            x,
            bins,
            {"Share": [(100 * part.share_of_tokens, percent(part.share_of_tokens, 2)) for part in parts]},
            bins=len(gap.bins.frequency),
        )
        above.set_title(TITLES[repeated])
        for axes in (above, below):
            grid(axes)
            draw_threshold(axes, gap)
        set_frequency_ticks(below, gap)
    name_the_hits(panels[0, 0], gap)
    panels[0, 0].set_ylabel(f"NLL (nats per {gap.unit})")
    panels[0, 0].set_ylim(bottom=min(0, panels[0, 0].get_ylim()[0]))
    panels[1, 0].set_ylabel(f"% of {gap.unit}s")
    figure.supxlabel(training_count(gap), fontsize=9)
    legend_of_models(figure, look)
    return figure


@style()
def gap_by_frequency(gap: Gap, own: bool = False) -> Figure:
    """Draw each frequency bin's part of the gap, one row of panels per model: repeated bigrams left, all others right.

    AR hits have the model's colour, all other tokens a pale one. The bars of a row add up to the model's gap. ``own``:
    each model has its own scale, here and in `gap_by_bin` and `gap_by_domain`, which also raise `ArgapError` for a
    reference alone.
    """
    look, deltas = looks(gap.models), _deltas(gap)
    figure = Figure(figsize=(WIDTH, 1.1 + 1.9 * len(deltas)), layout="constrained")
    panels = figure.subplots(len(deltas), 2, sharex=True, sharey="row" if own else True, squeeze=False)
    number = bin_numbers(gap.bins.frequency)
    for (model, delta), row in zip(deltas.items(), panels, strict=True):
        for repeated, axes in zip((True, False), row, strict=True):
            parts = by_frequency(gap, repeated)
            values = [value_of(part[model]) for part in parts]
            x = [number[part.bin] for part in parts]
            full = [repeated and k < threshold_position(gap) for k in x]
            draw_bars(
                axes, x, values, look[model], delta, full, [part[model].contribution_ci95 for part in parts], small=True
            )
            values_of = {model: bar_values(parts, model, delta)}
            hits = look[model] if repeated else None
            tell(axes, x, heads(parts, gap, seen), values_of, bins=len(gap.bins.frequency), hits=hits)
            draw_threshold(axes, gap)
            set_frequency_ticks(axes, gap)
            name = f"{plain(model, 20)}, repeated" if repeated else TITLES[False]
            axes.set_title(f"{name}: {share_text(sum(values), delta)}")
        name_the_hits(row[0], gap, foot=gap.deltas[model] < 0)
    for row in panels if own else [panels]:
        add_headroom(row)
    figure.supylabel(f"Part of ΔNLL (nats per {gap.unit})", fontsize=9)
    figure.supxlabel(training_count(gap), fontsize=9)
    return figure


@style()
def gap_by_bin(gap: Gap, by: Literal["distance", "position"], own: bool = False) -> Figure:
    """Draw each bin's part of the gap by distance or by position, one panel per model.

    Tokens that are not repeated, and so never AR hits, are pale. The bars of a panel add up to the model's gap.
    """
    look, deltas = looks(gap.models), _deltas(gap)
    figure = Figure(figsize=(WIDTH, 0.8 + 1.9 * len(deltas)), layout="constrained")
    panels = figure.subplots(len(deltas), 1, sharex=True, sharey=not own, squeeze=False)[:, 0]
    parts, bins = gap.parts(by), getattr(gap.bins, by)
    number = bin_numbers(bins)
    x = [number[part.bin] for part in parts]
    for (model, delta), axes in zip(deltas.items(), panels, strict=True):
        values = [value_of(part[model]) for part in parts]
        full = [part.bin != "not repeated" for part in parts]
        draw_bars(axes, x, values, look[model], delta, full, [part[model].contribution_ci95 for part in parts])
        axes.set_title(f"{plain(model)}: {signed(gap.deltas[model])} nats")
        tell(axes, x, heads(parts, gap), {model: bar_values(parts, model, delta)})
    panels[-1].set_xticks(x, [broken(part.bin) for part in parts])
    for each in panels.reshape(-1, 1) if own else [panels]:
        add_headroom(each)
    figure.supylabel(f"Part of ΔNLL (nats per {gap.unit})", fontsize=9)
    panels[-1].set_xlabel(AXIS_LABELS[by])
    return figure


@style()
def gap_by_domain(gap: Gap, own: bool = False) -> Figure:
    """Draw each domain's part of the gap, largest first, one panel per model.

    Beyond 13 domains the smallest share one bar, so that the bars of a panel add up to the model's gap.
    """
    look, deltas = looks(gap.models), _deltas(gap)
    parts = top_domains(gap)
    y = np.arange(len(parts))[::-1]
    figure, panels = panel_rows(len(deltas), across=ACROSS, head=0.6, row=0.55 + 0.27 * len(parts), sharex=not own)
    for (model, delta), axes in zip(deltas.items(), panels, strict=True):
        values = np.array([value_of(part[model]) for part in parts])
        axes.barh(y, values, height=0.7, color=look[model].colour)
        ends = [(at, pair) for at, part in zip(y, parts, strict=True) if (pair := part[model].contribution_ci95)]
        for at, (low, high) in ends:
            axes.hlines(at, low, high, color=INK, linewidth=0.8)
        tips, low_tips = ({at: pair[k] for at, pair in ends} for k in (1, 0))
        grid(axes, "x")
        axes.axvline(0, color=FAINT, linewidth=0.8)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_title(f"{plain(model, 20)}\n{signed(gap.deltas[model])} nats")
        tell(axes, list(y), heads(parts, gap), {model: bar_values(parts, model, delta)}, along="y")
        for at, value in zip(y, values, strict=True):
            right = value > 0 or max(values) > 0  # label left bars on their left only if no bar points right
            if right:
                note(axes, percent_of(value, delta), (max(value, tips.get(at, 0), 0), at), (3, 0), va="center")
            else:
                left = min(value, low_tips.get(at, 0), 0)
                note(axes, percent_of(value, delta), (left, at), (-3, 0), ha="right", va="center")
    for axes in panels if own else panels[:1]:
        axes.margins(x=0.18)
    panels[0].set_yticks(
        y, [f"{plain(part.bin, 28)} ({100 * part.share_of_tokens:.1f}% of {gap.unit}s)" for part in parts]
    )
    figure.supxlabel(f"Part of ΔNLL (nats per {gap.unit})", fontsize=9)
    return figure


def _finite(gap: Gap) -> list[str]:
    """Return the models with a finite NLL."""
    return [model for model in gap.models if gap.on_all[model].nll is not None]


def _deltas(gap: Gap) -> dict[str, float]:
    """Return `deltas_to_share`, refusing a reference alone."""
    if not gap.deltas:
        raise ArgapError(f"{gap.reference} alone has no gap to draw; expected a result with another model beside it")
    return deltas_to_share(gap)


@style()
def context_use(gap: Gap) -> Figure:
    """Draw NLL with each context, and what the whole window adds to it, with 95% intervals over documents.

    The axis is logarithmic; the last point is the whole window.
    """
    of_model: dict[str, list[ContextUse]] = {}
    for each in gap.context:
        of_model.setdefault(each.model, []).append(each)
    look = highlight([*of_model], of_interest(gap))
    figure = Figure(figsize=(WIDTH, 3.2), layout="constrained")
    loss, gain = figure.subplots(1, 2, sharex=True)
    every = {each.context or gap.evaluation.seq_len: context_name(each) for each in gap.context}
    at = sorted(every)
    for k, (model, points) in enumerate(of_model.items()):
        x = np.array([each.context or gap.evaluation.seq_len for each in points], dtype=np.float64)
        nll = [np.nan if each.nll is None else each.nll for each in points]
        added = [0.0 if each.context is None else np.nan if each.gain is None else each.gain for each in points]
        for axes, values in ((loss, nll), (gain, added)):
            axes.plot(x, values, markersize=4.5, linewidth=look[model].width, **look[model].curve)
        beside = x * 1.02 ** (k - (len(of_model) - 1) / 2)  # whiskers of several models side by side
        known = [(place, each.gain_ci95) for place, each in zip(beside, points, strict=True) if each.gain_ci95]
        for place, (low, high) in known:
            gain.vlines(place, low, high, color=look[model].colour, linewidth=1.0)
    gain.axhline(0, color=FAINT, linewidth=0.8)
    heads = [every[place] for place in at]
    tell(loss, at, heads, {model: [_loss(points, place, gap) for place in at] for model, points in of_model.items()})
    tell(gain, at, heads, {model: [_gain(points, place, gap) for place in at] for model, points in of_model.items()})
    for axes in (loss, gain):
        grid(axes)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(at, [f"{place:,}" for place in at])
    loss.set_ylabel("NLL (nats per token)")
    loss.set_title("With that much context")
    gain.set_ylabel("Nats per token")
    gain.set_title("What the whole window adds")
    figure.supxlabel("Tokens of context; the last point is the whole window", fontsize=9)
    legend_of_models(figure, look)
    return figure


def _at(points: list[ContextUse], place: int, gap: Gap) -> ContextUse | None:
    return next((each for each in points if (each.context or gap.evaluation.seq_len) == place), None)


def _loss(points: list[ContextUse], place: int, gap: Gap) -> tuple[float | None, str]:
    """Return the NLL of a point as a number and as text."""
    each = _at(points, place, gap)
    return (None, "") if each is None or each.nll is None else (each.nll, f"{nats(each.nll)} nats")


def _gain(points: list[ContextUse], place: int, gap: Gap) -> tuple[float | None, str]:
    """Return the gain of a point as a number and as text with its interval."""
    each = _at(points, place, gap)
    if each is None or each.gain is None:
        return None, ""
    ends = f" ({signed_range(each.gain_ci95)})" if each.gain_ci95 else ""
    return each.gain, f"{signed(each.gain)} nats{ends}"
