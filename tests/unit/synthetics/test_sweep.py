"""The grid of a sweep, and what its file refuses before anything is trained."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from argap.cli import app
from argap.errors import ArgapError
from argap.files.configs import build
from argap.files.plain_yaml import read_yaml
from argap.models.cost import cost
from argap.reports.figures.tasks import best_by_task
from argap.runtime.jobs import run_on
from argap.synthetics.sweeps.jobs import run_sweep
from argap.synthetics.sweeps.sweep import Sweep, check_buildable, load_sweep
from tests.builders.sweeps import CPU, SMALL


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
    ("change", "said"),
    [
        *(
            ({axis: []}, "members, lengths, widths, lrs and seeds: expected at least one of each")
            for axis in ("lengths", "widths", "lrs", "seeds")
        ),
        ({"members": {}}, "members, lengths, widths, lrs and seeds: expected at least one of each"),
        ({"members": {"a/b": {"mixers": ["attention"]}}}, "members: 'a/b': the name becomes a folder"),
        ({"pairs": [], "pairs_together": True}, "pairs_together: expected a list of pairs"),
    ],
)
def test_a_grid_without_runs_or_with_a_name_for_no_file_is_refused(change, said, tmp_path):
    assert refused(tmp_path, **change).startswith(said)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"epochs": 0}, "epochs: expected 1 to 1,000,000,000, found 0"),
        ({"batch_size": 0}, "batch_size: expected 1 to 1,048,576, found 0"),
        ({"test_examples": -3}, "test_examples: expected 1 to 100,000,000, found -3"),
        ({"epoch": 3}, "run: unknown key epoch; known are vocab_size, alpha, fill, train_examples"),
        ({"weight_decay": float("nan")}, "weight_decay: expected 0 to 1e+30, found nan"),
    ],
)
def test_a_field_of_a_run_is_named_with_its_value(run, said, tmp_path):
    assert refused(tmp_path, run=run).startswith(said)


def test_an_axis_of_sizes_is_named_with_its_value(tmp_path):
    assert refused(tmp_path, widths=[8, -8]) == "width: expected 1 to 131,072, found -8"
    assert refused(tmp_path, lengths=[0]) == "length: expected 1 to 16,777,216, found 0"
    assert refused(tmp_path, seeds=[-1]) == "seed: expected 0 to 9,223,372,036,854,775,807, found -1"


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"epoch": 3}, "task induction: run: unknown key epoch; known are length, vocab_size"),
        ({"epochs": "all"}, "task induction: epochs: expected a whole number, found 'all'"),
        ({"epochs": 0}, "task induction: epochs: expected 1 to 1,000,000,000, found 0"),
        ({"length": 0}, "task induction: "),
    ],
)
def test_a_field_that_a_task_has_of_its_own_is_told_with_the_task(run, said, tmp_path):
    tasks = ["memorization", {"name": "induction", "run": run}]
    own = {key: value for key, value in SMALL["run"].items() if key != "vocab_size"}
    assert refused(tmp_path, tasks=tasks, run=own, lengths=[], pairs=[]).startswith(said)


def test_a_sweep_file_that_is_wrong_is_one_line(tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text("members: {attention: }\nlengths: [64]\nrun: {width: 3}\n")
    with pytest.raises(ArgapError, match=r"wrong.yaml: run: width is set by members"):
        load_sweep(path)


def test_the_published_sweeps_can_be_read_and_built():
    """Each member at the least and the largest width."""
    for path in sorted((Path(__file__).parents[3] / "suites" / "mqar").glob("*.yaml")):
        sweep = build(Sweep, read_yaml(path))
        check_buildable(replace(sweep, widths=sweep.widths[:1]))
        last = sweep.configs()[-1]
        assert cost(last.model_config(), last.length).flops > 0, path


def test_pairs_have_a_run_each_or_are_trained_together():
    both = SMALL | {"pairs": [1, 2]}
    assert [config.pairs for config in build(Sweep, both).configs()] == [(1,), (2,)]
    assert [config.pairs for config in build(Sweep, both | {"pairs_together": True}).configs()] == [(1, 2)]
    assert [config.pairs for config in build(Sweep, SMALL | {"pairs": [], "lengths": [64]}).configs()] == [(4,)]


TWO = {
    "members": {"attention": None, "delta_net": None},
    "widths": [8],
    "lrs": [1e-3, 1e-2],
    "tasks": ["memorization", {"name": "induction", "vocab_size": 8, "run": {"length": 8, "train_examples": 48}}],
    "run": {"train_examples": 32, "validation_examples": 8, "test_examples": 8, "batch_size": 16, "epochs": 1},
}


def test_a_sweep_over_tasks_trains_every_member_on_each(tmp_path):
    sweep = build(Sweep, TWO)
    assert [(c.name, c.task_label, c.length, c.train_examples) for c in sweep.configs()[::2]] == [
        ("attention", "memorization", 32, 32),
        ("delta_net", "memorization", 32, 32),
        ("attention", "induction, vocab_size 8, length 8", 8, 48),
        ("delta_net", "induction, vocab_size 8, length 8", 8, 48),
    ]
    runs = run_sweep(sweep, tmp_path, partial(run_on, [CPU]))
    assert len(runs) == 8
    assert runs["task"].tolist()[::4] == ["memorization", "induction, vocab_size 8, length 8"]
    at_two = replace(sweep, lengths=(16, 32), tasks=("memorization",))
    assert [c.task_label for c in at_two.configs()[::4]] == ["memorization, length 16", "memorization"]


def test_a_task_may_be_there_with_several_numbers_of_examples(tmp_path):
    """What the run has for a task alone tells it from the same task: in the table, and in what is best of each."""
    few, more = ({"name": "memorization", "run": {"train_examples": n, "epochs": 2}} for n in (16, 48))
    sweep = build(Sweep, TWO | {"tasks": ["memorization", few, more], "members": {"attention": None}})
    runs = run_sweep(sweep, tmp_path, partial(run_on, [CPU]))
    first, *others = runs["task"].unique().tolist()
    assert first == "memorization"
    assert others == ["memorization, train_examples 16, epochs 2", "memorization, train_examples 48, epochs 2"]
    assert best_by_task(runs)["task"].tolist() == [first, *others]
    assert [config.task_label for config in sweep.configs()] == ["memorization"] * 6  # and so the runs' keys
    alone = replace(sweep, tasks=(few,))
    assert set(alone.task_labels().values()) == {"memorization"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tasks": ["mad"]}, "tasks.yaml: task 'mad': unknown; known are in_context_recall"),
        ({"tasks": [3]}, "tasks.yaml: task 3: unknown"),
        ({"tasks": [{"name": ["induction"]}]}, r"tasks.yaml: task \['induction'\]: unknown"),
        (
            {"tasks": ["induction", {"name": "induction", "vocab_size": 20}]},
            "tasks.yaml: tasks: induction is listed twice",
        ),
        (
            {"tasks": ["memorization", {"name": "memorization", "run": {"train_examples": "32"}}]},
            "tasks.yaml: tasks: memorization is listed twice",
        ),
        ({"tasks": [{"name": "induction", "run": {"lr": 1}}]}, "task induction: run: lr is set by members"),
        ({"tasks": [{"name": "induction", "run": 3}]}, "task induction: run: expected KEY: VALUE lines"),
        ({"pairs": [4]}, "pairs: they apply to MQAR only"),
        ({"run": {"fill": 0}}, "pairs, vocab_size, alpha, fill, layout apply to MQAR only"),
        ({"run": {"task": "induction"}}, "run: task is set by"),
    ],
)
def test_a_sweep_over_tasks_that_is_wrong_is_one_line(change, said, tmp_path):
    path = tmp_path / "tasks.yaml"
    path.write_text(yaml.safe_dump(TWO | change))
    with pytest.raises(ArgapError, match=said):
        load_sweep(path)
