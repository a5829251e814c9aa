"""``argap synthetics generate``, ``train``, ``sweep`` and ``plot`` from the command line."""

import json

import numpy as np
from typer.testing import CliRunner

from argap.cli import app
from argap.synthetics.tasks.mqar import MqarConfig, build

SMALL = [
    *("--set", "vocab_size=32", "--set", "train_examples=32", "--set", "validation_examples=8"),
    *("--set", "test_examples=8", "--set", "batch_size=16", "--set", "epochs=1"),
]


def call(*arguments):
    result = CliRunner().invoke(app, ["synthetics", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_generate_writes_what_build_gives(tmp_path):
    path = tmp_path / "data.npz"
    call("generate", "--out", path, "--examples", 5, "--length", 32, "--vocab-size", 64, "--seed", 3)
    made = build(MqarConfig(examples=5, length=32, pairs=2, vocab_size=64), seed=3)
    with np.load(path) as written:
        assert sorted(written) == ["distance", "inputs", "labels"]
        np.testing.assert_array_equal(written["inputs"], made.inputs)
        np.testing.assert_array_equal(written["labels"], made.labels)
        np.testing.assert_array_equal(written["distance"], made.slices["distance"])


def test_train_tells_each_learning_rate_and_writes_its_run(tmp_path):
    flags = ["--width", 8, "--length", 16, "--pairs", 2, "--lr", 1e-3, "--lr", 1e-2, "--device", "cpu"]
    printed = call("train", "argap.models.gla:GLA", *flags, *SMALL, "--out", tmp_path, "--json")
    results = json.loads(printed)
    assert [result["config"]["lr"] for result in results] == [1e-3, 1e-2]
    written = [json.loads(path.read_text()) for path in (tmp_path / "runs").iterdir()]
    assert sorted(w["accuracy"] for w in written) == sorted(r["accuracy"] for r in results)


def test_a_sweep_with_no_time_left_writes_what_is_there_and_is_drawn(tmp_path):
    config = tmp_path / "tiny.yaml"
    config.write_text(
        "members: {attention: }\nlengths: [16]\nwidths: [8]\npairs: [2]\nlrs: [1.0e-3]\n"
        "run: {vocab_size: 32, train_examples: 32, validation_examples: 8, test_examples: 8, "
        "batch_size: 16, epochs: 1}\n"
    )
    out = tmp_path / "out"
    assert "at most 2 steps" in call("sweep", config, "--out", out, "--dry-run")
    assert "0 of 1 runs" in call("sweep", config, "--out", out, "--device", "cpu", "--time-limit", 0)
    assert "1 of 1 runs" in call("sweep", config, "--out", out, "--device", "cpu", "--time-limit", 100)
    assert call("sweep", config, "--out", out, "--dry-run").strip().endswith("finished")
    assert "| 16 | 2 | attention |" in call("plot", out)
    assert (out / "accuracy.svg").is_file()
