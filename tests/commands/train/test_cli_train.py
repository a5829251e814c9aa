"""``argap train``: flags override the file, one-line errors, exit codes."""

import json
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import yaml

from argap.files.atomic import read_json
from argap.train.loop import Trainer, Windows


@pytest.fixture
def file(toy_values: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(toy_values | {"steps": 12}))
    return path


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def on_cpu(run_command: Run) -> Run:
    """Runs ``argap train --device cpu`` with further arguments."""
    return partial(run_command, "train", "--device", "cpu")


def test_flags_override_the_file(file: Path, on_cpu: Run) -> None:
    arguments = ("toy.yaml", "--lr", "0.003", "--set", "betas=[0.8, 0.9]", "--batch-size", "4", "--json")
    code, printed, progress = on_cpu(*arguments)
    assert code == 0
    record = json.loads(printed)
    assert record == read_json(Path("runs/toy/train.json"))  # OUT is named after the file
    assert [record["config"][key] for key in ("lr", "betas", "batch_size")] == [0.003, [0.8, 0.9], 4]
    assert record["finished"]["tokens"] == 12 * 4 * 16
    assert "step 12 of 12" in progress


def test_flags_suffice_without_a_file(toy_values: dict, tmp_path: Path, on_cpu: Run) -> None:
    flags = ["--tokenizer", toy_values["tokenizer"], "--data", toy_values["data"][0], "--steps", "3"]
    flags += ["--architecture", "attention", "--seq-len", "16", "--batch-size", "2", "--set", "hidden_size=32"]
    flags += ["--set", "warmup_steps=1"]
    code, _, error = on_cpu(*flags)
    assert code == 1
    assert "without a configuration file, name the folder with --out DIR" in error
    code, printed, _ = on_cpu(*flags, "--out", str(tmp_path / "out"))
    assert code == 0
    assert f"{tmp_path / 'out'}: loss " in printed


@pytest.mark.parametrize("left", [{"RANK": "3"}, {"RANK": ""}, {"RANK": "1", "WORLD_SIZE": "1"}])
def test_a_rank_that_another_launcher_left_does_not_silence_a_single_process(
    file: Path, tmp_path: Path, on_cpu: Run, monkeypatch: pytest.MonkeyPatch, left: dict[str, str]
) -> None:
    for name, value in left.items():
        monkeypatch.setenv(name, value)
    code, out, _ = on_cpu(str(file), "--out", str(tmp_path / "out"))
    assert (code, "loss" in out) == (0, True)


def test_an_interrupted_run_exits_with_130_and_resumes(
    file: Path, monkeypatch: pytest.MonkeyPatch, on_cpu: Run
) -> None:
    step = Trainer.step

    def interrupted(self: Trainer, windows: Windows, number: int) -> torch.Tensor:
        if number == 5:
            signal.raise_signal(signal.SIGTERM)
        return step(self, windows, number)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        code, _, error = on_cpu("toy.yaml")
    assert code == 130
    assert "interrupted; a checkpoint was written" in error
    code, _, error = on_cpu("toy.yaml")
    assert code == 0
    assert "resumed from step 6" in error


def test_a_second_interrupt_stops_at_once_and_promises_no_checkpoint(
    file: Path, monkeypatch: pytest.MonkeyPatch, on_cpu: Run
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores the signal

    def interrupted_twice(self: Trainer, windows: Windows, number: int) -> torch.Tensor:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("the second signal ends the step")

    monkeypatch.setattr(Trainer, "step", interrupted_twice)
    try:
        code, _, error = on_cpu("toy.yaml")
    finally:
        signal.signal(signal.SIGINT, handler)
    assert code == 130
    assert "interrupted; the same command continues from the last checkpoint" in error
    assert "was written" not in error
    assert not list(file.parent.rglob("step-*"))
