"""Content of the figures and tables of sweeps and of MQAR scores of pretrained models."""

from math import log
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from matplotlib.container import ErrorbarContainer
from msgspec import convert

from argap.errors import ArgapError
from argap.files.atomic import write_json
from argap.reports.figures.mqar import accuracy_figure, solve_text, write_sweep
from argap.reports.figures.pretrained import pretrained_figure
from argap.synthetics.pretrained.records import PretrainedScores
from argap.synthetics.sweeps.selection import smallest_solving
from argap.synthetics.training.config import RunConfig
from tests.builders.sweeps import write_results

SWEEP = {
    "members": {name: {"mixers": ["attention"]} for name in ("a", "b")},
    "lengths": [64, 128],
    "widths": [64, 128],
    "lrs": [1e-3],
}


def runs():
    """Two models, two lengths, two widths; model ``a`` solves N = 64 only at width 128."""
    rows = [
        {"name": name, "length": length, "pairs": str(length // 16), "width": width, "lr": 1e-3}
        for length in (64, 128)
        for name in ("a", "b")
        for width in (64, 128)
    ]
    frame = pd.DataFrame(rows)
    accuracy = [0.5, 0.999, 0.1, 0.2, 0.4, 0.6, 0.1, 0.1]
    counts = frame["width"] * 1000
    return frame.assign(
        accuracy=accuracy, validation_accuracy=accuracy, flops=counts, state_size=counts // 10, parameters=counts
    )


def test_each_length_has_a_panel_and_each_model_its_points():
    figure = accuracy_figure(runs(), "width")
    assert [axes.get_title("left") for axes in figure.axes] == ["N 64, D 4", "N 128, D 8"]
    lines = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in figure.axes[0].get_lines()}
    assert lines == {"a": [0.5, 0.999], "b": [0.1, 0.2]}
    beneath, above = figure.axes[0].get_lines()
    assert beneath.get_linewidth() > above.get_linewidth() + 1  # still seen where both coincide


def test_a_model_without_a_finished_run_at_a_length_leaves_the_panels_their_width():
    frame = runs().query("not (name == 'b' and length == 128)")
    figure = accuracy_figure(frame, "width")
    figure.draw_without_rendering()
    assert all(axes.get_position().width > 0.3 for axes in figure.axes)


def test_a_legend_of_long_names_stays_inside_the_figure():
    frame = pd.concat([runs().query("name == 'a'").assign(name=f"sliding, window {2**k}") for k in range(8)])
    figure = accuracy_figure(frame, "width")
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert len(legend.get_texts()) == 8
    assert max(text.get_window_extent().x1 for text in legend.get_texts()) <= figure.bbox.x1


def test_a_legend_that_needs_two_rows_has_no_column_with_a_single_name():
    # Four names need two rows of at most three columns: two of two, in place of 2 + 1 + 1.
    frame = pd.concat([runs().query("name == 'a'").assign(name=f"based, features {k}") for k in range(24, 28)])
    figure = accuracy_figure(frame, "width")
    figure.draw_without_rendering()
    (legend,) = figure.legends
    lefts = [round(text.get_window_extent().x0) for text in legend.get_texts()]
    assert [lefts.count(left) for left in sorted(set(lefts))] == [2, 2]


def test_states_have_decades_and_pairs_that_train_together_have_spaces():
    frame = runs().query("length == 64").assign(pairs="4,8,16", state_size=[2816, 6912, 39193, 77785])
    figure = accuracy_figure(frame, "state_size")
    (axes,) = figure.axes
    figure.draw_without_rendering()
    low, high = axes.get_xlim()
    said = [tick.label1.get_text() for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
    assert said == ["5k", "10k", "20k", "50k"]
    assert axes.get_title("left") == "N 64, D 4, 8, 16"


def test_pairs_on_the_axis_keep_their_order():
    # As text "16" comes before "4": the axis has them as numbers.
    frame = runs().head(4).assign(length=256, width=64, pairs=["4", "16", "4", "16"])
    figure = accuracy_figure(frame, "pairs")
    assert [axes.get_title("left") for axes in figure.axes] == ["N 256, width 64"]
    assert np.asarray(figure.axes[0].get_lines()[0].get_xdata()).tolist() == [4, 16]


def test_the_table_shows_which_widths_solve_the_task():
    lines = solve_text(smallest_solving(runs())).splitlines()
    assert lines[2] == "| 64 | 4 | a | 128 | 128,000 | 12,800 | 128,000 | 0.999 |"
    assert lines[3] == "| 64 | 4 | b | > 128 | — | — | — | 0.200 |"
    assert len(lines) == 6


def write_table(out: Path, **change: Any) -> None:
    """The folder of a sweep with the accuracies of `runs` for seed 0, and 0.2 for others."""
    known = runs().set_index(["name", "length", "width"])["accuracy"].to_dict()

    def accuracy(config: RunConfig) -> float:
        return known[config.name, config.length, config.width] if config.seed == 0 else 0.2

    write_results(out, SWEEP | change, accuracy)


def test_figures_need_only_the_table(tmp_path):
    write_table(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs.jsonl", "sweep.json"]
    solved, text = write_sweep(tmp_path)
    assert len(solved) == 4
    assert text.startswith("| N |")
    assert {path.name for path in tmp_path.iterdir()} >= {"accuracy.svg", "solve.svg", "solve.csv"}


def test_several_seeds_have_a_table_of_their_own(tmp_path):
    write_table(tmp_path, seeds=[0, 1])
    _, text = write_sweep(tmp_path)
    # Model a at N = 64 and width 128: 0.999 and 0.2.
    assert "| 64 | 4 | a | 128 | 2 | 60.0 | 56.5 | 20.0–99.9 |" in text
    assert (tmp_path / "seeds.md").read_text() in text
    assert len(pd.read_csv(tmp_path / "seeds.csv")) == 8
    write_table(tmp_path)
    assert "Seeds" not in write_sweep(tmp_path)[1]


def test_only_a_sweep_of_mqar_with_mixers_of_a_result_is_compared_with_its_gaps(tmp_path):
    results = Path(__file__).parents[3] / "results"
    write_table(tmp_path)
    for folder, said in ((tmp_path, "no model of"), (results / "mqar" / "lengths-cpu", "is a sweep over tasks")):
        with pytest.raises(ArgapError, match=said):
            write_sweep(folder, [results / "today-7m" / "7m"])


@pytest.mark.parametrize(
    ("grid", "table", "said"),
    [
        (SWEEP, "no JSON", "runs.jsonl: line 1: not readable as JSON"),
        (SWEEP, '{"name": "a"}', "runs.jsonl: line 1: Object contains unknown field `name`; remove it, and the"),
        (SWEEP, "", "runs.jsonl: empty; `argap synthetics sweep"),
        (SWEEP, None, "runs.jsonl: no such file; `argap synthetics sweep"),
        (
            None,
            "",
            "sweep.json: expected a grid under the key sweep, found None; remove it, and `argap synthetics sweep",
        ),
        ({}, "", "sweep.json: members: missing"),
        ({**SWEEP, "axis": "lr"}, "", "sweep.json: axis: expected width or pairs"),
    ],
)
def test_a_broken_folder_gives_a_one_line_error(grid, table, said, tmp_path):
    write_json(tmp_path / "sweep.json", {} if grid is None else {"sweep": grid})
    if table is not None:
        (tmp_path / "runs.jsonl").write_text(table)
    with pytest.raises(ArgapError) as raised:
        write_sweep(tmp_path)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_pretrained_models_are_drawn_with_their_intervals():
    def row(model, pairs, part, ppl, accuracy):
        ends = {"ppl_ci95": [ppl / 2, ppl * 3], "accuracy_ci95": [accuracy - 0.1, accuracy + 0.2]}
        return {
            "n": 1,
            "nll": log(ppl),
            "model": model,
            "pairs": pairs,
            "slice": part,
            "ppl": ppl,
            "accuracy": accuracy,
        } | ends

    rows = [row("m", pairs, part, 8.0, 0.5) for pairs in (16, 32) for part in ("ar", "other")]
    where = {"device": "cpu", "dtype": "torch.float32", "versions": {}, "git": None}
    figure = pretrained_figure(convert({"format": 2, "rows": rows, "between": "' the'", **where}, PretrainedScores))
    ppl, accuracy = figure.axes
    for axes, low, high in ((ppl, 4.0, 24.0), (accuracy, 0.4, 0.7)):
        (bars,) = axes.containers
        ends = cast(ErrorbarContainer, bars).lines[2][0].get_segments()
        assert [[round(y, 6) for y in segment[:, 1]] for segment in ends] == [[low, high]] * 2
