"""Set the style of all figures, and save them reproducibly: every run writes the same bytes.

The palette is Okabe and Ito's, which is safe for colour-blind readers; models also differ by marker. Names of models
and domains come from users, so they are never parsed as math text, and characters missing from the font become boxes.
"""

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator, PercentFormatter
from matplotlib.transforms import Bbox

from argap.files.atomic import replacing
from argap.reports.tables.numbers import short

WIDTH = 7.2  # inches: about 700 px on screen, a full text column in print
INK = "#222222"
FAINT = "#6b6b6b"
GRID = "#dddddd"
GREY = "#8f8f8f"
"""Colour of other models in figures of many."""
PLAIN = "#64748b"
"""Colour of bars of a model that has none of its own, in panels that carry the names."""
SHARE = "#b8b8b8"
"""Colour of bars for shares of tokens, and for tokens that are not repeated."""
MAX_NAME = 36
DATED = {
    "svg": ("Date", "Creator", "Format", "Type"),
    "pdf": ("CreationDate", "Creator", "Producer"),
    "png": ("Software",),
}
"""Metadata that would change from run to run, or with matplotlib's version."""
LABEL = 7  # font size in points of names at lines
NO_GLYPH = "□"

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES: tuple[Any, ...] = ("-", (0, (4, 1.5)), (0, (1.2, 1)))

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.titley": 1.0,  # the default place; without it matplotlib looks for ticks above, an eighth of the time
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "legend.handlelength": 3.2,
    "figure.facecolor": "white",
    "figure.dpi": 100,
    "savefig.facecolor": "white",
    "text.color": INK,
    "text.parse_math": False,
    "svg.fonttype": "path",
    "pdf.fonttype": 42,  # text stays text
}


DPI = 200
"""Resolution of PNG files, and of images inside vector files."""


def variables() -> dict[str, str]:
    """Return the page's CSS variable for each colour used in figures, so that a dark scheme can change them."""
    named = {INK: "ink", FAINT: "faint", GRID: "grid", GREY: "other", SHARE: "share", "#ffffff": "paper"}
    names = {colour: f"var(--{name})" for colour, name in named.items()}
    names |= {PLAIN: "var(--plain)", to_hex(Look(PLAIN, "", "").pale): "var(--plain-pale)"}
    for k, colour in enumerate(COLOURS):
        names.setdefault(colour.lower(), f"var(--model-{k})")
        names[to_hex(Look(colour, "", "").pale)] = f"var(--pale-{k})"
    return names


class Look(NamedTuple):
    """The colour, marker and line style of a model in all figures."""

    colour: str
    marker: str
    line: Any
    """matplotlib's ``linestyle``."""

    @property
    def curve(self) -> dict[str, Any]:
        """Return arguments of `matplotlib.axes.Axes.plot` for a line with markers; grey lines go below the others."""
        order = 1.8 if self.colour == GREY else 2.0
        return {"color": self.colour, "marker": self.marker, "linestyle": self.line, "zorder": order}

    @property
    def width(self) -> float:
        """Return the line width in points; grey lines are thinner because there are many."""
        return 0.8 if self.colour == GREY else 1.6

    @property
    def pale(self) -> tuple[float, float, float]:
        """Return the colour mixed with two thirds of white."""
        red, green, blue = to_rgb(self.colour)
        return (2 + red) / 3, (2 + green) / 3, (2 + blue) / 3


def looks(models: list[str]) -> dict[str, Look]:
    """Assign a look to each model, in order; from the eighth on, lines are dashed and markers change."""
    size = len(COLOURS)
    return {
        model: Look(COLOURS[k % size], MARKERS[(k + k // size) % size], LINES[k // size % len(LINES)])
        for k, model in enumerate(models)
    }


def highlight(models: list[str], of_interest: Sequence[str]) -> dict[str, Look]:
    """Assign a look to each model; with more models than colours, those outside ``of_interest`` are grey."""
    if len(models) <= len(COLOURS):
        return looks(models)
    coloured = looks([model for model in models if model in of_interest])
    return {model: coloured.get(model, Look(GREY, "", "-")) for model in models}


def panel_rows(
    count: int, *, across: int, head: float, row: float, sharex: bool = True, sharey: bool = True
) -> tuple[Figure, list[Axes]]:
    """Return a figure with ``count`` panels in rows of at most ``across``; each row adds ``row`` inches to ``head``.

    The lowest panel of each column has x tick labels, even if the last row is incomplete.
    """
    columns = min(across, count)
    lines = ceil(count / columns)
    figure = Figure(figsize=(WIDTH, head + row * lines), layout="constrained")
    grid = figure.subplots(lines, columns, sharex=sharex, sharey=sharey, squeeze=False).ravel()
    for axes in grid[count:]:
        axes.remove()
    for axes in grid[max(0, count - columns) : count]:
        axes.tick_params(labelbottom=True)
    return figure, list(grid[:count])


@contextmanager
def style() -> Iterator[None]:
    """Use argap's style, ignoring the user's matplotlib settings."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(RC)
        yield


def save(figure: Figure, folder: Path, name: str, formats: Sequence[str] = ("svg",)) -> Path:
    """Write the figure as ``name.svg`` (and ``name.png``, 200 dpi, or ``name.pdf``) without dates or random ids.

    Returns the path of the SVG.
    """
    with style(), mpl.rc_context({"svg.hashsalt": name}):
        lay_out(figure)
        for suffix in formats:
            metadata = dict.fromkeys(DATED[suffix])
            with replacing(folder / f"{name}.{suffix}") as temporary:
                figure.dpi = DPI
                if suffix == "svg":  # `savefig` would draw it twice
                    FigureCanvasSVG(figure).print_svg(temporary, metadata=metadata)
                else:
                    figure.savefig(temporary, format=suffix, metadata=metadata)
    return folder / f"{name}.svg"


def lay_out(figure: Figure) -> None:
    """Fix the panel positions that the layout engine computes, so that it does not run again for each file format.

    Measuring takes most of the time, so panels with the same labels, which need the same room, are measured once.
    """
    engine = figure.get_layout_engine()
    if engine is None:
        return
    margins: dict[Hashable, np.ndarray] = {}  # pixels that a panel's labels take beyond it
    panels = [axes for axes in figure.axes if axes.get_subplotspec() is not None]
    for axes in panels:
        measure = axes.get_tightbbox

        def measured(*of: Any, axes: Axes = axes, measure: Any = measure, **how: Any) -> Bbox:
            labels = _labels(axes)
            if labels not in margins:
                margins[labels] = measure(*of, **how).extents - axes.bbox.extents
            return Bbox.from_extents(*(axes.bbox.extents + margins[labels]))

        axes.get_tightbbox = measured
    engine.execute(figure)
    figure.set_layout_engine("none")
    for axes in panels:
        del axes.get_tightbbox


def _labels(axes: Axes) -> Hashable:
    """Return a key for the room that a panel's labels need, equal for panels with shared scales and the same labels.

    Panels with texts or a legend of their own get a unique key.
    """
    groups = [shared.get_siblings(axes) for shared in (axes.get_shared_x_axes(), axes.get_shared_y_axes())]
    if min(map(len, groups)) == 1 or axes.texts or axes.get_legend():
        return id(axes)
    shared = tuple(frozenset(map(id, group)) for group in groups)
    ticks = axes.xaxis.get_tick_params()["labelbottom"], axes.yaxis.get_tick_params()["labelleft"]
    titled = any(axes.get_title(loc) for loc in ("left", "center", "right"))
    return (*shared, *ticks, axes.get_xlabel(), axes.get_ylabel(), titled)


def grid(axes: Axes, values: Literal["x", "y", "both"] = "y") -> None:
    """Draw grid lines at the ticks of the value axis, without tick marks."""
    axes.grid(axis=values)
    axes.tick_params(length=0)


def dashed(axes: Axes, at: float) -> None:
    """Draw a dashed vertical line at a reference value, such as a threshold or chance."""
    axes.axvline(at, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)))


def decades(axes: Axes, which: Literal["x", "y"], subs: tuple[int, ...] = (1,)) -> None:
    """Label a logarithmic axis with plain numbers (``0.01``, ``10k``) at ``subs`` times the powers of ten."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    if axis.get_scale() == "log":
        axis.set_major_locator(LogLocator(subs=subs))
    short_ticks(axis)
    axis.set_minor_formatter(NullFormatter())


def short_ticks(axis: Axis) -> None:
    """Format major ticks with `argap.reports.tables.numbers.short`: ``1.5M``."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def name_lines(
    figure: Figure, axes: Axes, ends: dict[str, tuple[float, float]], look: dict[str, Look], high: float
) -> None:
    """Name the lines of ``axes`` in a legend to the right of the figure.

    With more models than colours, name only the lines in ``ends``, as `label_at_line` does.
    """
    if len(look) > len(COLOURS):
        label_at_line(axes, ends, look, high)
    else:
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize=8)


def legend_above(figure: Figure, handles: Sequence[Any], columns: int = 4) -> None:
    """Put a legend above the panels in at most ``columns`` columns; without handles there is none.

    It has fewer columns if the names would not fit the figure, or if fewer columns give as many rows.
    """
    count = len(handles)
    for across in dict.fromkeys(ceil(count / rows) for rows in range(ceil(count / columns) or 1, count + 1)):
        legend = figure.legend(handles=handles, loc="outside upper left", ncols=across)
        if legend.get_window_extent().width < 0.98 * figure.bbox.width:
            return
        if across > 1:
            legend.remove()


def legend_of_models(figure: Figure, look: dict[str, Look]) -> None:
    """Put a legend above the panels: the coloured models by name, and the number of grey ones."""
    coloured = [model for model in look if look[model].colour != GREY]
    handles = [Line2D([], [], markersize=5, label=plain(model), **look[model].curve) for model in coloured]
    if grey := len(look) - len(coloured):
        handles.append(Line2D([], [], color=GREY, label=f"{grey} others"))
    legend_above(figure, handles)


def label_at_line(axes: Axes, ends: dict[str, tuple[float, float]], look: dict[str, Look], high: float) -> None:
    """Name each line to the right of ``axes``, at its end ``(x, y)``; overlapping names are moved apart.

    ``ends``: by model, in data coordinates; call this once the limits of the axes are final. ``high``: approximate
    height of the axes in inches.
    """
    step = LABEL / 72 * 1.25 / high
    to_axes = axes.transData + axes.transAxes.inverted()
    at = {model: to_axes.transform(end) for model, end in ends.items()}
    heights = spread([float(y) for _, y in at.values()], step)
    for (model, (x, y)), height in zip(at.items(), heights, strict=True):
        axes.annotate(
            plain(model, 24),
            (min(float(x), 1.0), min(max(float(y), 0.0), 1.0)),
            xycoords="axes fraction",
            xytext=(1.06, height),
            textcoords="axes fraction",
            va="center",
            fontsize=LABEL,
            color=FAINT if look[model].colour == GREY else look[model].colour,
            arrowprops={
                "arrowstyle": "-",
                "color": look[model].colour,
                "linewidth": 0.5,
                "relpos": (0, 0.5),  # from the name's left end, not across other names
                "shrinkA": 1,
                "shrinkB": 2,
            },
            annotation_clip=False,
        )


def spread(heights: Sequence[float], step: float) -> list[float]:
    """Move heights until neighbours are at least ``step`` apart, keeping the centre of each cluster.

    >>> spread([0.0, 0.0, 5.0], 1.0)
    [-0.5, 0.5, 5.0]
    """
    order = sorted(range(len(heights)), key=lambda k: (heights[k], k))
    crowds: list[tuple[float, list[int]]] = []  # the middle of each and its members, from below
    for k in order:
        crowds.append((heights[k], [k]))
        while len(crowds) > 1 and crowds[-1][0] - crowds[-2][0] < step * (len(crowds[-1][1]) + len(crowds[-2][1])) / 2:
            (upper, above), (lower, below) = crowds.pop(), crowds.pop()
            members = below + above
            crowds.append(((lower * len(below) + upper * len(above)) / len(members), members))
    moved = {
        k: middle + (i - (len(members) - 1) / 2) * step for middle, members in crowds for i, k in enumerate(members)
    }
    return [moved[k] for k in range(len(heights))]


def accuracy_axis(axes: Axes, top: float = 1.0) -> None:
    """Set up a vertical axis of percentages from 0 to ``top``, a fraction."""
    axes.set_ylim(0, top)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    grid(axes)


def log_axis(axes: Axes) -> None:
    """Set up a vertical axis in powers of ten, with 1, 2 and 5 of each."""
    axes.set_yscale("log")
    decades(axes, "y", subs=(1, 2, 5))
    axes.yaxis.set_minor_locator(NullLocator())
    grid(axes)


def powers(axes: Axes, ticks: list[int]) -> None:
    """Set up a horizontal axis of powers of two, with plain numbers."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.set_xlim(ticks[0] / 1.2, ticks[-1] * 1.2)
    axes.xaxis.set_minor_locator(NullLocator())
    short_ticks(axes.xaxis)


def note(axes: Axes, text: str, at: Any, off: tuple[float, float], size: float = 8, **options: Any) -> None:
    """Write a text ``off`` points from a point of the panel."""
    axes.annotate(text, at, xytext=off, textcoords="offset points", fontsize=size, **options)


def plain(text: str, limit: int = MAX_NAME) -> str:
    """Make a user's text safe as a label: one line of at most ``limit`` characters that the font has.

    A space is put before one that begins with ``_``, as Matplotlib leaves such a label out of legends.
    """
    text = " ".join(text.split())
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    shown = "".join(char if char.isprintable() and ord(char) in _glyphs() else NO_GLYPH for char in text)
    return f" {shown}" if shown.startswith("_") else shown


@cache
def _glyphs() -> frozenset[int]:
    return frozenset(get_font(findfont(RC["font.family"])).get_charmap())
