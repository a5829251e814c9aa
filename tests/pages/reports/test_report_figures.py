"""Figures of every type of result and their panels: content, and identical bytes on every run."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import msgspec
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation, Text
from msgspec.structs import replace

from argap.errors import ArgapError, FormatError
from argap.records import Gap, Part, read_gap
from argap.reports.figures.drawing import COLOURS, highlight, label_at_line, legend_of_models, looks, plain
from argap.reports.figures.panels import TOP_DOMAINS, threshold_position
from argap.reports.figures.result import draw_all, gap_by_bin, gap_by_domain, gap_by_frequency, nll_by_frequency

Maker = Callable[..., Gap]

NAMES = [
    "gap_by_distance",
    "gap_by_domain",
    "gap_by_frequency",
    "gap_by_position",
    "nll_by_frequency",
    "share_by_threshold",
]
PER_MODEL = {"gap_by_frequency": 2, "gap_by_distance": 1, "gap_by_position": 1, "gap_by_domain": 1}
"""Figures with panels for each model, and how many."""


def height(axes: Axes) -> float:
    """The sum of all bars of a panel."""
    return sum(bar.get_height() for bar in axes.patches if isinstance(bar, Rectangle))


def test_figures_are_deterministic(make_gap: Maker, tmp_path: Path) -> None:
    """Every figure as SVG, one in every format."""
    gap, alone, formats = make_gap({"base_conv": 1.2}), make_gap({}), ("svg", "png", "pdf")

    def drawn(folder: Path) -> dict[str, bytes]:
        assert sorted(draw_all(gap, folder / "all")) == NAMES
        assert list(draw_all(alone, folder / "one", formats)) == ["nll_by_frequency"]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.glob("*/*")}

    first = drawn(tmp_path / "a")
    one = [f"one/nll_by_frequency.{suffix}" for suffix in formats]
    assert sorted(first) == sorted([*(f"all/{name}.svg" for name in NAMES), *one])
    assert b"/FontFile2" in first["one/nll_by_frequency.pdf"]  # text, not outlines
    with mpl.rc_context({"lines.linewidth": 9, "svg.hashsalt": "user"}):  # a user's settings do not show
        assert drawn(tmp_path / "b") == first


def test_a_lone_reference_has_no_gap_figure(tmp_path: Path, make_gap: Maker) -> None:
    alone = make_gap({})
    assert list(draw_all(alone, tmp_path)) == ["nll_by_frequency"]
    for draw in (gap_by_frequency, gap_by_domain, partial(gap_by_bin, by="distance")):
        with pytest.raises(ArgapError, match="attention alone has no gap to draw"):
            draw(alone)


def test_without_a_finite_model_there_is_no_legend() -> None:
    figure = Figure()
    legend_of_models(figure, {})
    assert not figure.legends


def test_a_single_domain_has_no_domain_figure(make_gap: Maker, tmp_path: Path) -> None:
    assert "gap_by_domain" not in draw_all(make_gap({"base_conv": 1.0}, domains=("only",)), tmp_path)


@pytest.mark.parametrize("used", [1, 2])
def test_the_threshold_is_drawn_beyond_all_counts(used: int, make_gap: Maker, tmp_path: Path) -> None:
    """All bigrams were seen at most once in training; τ is on the axis nevertheless."""
    gap = make_gap({"base_conv": 1.0})
    labels = [each.label for each in gap.bins.frequency]
    gap = gap.replaced({"frequency": [part for part in gap.parts("frequency") if part.bin in labels[:used]]})
    (last_hit,) = [k for k, each in enumerate(gap.bins.frequency) if each.high == gap.threshold]
    assert list(draw_all(gap, tmp_path))  # a figure that cannot be laid out is a warning, and that an error
    for figure in (nll_by_frequency(gap), gap_by_frequency(gap)):
        assert [axes.get_xlim() for axes in figure.axes] == [(-0.7, last_hit + 0.7)] * len(figure.axes)


def test_the_curves_are_the_nll_of_each_bin(gap: Gap) -> None:
    figure = nll_by_frequency(gap)
    for axes, repeated in zip(figure.axes[:2], (True, False), strict=True):
        parts = [part for part in gap.parts("frequency") if part.repeated == repeated]
        labels = [each.label for each in gap.bins.frequency]
        curves = [np.array(line.get_data()).T.tolist() for line in axes.lines if line.get_linestyle() == "-"]
        for model in ("attention", "base_conv", "hyena"):
            assert [[labels.index(part.bin), part[model].nll] for part in parts] in curves, model


def test_the_bars_add_up_to_the_gap(gap: Gap) -> None:
    panels = gap_by_frequency(gap).axes
    for (model, delta), repeated, other in zip(gap.deltas.items(), panels[::2], panels[1::2], strict=True):
        assert height(repeated) + height(other) == pytest.approx(delta)
        share = 100 * height(repeated) / delta
        assert repeated.get_title(loc="left") == f"{model}, repeated: {share:.0f}%"
    for by in ("distance", "position"):
        for (model, delta), axes in zip(gap.deltas.items(), gap_by_bin(gap, by).axes, strict=True):
            assert axes.get_title(loc="left") == f"{model}: +{delta:.3f} nats"
            assert height(axes) == pytest.approx(delta)


def test_the_ar_hits_are_the_bars_in_full_colour(gap: Gap) -> None:
    look = looks(["attention", "base_conv", "hyena"])
    panels = gap_by_frequency(gap).axes

    def full(axes: Axes, model: str) -> list[float]:
        bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
        return [bar.get_height() for bar in bars if bar.get_facecolor() == to_rgba(look[model].colour)]

    for row, repeated, other in zip(gap.compared, panels[::2], panels[1::2], strict=True):
        assert sum(full(repeated, row.model)) == pytest.approx(gap.on_hits[row.model].contribution)
        assert full(other, row.model) == []


def test_own_scales_are_offered_where_several_panels_share_one(gap: Gap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argap.reports.figures.result.written", lambda figures, *_: figures)
    drawn: Any = draw_all(gap, Path())
    assert [name for name in drawn if name.endswith("_own_scales")] == [f"{name}_own_scales" for name in PER_MODEL]
    for name, per_model in PER_MODEL.items():
        one, own = (drawn[f"{name}{suffix}"].axes for suffix in ("", "_own_scales"))
        limits = Axes.get_xlim if name == "gap_by_domain" else Axes.get_ylim
        assert len({limits(axes) for axes in one}) == 1
        assert [limits(axes) for axes in own[:per_model]] != [limits(axes) for axes in own[per_model:]]


def test_small_domains_are_grouped_and_still_add_up(make_gap: Maker) -> None:
    gap = make_gap({"base_conv": 1.0}, domains=tuple(f"d{k:02}" for k in range(20)))
    (axes,) = gap_by_domain(gap).axes
    widths = [bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle)]
    assert len(widths) == TOP_DOMAINS + 1
    assert sum(widths) == pytest.approx(gap.deltas["base_conv"])
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names[-1].startswith("8 others (")
    assert widths[:-1] == sorted(widths[:-1], reverse=True)


def test_hostile_names_are_drawn_as_text(tmp_path: Path, make_gap: Maker) -> None:
    """Math text, markup, right-to-left marks, control characters, missing glyphs, very long names."""
    nasty = "$\\frac{$ <svg onload=x> \u202e\x00 日本 " + "long" * 30
    gap = make_gap({nasty: 1.0, "no gap": 0.0}, domains=("$x^", "模型\n\u2066"))
    draw_all(gap, tmp_path)
    assert "onload=x>" not in (tmp_path / "gap_by_frequency.svg").read_text(encoding="utf-8")


def test_labels_fit_on_a_line() -> None:
    assert plain("two\nlines  of") == "two lines of"
    assert plain("日\u202e\x00") == "□□□"
    assert plain("__x") == " __x"  # in legends, which leave others out
    assert plain("x" * 50) == "x" * 35 + "…"


def test_many_models_all_look_different() -> None:
    every = list(looks([str(k) for k in range(20)]).values())
    assert len(set(every)) == 20
    assert len({look.colour for look in every}) == len(COLOURS)
    first, second = every[:7], every[7:14]
    assert len({look.marker for look in first}) == 7
    assert {look.line for look in first}.isdisjoint(look.line for look in second)


def test_every_bar_has_its_interval_as_a_whisker(gap: Gap) -> None:
    def segments(drawn: Gap) -> list[list[tuple[float, float]]]:
        whiskers: Any = [axes.collections for axes in gap_by_bin(drawn, "distance").axes]
        return [
            [(float(line[0][1]), float(line[1][1])) for each in panel for line in each.get_segments()]
            for panel in whiskers
        ]

    models, parts = [row.model for row in gap.compared], gap.parts("distance")
    assert segments(gap) == [[part[model].contribution_ci95 for part in parts] for model in models]
    bare = [Part(replace(each, contribution_ci95=None) for each in part.estimates.values()) for part in parts]
    assert segments(gap.replaced({"distance": bare})) == [[] for _ in models]


def test_the_line_to_a_name_crosses_no_other_name() -> None:
    """Of 24 lines that end close together, the names stand far above and below."""
    models = [f"model_{number:02}" for number in range(24)]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1])
    label_at_line(
        axes, {model: (1.0, 0.5 + k / 100) for k, model in enumerate(models)}, highlight(models, []), high=3.6
    )
    figure.draw_without_rendering()
    names = [text for text in axes.texts if isinstance(text, Annotation)]
    boxes = [Text.get_window_extent(name) for name in names]
    assert len(names) == len(models)
    for own, name in enumerate(names):
        line = name.arrow_patch.get_path().transformed(name.arrow_patch.get_transform())
        assert not any(line.intersects_bbox(box) for other, box in enumerate(boxes) if other != own)


def test_a_threshold_within_a_bin_is_one_line(token_result):
    gap = read_gap(token_result)
    assert threshold_position(gap) > 0
    with pytest.raises(FormatError, match=r"gap\.json: threshold 1251: expected the upper end of a bin"):
        threshold_position(msgspec.structs.replace(gap, threshold=1251))
