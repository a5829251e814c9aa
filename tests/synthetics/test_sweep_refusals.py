"""What a sweep refuses, each in one line and before anything is trained."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from argap.cli import app
from argap.errors import ArgapError
from argap.synthetics.sweep import load_sweep

SMALL = {
    "members": {"attention": None},
    "lengths": [16],
    "widths": [8],
    "pairs": [2],
    "lrs": [1e-3],
    "run": {
        "vocab_size": 32,
        "train_examples": 32,
        "validation_examples": 8,
        "test_examples": 8,
        "batch_size": 16,
        "epochs": 1,
    },
}


def written(folder: Path, **change: Any) -> Path:
    """The small sweep, changed, as a file."""
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(SMALL | change))
    return path


def refused(folder: Path, **change: Any) -> str:
    """What is said of the small sweep, changed: one line that begins with the file's name."""
    path = written(folder, **change)
    with pytest.raises(ArgapError) as raised:
        load_sweep(path)
    said = str(raised.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    return said.removeprefix(f"{path}: ")


@pytest.mark.parametrize("value", [3, "hyena", ["hyena"], 0])
def test_a_member_is_what_differs_from_its_default(value, tmp_path):
    expected = "attention: expected nothing or KEY: VALUE lines (mixers, learned_positions, mlp), found"
    assert refused(tmp_path, members={"attention": value}) == f"{expected} {value!r}"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"members": {"attention": None, "hyenna": None}}, "hyenna, N 16, width 8: mixer 'hyenna': unknown"),
        (
            {"members": {"attention": {"mixers": [{"name": "attention", "heads": 4}]}}, "widths": [16, 18]},
            "attention, N 16, width 18: attention: width 18",
        ),
        ({"lengths": [16, 64], "pairs": [2, 8]}, "attention, N 16, width 8: mqar: 8 pairs"),
        (
            {"tasks": ["induction", "compression"], "lengths": [], "pairs": [], "widths": [8, 9]}
            | {"run": {key: value for key, value in SMALL["run"].items() if key != "vocab_size"}},
            "attention, compression, N 32, width 9: width 9: the decoder of compression needs an even number",
        ),
    ],
)
def test_what_cannot_be_built_is_found_before_anything_is_trained(change, said, tmp_path):
    assert refused(tmp_path, **change).startswith(said)
    for flag in ("--dry-run", "--device=cpu"):
        result = CliRunner().invoke(
            app, ["synthetics", "sweep", str(written(tmp_path, **change)), "--out", str(tmp_path / "out"), flag]
        )
        assert said in str(result.exception)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("axis", "values", "twice"),
    [
        ("lengths", [16, 32, 16], 16),
        ("widths", [8, 16, 8.0], 8),
        ("pairs", [2, 1, 1], 1),
        ("lrs", [1e-3, "1e-3"], 0.001),
        ("seeds", [0, 0], 0),
    ],
)
def test_what_would_be_trained_twice_is_refused(axis, values, twice, tmp_path):
    assert refused(tmp_path, **{axis: values}) == f"{axis}: {twice} is listed twice"


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"epochs": 0}, "attention: epochs 0; expected a whole number of at least 1"),
        ({"batch_size": 0}, "attention: batch_size 0; expected a whole number of at least 1"),
        ({"test_examples": -3}, "attention: test_examples -3; expected a whole number of at least 1"),
        ({"epoch": 3}, "run: unknown key epoch; known are vocab_size, alpha, fill, train_examples"),
        ({"weight_decay": float("nan")}, "attention: lr 0.001, warmup 0.1, weight_decay nan"),
    ],
)
def test_a_field_of_a_run_is_named_with_its_value(run, said, tmp_path):
    assert refused(tmp_path, run=run).startswith(said)


def test_an_axis_of_sizes_is_named_with_its_value(tmp_path):
    assert refused(tmp_path, widths=[8, -8]) == "attention: width -8; expected a whole number of at least 1"
    assert refused(tmp_path, lengths=[0]) == "attention: length 0; expected a whole number of at least 1"
    assert refused(tmp_path, seeds=[-1]) == "attention: seed -1; expected a whole number of at least 0"


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"epoch": 3}, "task induction: run: unknown key epoch; known are length, vocab_size"),
        ({"epochs": "all"}, "task induction: epochs: expected a whole number, found 'all'"),
        ({"epochs": 0}, "task induction: attention: epochs 0; expected a whole number of at least 1"),
        ({"length": 0}, "task induction: "),
    ],
)
def test_a_field_that_a_task_has_of_its_own_is_told_with_the_task(run, said, tmp_path):
    tasks = ["memorization", {"name": "induction", "run": run}]
    own = {key: value for key, value in SMALL["run"].items() if key != "vocab_size"}
    assert refused(tmp_path, tasks=tasks, run=own, lengths=[], pairs=[]).startswith(said)


@pytest.mark.parametrize(
    ("setting", "flag"),
    [("task=induction", "--task"), ("lr=1", "--lr"), ("length=8", "--length"), ("member=hyena", "MODEL, with --mlp")],
)
def test_what_has_a_flag_is_not_set(setting, flag):
    result = CliRunner().invoke(app, ["synthetics", "train", "attention", "--set", setting])
    assert str(result.exception) == f"--set {setting.split('=')[0]}: expected {flag}, which sets it"


def test_a_run_has_pairs_or_a_task(tmp_path):
    (config,) = load_sweep(written(tmp_path)).configs()
    with pytest.raises(ArgapError, match="attention: no pairs; expected at least one number of KV pairs, or a task"):
        replace(config, pairs=())
