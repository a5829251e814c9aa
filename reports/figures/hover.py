"""Export the values behind a figure's lines and bars, for a page that shows them on hover or by keyboard.

A figure function registers its panels' values with `tell`; `told` returns them as fractions of each panel, which no
layout changes. The page finds the panels in the SVG file, where matplotlib numbers them in the order of
``figure.axes``.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from argap.records import Record
from argap.reports.figures.drawing import Look, variables
from argap.reports.tables.tokens import visible


class Series(Record, frozen=True):
    """A line or the bars of a panel. Each list has an entry for each of the panel's ``at``."""

    name: str
    across: tuple[float | None, ...]
    """Fractions of the panel, from the bottom, or from the left if the panel's ``along`` is y; None: no point."""
    texts: tuple[str, ...]


class Panel(Record, frozen=True):
    """The values of a panel."""

    axes: int
    """The panel's number in the SVG file, from 1."""
    along: Literal["x", "y"]
    """The axis of ``at``."""
    at: tuple[float, ...]
    """Fractions of the panel."""
    heads: tuple[str, ...]
    """A heading for each ``at``, such as a bin or a threshold."""
    series: tuple[Series, ...]
    guide: bool = True
    """Whether a line across the panel marks the point."""
    ends: tuple[float, ...] = ()
    """Where each frequency bin ends on the axis of ``at``; empty for other axes."""
    bars: tuple[str, ...] = ()
    """CSS colours of bars of AR hits and of those beyond τ, between which a bar changes as τ moves; empty without."""


Values = Mapping[str, Sequence[tuple[float | None, str]]]
"""Each series' values in data coordinates, with their text."""
_TOLD: "WeakKeyDictionary[Axes, _Told]" = WeakKeyDictionary()


class _Told(NamedTuple):
    """What `tell` was given."""

    along: Literal["x", "y"]
    at: Sequence[float]
    heads: Sequence[str]
    series: Values
    guide: bool
    bins: int
    hits: Look | None


def tell(
    axes: Axes,
    at: Sequence[float],
    heads: Sequence[str],
    series: Values,
    *,
    along: Literal["x", "y"] = "x",
    guide: bool = True,
    bins: int = 0,
    hits: Look | None = None,
) -> None:
    """Register a panel's values: at each of ``at`` (data coordinates on one axis) a heading and each series' value.

    ``bins``: the number of frequency bins, at 0, 1, 2 … on the axis of ``at``, along which τ moves. ``hits``: the look
    of the model whose bars are pale beyond τ.
    """
    _TOLD[axes] = _Told(along, at, heads, series, guide, bins, hits)


def told(figure: Figure) -> tuple[Panel, ...]:
    """Return the registered values of the figure's panels; call it once their limits are final."""
    panels = []
    for number, axes in enumerate(figure.axes, 1):
        if axes not in _TOLD:
            continue
        along, at, heads, series, guide, bins, hits = _TOLD[axes]
        panels.append(
            Panel(
                axes=number,
                along=along,
                at=tuple(_fraction(axes, along, value) for value in at),
                heads=tuple(map(visible, heads)),
                series=tuple(
                    Series(
                        visible(name),
                        _inside(axes, along, [value for value, _ in values]),
                        tuple(text for _, text in values),
                    )
                    for name, values in series.items()
                ),
                guide=guide,
                ends=tuple(_fraction(axes, along, k + 0.5) for k in range(bins)),
                bars=() if hits is None else tuple(_css(colour) for colour in (hits.colour, hits.pale)),
            )
        )
    return tuple(panels)


def _css(colour: Any) -> str:
    """Return a colour as the page has it."""
    return variables()[to_hex(colour)]


def _inside(axes: Axes, along: str, values: Sequence[float | None]) -> tuple[float | None, ...]:
    """Return the positions of values across the panel; None for missing values and those outside it."""
    other = "y" if along == "x" else "x"
    found = []
    for value in values:
        fraction = None if value is None or not np.isfinite(value) else _fraction(axes, other, value)
        found.append(fraction if fraction is not None and -0.02 <= fraction <= 1.02 else None)
    return tuple(found)


def _fraction(axes: Axes, which: str, value: float) -> float:
    """Convert a value on one axis to a fraction of the panel."""
    point = (value, axes.get_ylim()[0]) if which == "x" else (axes.get_xlim()[0], value)
    x, y = (axes.transData + axes.transAxes.inverted()).transform(point)
    return round(float(x if which == "x" else y), 4)
