"""Trackers: TensorBoard's files read back, the others by stand-ins, and lines for what is missing."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from argap.errors import ArgapError
from argap.records import as_json
from argap.result import open_result
from argap.results.printed import log_result, metrics_of
from argap.runtime.trackers import Trackers, check_trackers
from argap.train import load_config, read_log, train


def read_back(folder: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {name: [(e.step, e.value) for e in events.Scalars(name)] for name in events.Tags()["scalars"]}


def test_training_is_in_the_tracker_as_in_the_log(toy_tokenizer: Path, toy_corpus: Path, tmp_path: Path) -> None:
    values = {
        "tokenizer": str(toy_tokenizer), "data": [str(toy_corpus)], "eval_data": [str(toy_corpus)], "eval_every": 2,
        "architecture": "attention", "hidden_size": 16, "num_layers": 1, "seq_len": 16, "batch_size": 4, "steps": 4,
        "log_every": 2,
    }  # fmt: skip
    out = tmp_path / "out"
    train(load_config(None, values), out, device="cpu", log_to=["tensorboard"])
    found, lines = read_back(out), [as_json(line) for line in read_log(out / "log.jsonl")]
    for name, key in (
        ("train/loss", "loss"),
        ("train/lr", "lr"),
        ("train/tokens", "tokens"),
        ("eval/loss", "eval_loss"),
    ):
        expected = [
            (line["step"], line[key]) for line in lines if key in line and (name != "train/tokens" or "lr" in line)
        ]
        assert len(expected) == 2
        assert [step for step, _ in found[name]] == [step for step, _ in expected]
        assert [value for _, value in found[name]] == pytest.approx([value for _, value in expected], rel=1e-6)


def test_a_resumed_run_replaces_the_steps_after_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorboard.summary.writer import event_file_writer

    # Files of one second are read in the order of this number as text, in which 10 comes before 9.
    monkeypatch.setattr(event_file_writer, "_global_uid", event_file_writer.AtomicCounter(0))
    with Trackers(["tensorboard"], tmp_path, {"lr": 0.1}) as trackers:
        for step in (1, 2, 3):
            trackers.log({"a": step, "b": None, "c": float("nan")}, step)
    with Trackers(["tensorboard", "tensorboard"], tmp_path, first_step=2) as trackers:
        trackers.log({"a": 33}, 3)
    assert read_back(tmp_path) == {"a": [(1, 1.0), (2, 2.0), (3, 33.0)]}


def test_the_metrics_of_a_result(token_result: Path, tmp_path: Path) -> None:
    gap = open_result(token_result).record
    log_result(gap, ["tensorboard"], tmp_path)
    found = {name: values[0][1] for name, values in read_back(tmp_path).items()}
    assert found["m2/nll_overall"] == pytest.approx(gap.on_all["m2"].nll, rel=1e-6)
    assert found["m2/delta"] == pytest.approx(gap.deltas["m2"], rel=1e-6)
    claimed = {row.model for row in gap.compared if gap.on_hits[row.model].reason is None}
    assert {name.partition("/")[0] for name in metrics_of(gap) if name.endswith("/share_ar_hits")} == claimed
    log_result(gap, [], tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_unknown_and_missing_trackers_are_refused_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgapError, match=r"`log_to` mlflow: expected tensorboard, wandb, trackio"):
        check_trackers(["tensorboard", "mlflow"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    config = load_config(None, {"tokenizer": "none", "data": ["none"], "architecture": "attention", "steps": 1})
    with pytest.raises(ArgapError, match=r"wandb is not installed; run `pip install 'argap\[wandb\]'`"):
        train(config, tmp_path / "out", log_to=["wandb"])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_the_others_get_name_project_configuration_and_steps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    run = SimpleNamespace(log=lambda metrics, step: calls.append((metrics, step)), finish=lambda: calls.append("end"))
    module = SimpleNamespace(init=lambda **given: calls.append(given) or run, __spec__=SimpleNamespace())
    monkeypatch.setitem(sys.modules, name, module)  # pyright: ignore[reportArgumentType]
    monkeypatch.setenv(f"{name.upper()}_PROJECT", "mine")
    with Trackers([name], tmp_path / "run", {"lr": 0.1}, first_step=7) as trackers:
        trackers.log({"a": 1.0}, 8)
    opened, *rest = calls
    assert isinstance(opened, dict)
    assert (opened["project"], opened["name"], opened["config"], opened["resume"]) == (
        "mine",
        "run",
        {"lr": 0.1},
        "allow",
    )
    assert rest == [({"a": 1.0}, 8), "end"]
