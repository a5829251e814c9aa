"""The table and figure of a sweep over tasks, with MAD's published scores."""

import csv
import json
from pathlib import Path
from statistics import fmean
from typing import cast

import numpy as np
import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from argap.cli import app
from argap.reports.figures.lengths import length_figure, write_lengths
from argap.reports.figures.mqar import write_sweep
from argap.reports.figures.tasks import MAD_TASKS, PUBLISHED, best_by_task, task_figure, task_table
from argap.reports.tables.formats import markdown
from argap.synthetics.sweeps.lengths import accuracy_by_length
from argap.synthetics.sweeps.sweep import load_sweep
from argap.synthetics.tasks.registry import TASKS
from argap.synthetics.training.models import MEMBERS
from tests.builders.sweeps import write_results


def runs(tasks=MAD_TASKS, names=("attention", "base_conv"), widths=(128,)):
    """Two learning rates each: the first is better in validation, the second in testing."""
    rows = [
        {"name": name, "task": task, "width": width, "length": 32, "lr": lr, "seed": 0}
        | {"validation_accuracy": 0.9 - 100 * lr, "accuracy": 0.25 + 0.125 * k + 10 * lr}
        for task in tasks
        for width in widths
        for k, name in enumerate(names)
        for lr in (1e-3, 2e-3)
    ]
    return pd.DataFrame(rows)


def test_published_averages_match_their_rows():
    """Each average is the mean of its row, to the printed digit, and every task and mixer exists in argap."""
    assert [row.average for row in PUBLISHED] == [round(fmean(row.scores) + 1e-9, 1) for row in PUBLISHED]
    assert set(MAD_TASKS) <= set(TASKS)
    assert {row.member for row in PUBLISHED} - {None} <= set(MEMBERS)
    assert PUBLISHED[-1].score("fuzzy_recall") == 35.7
    assert PUBLISHED[-1].score("fuzzy_recall, length 256") is None


def test_the_best_validated_run_is_shown_with_the_published_score():
    best = best_by_task(runs())
    assert best["lr"].unique().tolist() == [1e-3]
    assert best["task"].tolist()[::2] == list(MAD_TASKS)
    np.testing.assert_allclose(best["accuracy"].tolist()[:2], [0.26, 0.385])
    np.testing.assert_allclose(best["printed"].tolist()[:2], [0.516, np.nan])  # of BaseConv nothing is printed
    lines = markdown(task_table(best)).splitlines()
    assert lines[0].endswith("| in context recall | memorization | noisy recall | selective copy | average |")
    assert lines[2] == "| attention | ours | 26.0 | 26.0 | 26.0 | 26.0 | 26.0 | 26.0 | 26.0 |"
    assert lines[3] == "| Transformer | printed | 51.6 | 29.8 | 94.1 | 85.2 | 86.8 | 99.6 | 74.5 |"
    assert lines[4].startswith("| base\\_conv | ours | 38.5 |")
    assert lines[5] == "| Hyena | printed | 45.2 | 7.9 | 81.7 | 89.5 | 78.8 | 93.1 | 66.0 |"
    assert len([line for line in lines if "| printed |" in line]) == len(PUBLISHED)
    assert "table 1. MAD's scores are means over" in lines[-1]


def test_averages_need_all_tasks_and_keep_widths_separate():
    frame = runs(tasks=("compression", "noisy_recall, noise 0.4"), names=("mamba",), widths=(64, 128))
    frame = frame[(frame["width"] == 64) | (frame["task"] == "compression")]
    lines = markdown(task_table(best_by_task(cast(pd.DataFrame, frame)))).splitlines()
    assert lines[2] == "| mamba, width 64 | ours | 26.0 | 26.0 | 26.0 |"
    assert lines[3] == "| Mamba | printed | 52.7 | — | — |"
    assert lines[4] == "| mamba, width 128 | ours | 26.0 | — | — |"


def test_other_tasks_have_no_published_scores():
    best = best_by_task(runs(tasks=("induction", "automata")))
    text = markdown(task_table(best))
    assert "printed" not in text
    figure = task_figure(best)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ours"]


def test_each_task_has_a_panel_with_our_and_published_scores():
    figure = task_figure(best_by_task(runs()))
    assert [axes.get_title("left") for axes in figure.axes] == [task.replace("_", " ") for task in MAD_TASKS]
    points = {str(line.get_label()): np.asarray(line.get_xdata()) for line in figure.axes[1].get_lines()}
    printed, ours = points["printed (arXiv 2406.06484, table 1)"], points["ours"]
    np.testing.assert_allclose(ours, [0.26, 0.385])
    np.testing.assert_allclose(printed, [0.298, np.nan])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["attention", "base_conv"]


def test_a_sweep_over_tasks_is_plotted_from_its_folder(tmp_path):
    grid = {"members": {"attention": None, "base_conv": None}, "tasks": list(MAD_TASKS), "widths": [128], "lrs": [1e-3]}
    write_results(tmp_path, grid, lambda config: 0.26 if config.name == "attention" else 0.385)
    best, text = write_sweep(tmp_path)
    assert (tmp_path / "tasks.md").read_text() == text
    with open(tmp_path / "tasks.csv", newline="") as file:
        records = list(csv.DictReader(file))
    assert len(records) == len(best) == 12
    assert (records[0]["task"], records[0]["accuracy"], records[0]["printed"]) == ("compression", "0.26", "0.516")
    assert {path.name for path in tmp_path.iterdir()} >= {"tasks.svg"}
    assert not (tmp_path / "solve.csv").exists()


REFLECTING = {"mixers": [{"name": "delta_net", "negative_eigenvalues": True}]}
GRID = {
    "members": {
        "rope": {"mixers": ["attention"], "learned_positions": False},
        "mamba2": None,
        "reflecting": REFLECTING,
        "hybrid": {"mixers": ["mamba2", "attention"]},
        "rwkv7": None,
    },
    "tasks": [{"name": "parity", "run": {"length": 32}}, "copy"],
    "widths": [128],
    "lrs": [1e-3, 1e-2],
    "seeds": [0, 1],
    "run": {"multiples": [1, 4]},
}


def right_at(config, multiple):
    """At N: 0.9 with the first seed and 1 with the second. At 4 N only the one with reflections is right, and at 0.5
    the others, unless the rate is one that validation does not choose."""
    if config.lr != 1e-3:
        return 0.123
    return (0.9 + 0.1 * config.seed) if multiple == 1 else 0.97 if config.name == "reflecting" else 0.5


def test_accuracy_is_told_by_length_beside_a_guess_and_known_separations(tmp_path):
    write_results(tmp_path, GRID, lambda config: 0.9 - config.lr, right_at)
    _, text = write_sweep(tmp_path)
    assert text.endswith((tmp_path / "lengths.md").read_text())
    lines = text.splitlines()
    assert "| parity, length 32 | mamba2 | 95.0 (90.0–100.0) | 50.0 |" in lines
    assert "| parity, length 32 | a guess | 50.0 | 50.0 |" in lines
    assert "| copy, N 128 | a guess | 3.8 | 3.8 |" in lines
    told = [line for line in lines if "arXiv 24" in line]
    assert [line.split(" | ")[-1] for line in told] == ["yes |", "yes |", "yes |", "yes |", "no |"]
    assert told[2].startswith("| parity | delta rule, β up to 2 | generalise (arXiv 2411.12537) | reflecting: 97.0%")
    assert told[4].startswith(
        "| copy | attention only | generalise (arXiv 2402.01032) | rope: 50.0%"
    )  # it does not appear
    found = accuracy_by_length(tmp_path)
    assert [row.family for row in found[:10:2]] == ["attention", "positive", "reflections", "hybrid", "other"]
    assert {row.seeds for row in found} == {2}
    with open(tmp_path / "lengths.csv", newline="") as file:
        assert len(list(csv.DictReader(file))) == len(found) == 2 * 5 * 2
    figure = length_figure(found)
    assert [axes.get_title("left") for axes in figure.axes] == ["parity, length 32", "copy"]
    drawn = {str(line.get_label()): np.asarray(line.get_ydata()) for line in figure.axes[0].get_lines()}
    np.testing.assert_allclose(drawn["reflecting"], [0.95, 0.97])
    assert any(np.all(line == 0.5) for label, line in drawn.items() if label.startswith("_"))  # a guess


def test_without_tests_of_longer_examples_nothing_is_told(tmp_path):
    write_results(tmp_path, GRID | {"run": {}}, lambda config: 0.9)
    assert write_lengths(tmp_path) == ""
    assert not list(tmp_path.glob("lengths*"))


def test_a_sweep_is_trained_and_plotted_from_the_command_line(tmp_path):
    sizes = {"train_examples": 32, "validation_examples": 8, "test_examples": 8, "batch_size": 16, "epochs": 1}
    asked = {"members": {"attention": None}, "widths": [8], "lrs": [1e-3], "tasks": ["compression"], "run": sizes}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(asked))
    out = tmp_path / "out"
    for command in (["sweep", tmp_path / "tiny.yaml", "--out", out, "--device", "cpu"], ["plot", out]):
        result = CliRunner().invoke(app, ["synthetics", *map(str, command)])
        assert result.exit_code == 0, result.output
    assert "| Transformer | printed | 51.6 | 51.6 |" in result.stdout
    told = json.loads(CliRunner().invoke(app, ["synthetics", "plot", str(out), "--json"]).stdout)
    assert [row["printed"] for row in told] == [0.516]


@pytest.mark.parametrize("name", ["mad", "mad-small"])
def test_presets_hold_the_six_tasks_at_their_baseline(name):
    configs = load_sweep(Path(__file__).parents[3] / "suites" / "mqar" / f"{name}.yaml").configs()
    assert list(dict.fromkeys(config.task_label for config in configs)) == list(MAD_TASKS)
    members = {config.name for config in configs}
    assert members == {"attention", "hyena", "multihead_hyena", "mamba", "gla", "delta_net", "base_conv"}
    for config in configs:
        assert config.member.mlp
        assert config.train_examples == (256 if config.task_label == "memorization" else 12_800)
        assert (config.width, config.examples_per_step, config.test_examples) == (128, 128, 1_280)
