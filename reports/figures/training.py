"""Draw figures over the course of training: each model's loss, and its NLL and gap on AR hits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from argap.records import Gap
from argap.reports.figures.drawing import (
    WIDTH,
    decades,
    grid,
    highlight,
    legend_above,
    looks,
    name_lines,
    plain,
    style,
)
from argap.reports.figures.hover import tell
from argap.reports.tables.numbers import nats, percent, short
from argap.reports.tables.overview import of_interest
from argap.suite.result import SizeResult
from argap.suite.trajectory import share_along

Losses = tuple[np.ndarray, np.ndarray]
"""Training tokens, and the loss after each."""


@style()
def learning_curves(result: SizeResult) -> Figure:
    """Draw training loss minus the reference's, by tokens; both are running means over 2% of the run.

    All models see the same batches, so the difference cancels most of the noise. The first tenth of the run, where the
    models hardly differ, is omitted.
    """
    models = [row.model for row in result.gap.compared]
    look = highlight(result.gap.models, of_interest(result.gap))
    ends: dict[str, tuple[float, float]] = {}
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.axhline(0, color=look[result.reference].colour, linewidth=1.3)
    reference = _running_loss(result, result.reference)
    drawn = {model: _above(_running_loss(result, model), reference) for model in models}
    over = {model: losses for model, losses in drawn.items() if len(losses[0])}  # logs may share no step
    for model in sorted(over, key=lambda model: -over[model][1][-1]):  # the legend lists models by final loss
        tokens, loss = over[model]
        shown = tokens >= tokens[-1] / 10
        curve = look[model].curve | {"linewidth": 1.3, "markersize": 4, "markevery": max(1, int(shown.sum()) // 8)}
        axes.plot(tokens[shown] / 1e6, loss[shown], label=plain(model), **curve)
        ends[model] = (float(tokens[-1]) / 1e6, float(loss[-1]))
    if over:
        _tell_curves(axes, over)
    grid(axes)
    axes.set_xscale("log")
    decades(axes, "x", subs=(1, 2, 5))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.set_xlabel("Training tokens (millions)")
    axes.set_ylabel(f"Loss over {plain(result.reference)}'s (nats per token)")
    name_lines(figure, axes, ends, look, high=3.6)
    return figure


@style()
def recall_along_training(trajectory: pd.DataFrame, models: Sequence[str], reference: str, gap: Gap) -> Figure:
    """Draw NLL on AR hits and on other tokens, and the share of ΔNLL on AR hits, by training tokens.

    ``models``: in the order of the legend. ``gap``: names the hits and the unit. The share is of the gap, or of the
    lead where a model is ahead.
    """
    models = [model for model in models if model in set(trajectory["model"])]
    look = looks(models)
    figure = Figure(figsize=(WIDTH, 3.1), layout="constrained")
    hits, other, share = figure.subplots(1, 3, sharex=True)
    said: dict[Axes, dict[str, dict[float, tuple[float, str]]]] = {hits: {}, other: {}, share: {}}
    for model in models:
        own = trajectory.loc[trajectory["model"] == model]
        # Space markers evenly on the page: late checkpoints are close together on a logarithmic axis.
        drawn: dict[str, Any] = look[model].curve | {"linewidth": 1.3, "markersize": 4, "markevery": 0.13}
        for axes, column in ((hits, "nll_ar_hits"), (other, "nll_other")):
            known = own[np.isfinite(own[column])]
            # matplotlib cannot place markers evenly on an empty curve
            axes.plot(known["tokens"] / 1e6, known[column], label=plain(model), **drawn if len(known) else {})
            pairs = zip(known["tokens"].tolist(), known[column].tolist(), strict=True)
            said[axes][model] = {tokens: (nll, f"{nll:.3f} nats") for tokens, nll in pairs}
        if model != reference and reference in models:
            tokens, shares = share_along(trajectory, model, reference)
            if np.isfinite(shares).any():
                share.plot(tokens / 1e6, shares, **drawn)
                pairs = zip(tokens.tolist(), shares.tolist(), strict=True)
                said[share][model] = {t: (value, f"{percent(value)} of ΔNLL") for t, value in pairs}
    for axes, title in (
        (hits, gap.hits[:1].upper() + gap.hits[1:]),
        (other, f"Other {gap.unit}s"),
        (share, f"% of ΔNLL on {gap.hits}"),
    ):
        grid(axes)
        axes.set_title(title)
        axes.set_xscale("log")
        decades(axes, "x", subs=(1, 3))
    for axes, values in said.items():
        if values:
            _tell_by_tokens(axes, values)
    hits.set_ylabel(f"NLL (nats per {gap.unit})")
    share.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    other.set_xlabel("Training tokens (millions)")
    legend_above(figure, hits.get_legend_handles_labels()[0])
    return figure


def _tell_curves(axes: Axes, over: dict[str, Losses]) -> None:
    """Register at most 40 points of each curve, at the same tokens for all models, which see the same batches."""
    at = min((tokens for tokens, _ in over.values()), key=len)
    at = at[at >= at[-1] / 10]
    at = at[np.unique(np.linspace(0, len(at) - 1, 40).astype(int))]
    said = {}
    for model, (tokens, loss) in over.items():
        values = loss[np.searchsorted(tokens, at)]
        said[model] = {
            float(t): (float(v), f"{nats(v)} nats over the reference") for t, v in zip(at, values, strict=True)
        }
    _tell_by_tokens(axes, said)


def _tell_by_tokens(axes: Axes, said: dict[str, dict[float, tuple[float, str]]]) -> None:
    """Register each model's values by training tokens; a model may lack some of the others' token counts."""
    at = sorted({tokens for values in said.values() for tokens in values})
    series = {model: [values.get(tokens, (None, "")) for tokens in at] for model, values in said.items()}
    tell(axes, [tokens / 1e6 for tokens in at], [f"{short(tokens)} tokens" for tokens in at], series)


def _above(losses: Losses, reference: Losses) -> Losses:
    """Return losses minus the reference's, at the token counts that both have."""
    tokens, own, other = np.intersect1d(losses[0], reference[0], return_indices=True)
    return tokens, losses[1][own] - reference[1][other]


def _running_loss(result: SizeResult, model: str) -> Losses:
    """Return the running mean of a model's training loss."""
    log = result.log(model)
    loss = log["loss"].rolling(max(1, len(log) // 50), min_periods=1).mean()
    return log["tokens"].to_numpy(), np.asarray(loss)
