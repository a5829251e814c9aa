"""Draw the context-use curve of each model: what more context is worth on the same tokens."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from argap.records import ContextUse, Gap
from argap.reports.figures.drawing import FAINT, WIDTH, grid, highlight, legend_of_models, style
from argap.reports.figures.hover import tell
from argap.reports.tables.context import context_name
from argap.reports.tables.numbers import nats, signed, signed_range
from argap.reports.tables.overview import of_interest


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
