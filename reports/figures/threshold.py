"""Draw the AR hits' share of the gap or lead as a curve over the threshold τ."""

from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from argap.metric.threshold import resolve_threshold
from argap.records import Estimate, Gap
from argap.reports.figures.drawing import (
    FAINT,
    GREY,
    INK,
    WIDTH,
    Look,
    dashed,
    decades,
    grid,
    highlight,
    name_lines,
    note,
    plain,
    style,
)
from argap.reports.figures.hover import tell
from argap.reports.tables.numbers import gap_word, percent, percent_range, threshold_text
from argap.reports.tables.overview import of_interest

LOWEST = -0.5  # keep in sync with "below −50%" in the figure
"""Lower limit of plotted shares. Models far below 0 have a small gap that has little to do with recall."""
BANDS = 4
"""Models with intervals as bands; more of them have whiskers at the marked thresholds."""
LINE = 88
"""Characters per line above the curves."""
NAMED = 24
"""Names that fit beside the curves; with more models, only those of interest are named."""


@style()
def share_by_threshold(gap: Gap) -> Figure:
    """Draw the AR hits' share of each model's gap or lead (top) and of the tokens (bottom) over the threshold τ.

    Models that are level, always below `LOWEST`, or unresolved at the result's threshold are named but not drawn. If
    none is resolved, all are drawn, with their names in parentheses.
    """
    models = [row.model for row in gap.compared]
    figure = Figure(figsize=(WIDTH, 4.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    tau = np.array([int(point.bin) for point in gap.curve], dtype=np.float64)
    shares = {model: np.array([_raw(point[model]) for point in gap.curve]) for model in models}
    omitted = _omitted(gap, {model: float(values.max()) for model, values in shares.items()})
    ends = {model: float(shares[model][-1]) for model in models if model not in omitted}
    look = highlight(gap.models, of_interest(gap))
    marks = [mark for mark in _marks(gap) if mark <= tau.max()]  # beyond it every repeated bigram is a hit
    above.set_xscale("symlog", linthresh=1)
    order = sorted(ends, key=ends.__getitem__, reverse=True)  # the legend lists curves in the order of their right ends
    every = max(1, len(tau) // 12)
    for model in order:
        drawn = look[model].curve | {"linewidth": look[model].width, "markersize": 4, "markevery": every}
        above.plot(tau, shares[model], label=_label(gap, model), **drawn)
    low, high = above.get_ylim()  # limits of the curves; an interval may be far longer
    above.set_ylim(max(low, LOWEST), high)
    coloured = [model for model in order if look[model].colour != GREY]
    for k, model in enumerate(coloured):
        shift = k - (len(coloured) - 1) / 2
        _draw_intervals(above, gap, model, look[model], marks if len(order) > BANDS else None, shift)
    below.plot(tau, [point.share_of_tokens for point in gap.curve], color=INK, linewidth=1.5)
    for axes in (above, below):
        grid(axes)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        for mark in marks:
            dashed(axes, mark)
    _name_marks(above, marks)
    if omitted:
        above.set_title(_not_drawn(omitted), fontsize=8, fontweight="normal", color=FAINT)
    above.set_ylabel(f"% of {gap_word(gap)} on AR hits")
    below.set_ylabel("AR hits")
    below.set_xlim(0, tau.max())
    decades(below, "x")
    exposed = gap.index is not None and gap.index.passes != 1
    counted = "exposures of a hit in training" if exposed else "occurrences of an AR hit's bigram in the training text"
    below.set_xlabel(f"Threshold τ: most {counted}")
    heads = [f"τ = {threshold_text(int(point.bin))}" for point in gap.curve]
    curves = coloured + [m for m in order if m not in coloured]
    tell(above, list(tau), heads, {m: [_value(point[m]) for point in gap.curve] for m in curves})
    shown = [point.share_of_tokens for point in gap.curve]
    tell(below, list(tau), heads, {"AR hits": [(share, f"{percent(share)} of {gap.unit}s") for share in shown]})
    named = ends if len(ends) <= NAMED else coloured
    name_lines(figure, above, {m: (float(tau.max()), ends[m]) for m in named}, look, high=3.2)
    return figure


def _omitted(gap: Gap, highest: dict[str, float]) -> dict[str, str]:
    """Say why models are not drawn. ``highest``: each model's largest share, NaN if it is level."""
    found = {}
    for model, top in highest.items():
        if np.isnan(top):
            found[model] = gap.directions.get(model, "infinite")
        elif top <= LOWEST:
            found[model] = "below −50%"
    unresolved = {model: "unresolved" for model in highest if model not in found and _unresolved(gap, model)}
    return found | (unresolved if len(found) + len(unresolved) < len(highest) else {})


def _not_drawn(omitted: dict[str, str]) -> str:
    """List the models that are not drawn, by reason, in lines that fit the figure."""
    by_reason: dict[str, list[str]] = {}
    for model, reason in omitted.items():
        by_reason.setdefault(reason, []).append(plain(model))
    parts = [f"{', '.join(models)} ({reason})" for reason, models in by_reason.items()]
    return fill(f"Not drawn: {'; '.join(parts)}", LINE, break_long_words=False, break_on_hyphens=False)


def _name_marks(axes: Axes, marks: list[int]) -> None:
    """Write ``τ = 1,250`` at the foot of each line."""
    for mark in marks:
        text = f"τ = {threshold_text(mark)}"
        note(axes, text, (mark, 0), (3, 3), xycoords=("data", "axes fraction"), color=FAINT)


def _raw(due: Estimate) -> float:
    return float("nan") if due.share is None else due.share


def _value(due: Estimate) -> tuple[float | None, str]:
    """Return a point of a curve as a number and as text with its interval."""
    raw = _raw(due)
    if np.isnan(raw):
        return None, ""
    return raw, f"{percent(raw)} of the gap or lead" + (
        f" ({percent_range(*due.share_ci95)})" if due.share_ci95 else ""
    )


def _marks(gap: Gap) -> list[int]:
    """Return the result's threshold and the one scaled to the training tokens."""
    assert gap.index is not None  # figures by frequency need training counts
    assert gap.threshold is not None
    return sorted({gap.threshold, resolve_threshold("scaled", gap.index.exposed_tokens)})


def _unresolved(gap: Gap, model: str) -> bool:
    return gap.on_hits[model].reason is not None


def _label(gap: Gap, model: str) -> str:
    return f"({plain(model)})" if _unresolved(gap, model) else plain(model)


def _draw_intervals(axes: Axes, gap: Gap, model: str, look: Look, marks: list[int] | None, shift: float) -> None:
    """Draw a model's 95% intervals: as a band, or as whiskers at ``marks``, side by side for several models."""
    known = {int(point.bin): ends for point in gap.curve if (ends := point[model].share_ci95) is not None}
    if marks is None:
        low, high = np.array(list(known.values())).reshape(-1, 2).T
        axes.fill_between(list(known), low, high, color=look.colour, alpha=0.14, linewidth=0)
        return
    for tau in marks:
        if tau in known:
            axes.vlines(max(tau, 1) * 1.04**shift, *known[tau], color=look.colour, linewidth=1.1)
