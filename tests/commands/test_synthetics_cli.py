"""``argap synthetics generate``, ``train``, ``sweep`` and ``plot`` from the command line."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from argap.cli import app
from argap.errors import ArgapError
from argap.files.atomic import _machine, read_json_lines
from argap.synthetics.tasks.mqar import MqarConfig
from argap.synthetics.tasks.mqar import build as build_mqar
from argap.synthetics.tasks.registry import TASKS
from argap.synthetics.training import trainer

SETTINGS = [
    *("--set", "vocab_size=32", "--set", "train_examples=32", "--set", "validation_examples=8"),
    *("--set", "test_examples=8", "--set", "batch_size=16", "--set", "epochs=1"),
]


def call(*arguments):
    result = CliRunner().invoke(app, ["synthetics", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_generate_writes_what_build_gives(tmp_path):
    for path in (tmp_path / "data.npz", tmp_path / "data-1.5"):
        call("generate", "--out", path, "--examples", 5, "--length", 32, "--vocab-size", 64, "--seed", 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data-1.5.npz", "data.npz"]
    path = tmp_path / "data.npz"
    made = build_mqar(MqarConfig(examples=5, length=32, pairs=2, vocab_size=64), seed=3)
    with np.load(path) as written:
        assert sorted(written) == ["distance", "inputs", "labels"]
        np.testing.assert_array_equal(written["inputs"], made.inputs)
        np.testing.assert_array_equal(written["labels"], made.labels)
        np.testing.assert_array_equal(written["distance"], made.slices["distance"])


def test_generate_writes_another_task_and_tasks_lists_them_all(tmp_path):
    path, out = tmp_path / "s3.npz", ["generate", "--out", tmp_path / "s3", "--examples", 4]
    said = call(*out, "--task", "{name: s3, elements: swaps}", "--length", 9)
    assert said == f"{path}: 4 examples of 9 tokens, s3, elements swaps\n"
    with np.load(path) as written:
        assert sorted(written) == ["inputs", "labels", "steps"]
        assert written["labels"].shape == (4, 9)
    result = CliRunner().invoke(app, ["synthetics", *map(str, out), "--task", "s3", "--pairs", "4", "--overwrite"])
    assert str(result.exception).startswith("task s3: `pairs`, `vocab_size`, ")
    lines = call("tasks").splitlines()
    assert "| copy | 128 | 28 | 3.8 | 100.0 |" in lines
    assert "| automata | 512 | 19 | — | — |" in lines
    assert [row["task"] for row in json.loads(call("tasks", "--json"))] == list(TASKS)


@pytest.mark.parametrize("out", [".", "/"])
def test_generate_needs_the_name_of_a_file(out):
    result = CliRunner().invoke(app, ["synthetics", "generate", "--out", out, "--examples", "1"])
    assert isinstance(result.exception, ArgapError)
    assert str(result.exception) == f"`out` {out}: a folder; expected the name of a file"


def test_generate_replaces_no_file_unasked(tmp_path):
    path = tmp_path / "data.npz"
    path.write_text("mine")
    left = tmp_path / f".data.npz.999999999-{_machine()}00000000.tmp"  # no process has the number
    left.write_text("half")
    result = CliRunner().invoke(app, ["synthetics", "generate", "--out", str(path.with_suffix(""))])
    assert isinstance(result.exception, ArgapError)
    assert str(result.exception).startswith(f"{path}: already exists")
    assert path.read_text() == "mine"
    assert not left.exists()
    call("generate", "--out", path, "--examples", 1, "--overwrite")
    with np.load(path) as written:
        assert written["inputs"].shape == (1, 64)


def test_train_tells_each_learning_rate_and_writes_its_run(tmp_path):
    flags = ["--width", 8, "--length", 16, "--pairs", 2, "--lr", 1e-3, "--lr", 1e-2, "--device", "cpu"]
    printed = call("train", "argap.models.mixers.gla:GLA", *flags, *SETTINGS, "--out", tmp_path, "--json")
    results = json.loads(printed)
    assert [result["config"]["lr"] for result in results] == [1e-3, 1e-2]
    written = [json.loads(path.read_text()) for path in (tmp_path / "runs").iterdir()]
    assert sorted(w["accuracy"] for w in written) == sorted(r["accuracy"] for r in results)


def test_train_says_first_how_long_a_cpu_has_to_work(monkeypatch):
    """Without options 64 epochs of 100,000 examples at four learning rates: 4 × 64 × ⌊100,000 / 64⌋ steps."""
    monkeypatch.setattr("argap.synthetics.training.loop.train_group", lambda *_, **__: [])
    result = CliRunner().invoke(app, ["synthetics", "train", "attention", "--device", "cpu"])
    assert result.stderr == (
        "training on a CPU: up to 399,872 steps of 64 examples, 64 epochs x 4 learning rates; "
        "fewer with --set epochs=N\n"
    )
    assert result.stdout == ""
    monkeypatch.setattr("argap.runtime.device.use_device", lambda _: torch.device("meta"))  # any but a CPU
    assert CliRunner().invoke(app, ["synthetics", "train", "attention"]).stderr == ""


@pytest.fixture
def config(tmp_path):
    """A sweep of one run of two steps."""
    path = tmp_path / "tiny.yaml"
    path.write_text(
        "members: {attention: }\nlengths: [16]\nwidths: [8]\npairs: [2]\nlrs: [1.0e-3]\n"
        "run: {vocab_size: 32, train_examples: 32, validation_examples: 8, test_examples: 8, "
        "batch_size: 16, epochs: 1}\n"
    )
    return path


@pytest.mark.parametrize("flags", [[], ["--compile"]])
def test_a_sweep_compiles_the_layers_of_its_runs_if_asked(config, tmp_path, flags, monkeypatch):
    compiled = []
    monkeypatch.setattr(trainer, "compile_layers", compiled.append)
    assert "1 of 1 runs" in call("sweep", config, "--out", tmp_path / "out", "--device", "cpu", *flags)
    assert len(compiled) == len(flags)
    (run,) = read_json_lines(tmp_path / "out" / "runs.jsonl")
    assert run.get("compiled", False) == bool(flags)


def test_a_sweep_with_no_time_left_writes_what_is_there_and_is_drawn(config, tmp_path):
    out = tmp_path / "out"
    assert "at most 2 steps" in call("sweep", config, "--out", out, "--dry-run")
    assert "0 of 1 runs" in call("sweep", config, "--out", out, "--device", "cpu", "--time-limit", 0)
    assert "1 of 1 runs" in call("sweep", config, "--out", out, "--device", "cpu", "--time-limit", 100)
    assert call("sweep", config, "--out", out, "--dry-run").strip().endswith("finished")
    assert sorted(path.name for path in out.iterdir()) == ["runs.jsonl", "sweep.json"]
    assert "| 16 | 2 | attention |" in call("plot", out)
    assert (out / "accuracy.svg").is_file()


def test_a_task_is_trained_on_from_the_command_line(tmp_path):
    sizes = ["train_examples=32", "validation_examples=8", "test_examples=8", "batch_size=16", "epochs=1"]
    flags = [part for size in sizes for part in ("--set", size)]
    task = ["--task", "{name: noisy_recall, noise: 0.4}", "--width", "8", "--lr", "1e-3", "--device", "cpu", "--json"]
    result = CliRunner().invoke(app, ["synthetics", "train", "attention", *task, *flags, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    (told,) = json.loads(result.stdout)
    assert told["config"]["task"]["noise"] == 0.4
    assert told["config"]["length"] == 128
    for text, said in (("mad", "task 'mad': unknown"), ("{name: x", r"task \{name: x: expected a name or")):
        refused = CliRunner().invoke(app, ["synthetics", "train", "attention", "--task", text])
        assert refused.exit_code == 1
        with pytest.raises(ArgapError, match=said):
            raise refused.exception or AssertionError(refused.output)
