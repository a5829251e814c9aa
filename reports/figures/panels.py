"""Draw what the figures of a result have in common: curves, bars, the line at τ, ticks and percentages."""

from collections.abc import Callable, Sequence
from math import floor

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from argap.errors import FormatError
from argap.records import Bin, Estimate, Gap, Interval, Part
from argap.reports.figures.drawing import FAINT, INK, Look, dashed, grid, note
from argap.reports.tables.numbers import percent, short, signed, signed_range, threshold_text

FEW = 30  # tokens; a mean over fewer is mostly noise, and its point is hollow
TOP_DOMAINS = 12
LABELLED = 0.015  # smallest share of the gap that gets a percentage at its bar


def bin_numbers(bins: Sequence[Bin]) -> dict[str, int]:
    """Return each bin's position on the axis, by label."""
    return {each.label: k for k, each in enumerate(bins)}


def by_frequency(gap: Gap, repeated: bool) -> list[Part]:
    """Return the half of the partition by frequency for bigrams that are, or are not, repeated in their window."""
    return [part for part in gap.parts("frequency") if part.repeated == repeated]


def draw_curve(axes: Axes, x: list[int], parts: Sequence[Part], model: str, look: Look) -> None:
    """Draw a model's NLL in each bin (nats); bins with few tokens have hollow points."""
    nll = np.array([part[model].nll for part in parts], dtype=np.float64)
    axes.plot(x, nll, color=look.colour, linestyle=look.line, linewidth=look.width)
    for enough, face in ((True, look.colour), (False, "white")):
        points = [(at, y) for at, y, part in zip(x, nll, parts, strict=True) if (part.n >= FEW) == enough]
        if points:
            axes.plot(*zip(*points, strict=True), look.marker, color=look.colour, markerfacecolor=face, markersize=4.5)


def heads(parts: Sequence[Part], gap: Gap, named: Callable[[str], str] = str) -> list[str]:
    """Return a heading for each bin, for `argap.reports.figures.hover.tell`: ``books: 1,234 tokens (0.4%)``.

    ``named``: formats a bin's label.
    """
    return [f"{named(part.bin)}: {part.n:,} {gap.unit}s ({percent(part.share_of_tokens)})" for part in parts]


def bar_values(parts: Sequence[Part], model: str, delta: float) -> list[tuple[float, str]]:
    """Return each bin's contribution as a number and as text with its interval and its share of ``delta``."""
    return [(value_of(part[model]), _in_words(part[model], delta)) for part in parts]


def value_of(each: Estimate) -> float:
    """Return a contribution, which must be known."""
    assert each.contribution is not None
    return each.contribution


def _in_words(each: Estimate, delta: float) -> str:
    value, ends = value_of(each), each.contribution_ci95
    text = f"{signed(value)} nats" + (f" ({signed_range(ends)})" if ends else "")
    return f"{text}, {percent_of(value, delta)} of the whole" if delta else text


def deltas_to_share(gap: Gap) -> dict[str, float]:
    """Return the ΔNLL that each model's bars are a share of; 0 for a level model."""
    return {model: 0.0 if gap.directions[model] == "level" else delta for model, delta in gap.deltas.items()}


def draw_bars(
    axes: Axes,
    x: list[int],
    values: list[float],
    look: Look,
    delta: float,
    full: list[bool],
    ends: Sequence[Interval | None],
    small: bool = False,
) -> None:
    """Draw each bin's contribution (nats); larger ones get their percentage of ``delta`` (see `deltas_to_share`).

    ``full``: bars in the model's colour; the others are pale. ``ends``: each bar's 95% interval, drawn as a whisker;
    None if unknown. ``small``: print the percentages smaller and without the sign.
    """
    grid(axes)
    axes.bar(x, values, width=0.8, color=[look.colour if each else look.pale for each in full])
    known = [(at, pair) for at, pair in zip(x, ends, strict=True) if pair is not None]
    if known:
        axes.vlines([at for at, _ in known], *zip(*(pair for _, pair in known), strict=True), color=INK, linewidth=0.8)
    axes.axhline(0, color=FAINT, linewidth=0.8)
    axes.spines["bottom"].set_visible(False)  # bars start at zero, which may lie above the lower end
    axes.yaxis.set_major_locator(MaxNLocator(5))
    for at, value, pair in zip(x, values, ends, strict=True):
        if not delta or abs(value) < LABELLED * abs(delta):
            continue
        text, end = percent_of(value, delta), value if pair is None else pair[value > 0]  # beyond the whisker
        off, va = (2, "bottom") if value > 0 else (-2, "top")
        note(axes, text.removesuffix("%" if small else ""), (at, end), (0, off), 7 if small else 8, ha="center", va=va)


def threshold_position(gap: Gap) -> float:
    """Return the position of τ on an axis of frequency bins: between the last bin of AR hits and the next."""
    assert gap.threshold is not None  # figures by frequency need training counts
    highs = [each.high for each in gap.bins.frequency]
    if gap.threshold not in highs:
        raise FormatError(f"gap.json: threshold {gap.threshold}: expected the upper end of a bin; compare again")
    return highs.index(gap.threshold) + 0.5


def draw_threshold(axes: Axes, gap: Gap) -> None:
    """Draw a dashed line at τ."""
    dashed(axes, threshold_position(gap))


def name_the_hits(axes: Axes, gap: Gap, foot: bool = False) -> None:
    """Label the side of the line at τ with the AR hits; ``foot``: at the foot, where bars hang from the top."""
    assert gap.threshold is not None
    text, at = f"AR hits ◂ τ = {threshold_text(gap.threshold)}", (threshold_position(gap), 0 if foot else 1)
    off, va = (2, "bottom") if foot else (-2, "top")
    note(axes, text, at, (-4, off), xycoords=("data", "axes fraction"), ha="right", va=va, color=FAINT)


def set_frequency_ticks(axes: Axes, gap: Gap) -> None:
    """Set ticks at the bins that end with 0, 1, 10, 100 …

    The axis ends with the last bin in use, but not before τ, so that the label of τ stays inside.
    """
    number = bin_numbers(gap.bins.frequency)
    last = max([floor(threshold_position(gap)), *(number[part.bin] for part in gap.parts("frequency"))])
    highs = [each.high for each in gap.bins.frequency[: last + 1]]
    ticks = {k: short(high) for k, high in enumerate(highs) if high is not None and str(high).strip("0") in ("", "1")}
    axes.set_xticks(list(ticks), list(ticks.values()))
    axes.set_xlim(-0.7, last + 0.7)


def training_count(gap: Gap) -> str:
    """Return the label of an axis of frequency bins; an index of a single pass counts occurrences."""
    if gap.index is not None and gap.index.passes != 1:
        return "Times that training saw the bigram"
    return "Occurrences of the bigram in the training text"


def add_headroom(panels: np.ndarray) -> None:
    """Make room for the percentages above bars and whiskers and below negative ones, equally on all ``panels``."""
    ends = [y for axes in panels.flat for bar in axes.patches for y in (bar.get_y(), bar.get_y() + bar.get_height())]
    lines = [line for axes in panels.flat for each in axes.collections for line in each.get_segments()]
    ends += [float(y) for line in lines for y in line[:, 1]]
    low, high = min(ends), max(ends)
    room = 0.2 * (high - low or 1.0)
    panels.flat[0].set_ylim(low - room if low < -0.05 * high else low, high + room if high >= -0.05 * low else high)


def broken(label: str) -> str:
    """Break a long bin label over two lines.

    >>> broken("1,025–2,048")
    '1,025–\\n2,048'
    """
    if label == "not repeated":
        return "not\nrepeated"
    low, dash, high = label.partition("–")
    return f"{low}–\n{high}" if dash and len(label) > 6 else label


def percent_of(value: float, delta: float) -> str:
    """Format a part of a gap or lead in percent; empty if ``delta`` is 0, for a level model."""
    return percent(value / delta, 0) if delta else ""


def share_text(value: float, delta: float) -> str:
    """Format a part as ``73%`` of the gap or lead, or in nats if the model is level."""
    return percent_of(value, delta) or f"{signed(value)} nats"


def top_domains(gap: Gap) -> list[Part]:
    """Return the domains with the largest parts of the gaps, and the rest as one, so that the parts still add up."""
    parts, models = gap.parts("domain"), list(gap.deltas)
    ranked = sorted(parts, key=lambda part: (-sum(abs(value_of(part[model])) for model in models), part.bin))
    if len(ranked) <= TOP_DOMAINS + 1:
        return ranked
    top, rest = ranked[:TOP_DOMAINS], ranked[TOP_DOMAINS:]
    name, n = f"{len(rest)} others", sum(part.n for part in rest)
    share = sum(part.share_of_tokens for part in rest)
    others = [
        Estimate(model, "domain", name, n, share, contribution=sum(value_of(part[model]) for part in rest))
        for model in models
    ]
    return [*top, Part(others)]
