"""Two processes under torchrun train the same model as one, up to rounding."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from argap.records import as_json
from argap.train import load_config, read_log, train


def test_two_processes_train_the_same_model_as_one(toy_values: dict, tmp_path: Path) -> None:
    values = toy_values | {"steps": 24, "micro_batch_size": 2, "eval_data": [*toy_values["data"]], "eval_every": 10}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    train(load_config(None, values), tmp_path / "one", device="cpu")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "argap", "train", "run.yaml", "--out", "two", "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("loss") == 1  # only the first process prints
    one, two = read_log(tmp_path / "one" / "log.jsonl"), read_log(tmp_path / "two" / "log.jsonl")
    for mine, other in zip(one, two, strict=True):
        expected, found = ({**as_json(line), "tokens_per_s": 0.0} for line in (mine, other))
        assert found == pytest.approx(expected, rel=1e-4)
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, weights in a.items():
        torch.testing.assert_close(b[name], weights, rtol=1e-3, atol=1e-4)
