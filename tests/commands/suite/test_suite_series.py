"""Checkpoint series in place of training: local folders and revisions in a hub cache, scored into a trajectory."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, GPT2Config
from typer.testing import CliRunner

from argap.cli.suite import app
from argap.errors import ArgapError
from argap.records import Gap, read_gap
from argap.reports.figures.drawing import save
from argap.reports.figures.training import recall_along_training
from argap.suite.series import load_series
from argap.suite.trajectory import COLUMNS
from argap.tokens.labels import read_labels
from argap.tokens.runs import open_run, read_logprobs
from tests.builders.tokenizers import byte_level

TEXT = "the cat sat on the mat. hello world, the cat sat on the hat; return 12345 the cat "
STEPS = (1, 2, 4)


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """``local/step-N``, the same three checkpoints as revisions of ``org/hub`` in a hub cache, and a text."""
    place, tokenizer = tmp_path_factory.mktemp("series"), byte_level(0, 40)
    for seed, step in enumerate(STEPS):
        for name, offset in (("local", 0), ("hub", 10)):
            torch.manual_seed(seed + offset)
            config = GPT2Config(vocab_size=tokenizer.vocab_size, n_embd=16, n_layer=1, n_head=2, n_positions=64)
            folder = place / "local" / f"step-{step}"
            if name == "hub":
                folder = place / "cache" / "models--org--hub" / "snapshots" / (f"{step}" * 40)
            AutoModelForCausalLM.from_config(config).save_pretrained(folder)
            tokenizer.save(folder)
        (place / "cache" / "models--org--hub" / "refs").mkdir(parents=True, exist_ok=True)
        (place / "cache" / "models--org--hub" / "refs" / f"step{step}").write_text(f"{step}" * 40)
    (place / "text").mkdir()
    for k in range(4):
        (place / "text" / f"{k}.txt").write_text(TEXT[7 * k :] + TEXT[: 9 * k + 20])
    return place


def described(place: Path, **changes: Any) -> dict[str, Any]:
    series = {
        "local": {"checkpoint": f"{place}/local/step-{{step}}", "steps": list(STEPS), "tokens_per_step": 100},
        "hub": {"checkpoints": {2: "org/hub@step1", 4: "org/hub@step2"}, "tokens_per_step": 50, "dtype": "bfloat16"},
    }
    evaluation = {"data": [str(place / "text")], "seq_len": 32}
    return {"reference": "local", "series": series, "evaluation": evaluation} | changes


def run(folder: Path, given: dict[str, Any], *more: str) -> Any:
    (folder / "series.yaml").write_text(yaml.safe_dump(given, sort_keys=False))
    command = ["trajectory", str(folder / "series.yaml"), "--out", str(folder / "out"), "--device", "cpu", *more]
    return CliRunner().invoke(app, command, catch_exceptions=False)


def test_a_series_gives_a_trajectory_and_a_result(place, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(place / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    done = run(tmp_path, described(place), "--markdown")
    assert done.exit_code == 0, done.output
    out = tmp_path / "out"
    found = pd.read_parquet(out / "trajectory.parquet")
    assert list(found.columns) == list(COLUMNS)
    assert found["model"].tolist() == ["local"] * 3 + ["hub"] * 2
    assert found["tokens"].tolist() == [100, 200, 400, 100, 200]  # steps of the hub's are half as large
    gap = read_gap(out)
    assert gap.reference == "local step-4"
    assert gap.models == ["local step-4", "local step-1", "local step-2", "hub step-2", "hub step-4"]
    assert open_run(out / "hub-step-2").record.checkpoint.name == "org/hub@step1"
    assert open_run(out / "hub-step-2").record.identity.dtype == "bfloat16"
    labels = read_labels(out / "labels")
    hits, others = labels.repeated & labels.scored, ~labels.repeated & labels.scored
    for row in (SimpleNamespace(**{str(k): v for k, v in each.items()}) for each in found.to_dict("records")):
        logprob = read_logprobs(open_run(out / f"{row.model}-step-{row.step}"))[0]
        assert (row.n_ar_hits, row.n_other) == (hits.sum(), others.sum())
        assert row.nll_ar_hits == pytest.approx(-logprob[hits].mean(dtype=np.float64), abs=1e-9)
        assert row.nll_other == pytest.approx(-logprob[others].mean(dtype=np.float64), abs=1e-9)
    text = (out / "trajectory.md").read_text()
    assert done.output.strip() == text.strip()
    lines = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")][2:]
    assert [(line[0].strip("| "), "—" in line[3:]) for line in lines] == [("100", False), ("200", False), ("400", True)]
    assert "repeated bigrams" in text
    assert (out / "figures" / "recall_along_training.svg").read_text().startswith("<?xml")
    before = (out / "gap.json").stat().st_mtime_ns, (out / "local-step-1" / "run.json").read_bytes()
    assert json.loads(run(tmp_path, described(place), "--json").output)[0]["step"] == 1
    assert (out / "local-step-1" / "run.json").read_bytes() == before[1]  # nothing is scored again


def test_the_figure_of_a_text_without_hits(tmp_path) -> None:
    rows = [(model, step, step, 0, np.nan, 8, 2.0 / step) for model in ("a", "b") for step in (1, 2)]
    figure = recall_along_training(
        pd.DataFrame(rows, columns=list(COLUMNS)),
        ["a", "b"],
        "a",
        cast(Gap, SimpleNamespace(hits="hits", unit="token")),
    )
    assert [np.size(line.get_xdata()) for line in figure.axes[0].lines] == [0, 0]
    assert [np.size(line.get_xdata()) for line in figure.axes[1].lines] == [2, 2]
    assert save(figure, tmp_path, "figure").is_file()


def test_a_copy_of_a_checkpoint_keeps_its_row(place, tmp_path) -> None:
    """A step without progress has the weights of another."""
    for step in (1, 2):
        shutil.copytree(place / "local" / "step-1", tmp_path / "c" / f"{step}")
    series = {"m": {"checkpoint": str(tmp_path / "c" / "{step}"), "steps": [1, 2], "tokens_per_step": 1}}
    assert run(tmp_path, described(place, reference="m", series=series)).exit_code == 0
    assert read_gap(tmp_path / "out").models == ["m step-2", "m step-1"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": "x"}, "reference: 'x' is not a series; series are local, hub"),
        ({"evaluation": {}}, "evaluation: data: missing"),
        ({"series": {"a/b": {}}}, "series: 'a/b': the name becomes a folder"),
        ({"series": {"local": {"tokens_per_step": 0}}}, "series: local: tokens_per_step: expected 1 to"),
        ({"series": {"local": {"tokens_per_step": 1}}}, "series: local: expected either checkpoint and steps, or"),
        (
            {"series": {"local": {"tokens_per_step": 1, "checkpoint": "a", "steps": [1]}}},
            r"series: local: checkpoint: expected \{step\} in it",
        ),
        (
            {"series": {"local": {"tokens_per_step": 1, "checkpoint": "a{step}", "steps": [1, 1]}}},
            "series: local: steps: expected different numbers from 0, found 1, 1",
        ),
        (
            {"series": {"local": {"tokens_per_step": 1, "checkpoints": {"x": "a"}}}},
            "series: local: checkpoints: expected STEP: CHECKPOINT lines, found 'x': 'a'",
        ),
        ({"series": {"local": {"tokens_per_step": 1, "stride": 2}}}, "series: local: unknown key stride; known are"),
    ],
)
def test_refusals_are_one_line(place, tmp_path, changes, message: str) -> None:
    (tmp_path / "series.yaml").write_text(yaml.safe_dump(described(place, **changes), sort_keys=False))
    with pytest.raises(ArgapError, match=rf"series\.yaml: .*{message}") as refused:
        load_series(tmp_path / "series.yaml")
    assert "\n" not in str(refused.value)


def test_a_checkpoint_that_is_not_there_is_refused_before_any_is_scored(place, tmp_path) -> None:
    series = {"m": {"checkpoint": f"{place}/local/step-{{step}}", "steps": [1, 3], "tokens_per_step": 1}}
    with pytest.raises(ArgapError, match="step-3: no such folder"):
        run(tmp_path, described(place, reference="m", series=series))
    assert not (tmp_path / "out").exists()
