"""Runs in progress are kept and go on as if nothing had happened."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from argap.errors import FormatError
from argap.synthetics.sweeps.store import UNFINISHED, write_run
from argap.synthetics.training import loop
from argap.synthetics.training.config import RunConfig
from argap.synthetics.training.loop import RunResult, TrainerGroup, train_group
from argap.synthetics.training.unfinished import keep, path_of
from tests.builders.sweeps import CPU, TINY, task_run

GROUP = [replace(TINY, epochs=3), replace(TINY, epochs=3, lr=1e-2)]
"""Two runs of twelve steps, validated after each four."""


def after(steps: int) -> Callable[[], bool]:
    """A ``stop`` that returns true once so many steps have been taken."""
    asked = itertools.count()
    return lambda: next(asked) >= steps


def told(results: list[RunResult]) -> dict[str, dict[str, Any]]:
    """Everything but the time, by run."""
    return {result.config.key: result.as_json() | {"seconds": None} for result in results}


@pytest.fixture
def killed_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets the step after so many others raise."""
    taken = itertools.count()
    step = TrainerGroup.step

    def patched(steps: int) -> None:
        def until(self: TrainerGroup) -> None:
            if next(taken) == steps:
                raise KeyboardInterrupt
            step(self)

        monkeypatch.setattr(TrainerGroup, "step", until)

    return patched


@pytest.mark.parametrize("steps", [1, 4, 5, 11])
def test_a_group_that_was_stopped_ends_as_if_it_had_not_been(steps: int, tmp_path: Path) -> None:
    kept = tmp_path / UNFINISHED
    assert train_group(GROUP, CPU, kept=kept, stop=after(steps)) == []
    assert len(list(kept.iterdir())) == 2
    resumed = train_group(GROUP, CPU, kept=kept, finished=partial(write_run, tmp_path))
    assert told(resumed) == told(train_group(GROUP, CPU))
    assert not kept.exists()


def test_it_goes_on_where_it_was_and_time_adds_up(tmp_path, monkeypatch, capsys) -> None:
    config = task_run("compression", task={"vocab_size": 6}, length=4)  # with a decoder of its own
    train_group([config], CPU, kept=tmp_path, stop=after(3))
    with monkeypatch.context() as patched:
        clock = itertools.count(step=100.0)
        patched.setattr(loop.time, "monotonic", lambda: next(clock))
        train_group([config], CPU, kept=tmp_path, stop=after(2))
    with safe_open(path_of(tmp_path, config), "pt") as file:
        position = json.loads(file.metadata()["position"])
    assert position["step"] == 5
    assert position["seconds"] >= 100
    capsys.readouterr()
    (resumed,) = train_group([config], CPU, kept=tmp_path)
    assert capsys.readouterr().err == f"{config.title}: resumes after 5 of 8 steps\n"
    (whole,) = train_group([config], CPU)
    assert told([resumed]) == told([whole])
    assert resumed.seconds > position["seconds"]


def test_after_a_kill_the_last_five_minutes_are_trained_again(tmp_path, monkeypatch, killed_after) -> None:
    clock, written = itertools.count(step=100.0), []  # read once a step
    monkeypatch.setattr(loop.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(loop, "keep", lambda *given: (written.append(given[2]), keep(*given)))
    killed_after(6)
    with pytest.raises(KeyboardInterrupt):
        train_group(GROUP, CPU, kept=tmp_path)
    monkeypatch.undo()
    assert written == [3]
    taken: list[int] = []
    step = TrainerGroup.step
    monkeypatch.setattr(TrainerGroup, "step", lambda self: (taken.append(1), step(self))[1])
    assert told(train_group(GROUP, CPU, kept=tmp_path)) == told(train_group(GROUP, CPU))
    assert len(taken) == 12 - 3 + 12


def test_a_run_that_ended_is_not_kept_and_the_others_go_on(tmp_path: Path) -> None:
    easy = replace(TINY, vocab_size=8, stop_at=1e-9, lr=1e-2)  # solved at the first validation
    hard = replace(easy, stop_at=1.0)
    kept = tmp_path / UNFINISHED
    train_group([easy, hard], CPU, kept=kept, stop=after(3))
    (ended,) = train_group([easy, hard], CPU, kept=kept, finished=partial(write_run, tmp_path), stop=after(3))
    assert ended.config == easy
    assert list(kept.iterdir()) == [path_of(kept, hard)]
    (resumed,) = train_group([hard], CPU, kept=kept)
    whole = told(train_group([easy, hard], CPU))[hard.key]
    assert told([resumed])[hard.key] == whole | {"group": 1}


@pytest.mark.parametrize("others", [0, 6])
def test_runs_of_different_steps_begin_anew(others: int, tmp_path, capsys) -> None:
    for config, steps in zip(GROUP, (3, others), strict=True):
        train_group([config], CPU, kept=tmp_path, stop=after(steps))
    capsys.readouterr()
    assert told(train_group(GROUP, CPU, kept=tmp_path)) == told(train_group(GROUP, CPU))
    assert capsys.readouterr().err == f"{GROUP[0].title}: begins anew, its runs were not kept at one step\n"


def _other_width(path: Path, config: RunConfig) -> None:
    other = replace(config, width=16)
    train_group([other], CPU, kept=path.parent, stop=after(1))
    path_of(path.parent, other).replace(path)


def _without_position(path: Path, config: RunConfig) -> None:
    save_file(load_file(path), path)


def _cut(path: Path, config: RunConfig) -> None:
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("change", [_other_width, _without_position, _cut])
def test_a_broken_file_is_named(change: Callable[[Path, RunConfig], None], tmp_path: Path) -> None:
    train_group([TINY], CPU, kept=tmp_path, stop=after(1))
    change(path_of(tmp_path, TINY), TINY)
    with pytest.raises(
        FormatError, match=r"not an unfinished run of this model .*; remove it, and the run begins anew$"
    ):
        train_group([TINY], CPU, kept=tmp_path)


@pytest.mark.gpu
def test_on_a_gpu_a_group_goes_on_in_a_new_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs = []
    capture = TrainerGroup._capture
    monkeypatch.setattr(TrainerGroup, "_capture", lambda self: (capture(self), graphs.append(self.graph)))
    gpu = torch.device("cuda")
    train_group(GROUP, gpu, kept=tmp_path, stop=after(6))
    resumed, whole = (told(train_group(GROUP, gpu, kept=kept)) for kept in (tmp_path, None))
    assert len(graphs) == 3
    assert None not in graphs
    for key, one in resumed.items():
        other = whole[key]
        assert one["steps"] == other["steps"] == 12
        # sums of some kernels have no fixed order, so a few answers may differ
        assert [step for step, _ in one["curve"]] == [step for step, _ in other["curve"]] == [4, 8, 12]
        assert one["accuracy"] == pytest.approx(other["accuracy"], abs=0.1)
