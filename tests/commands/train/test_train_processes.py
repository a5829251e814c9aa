"""torchrun: two processes train the model of one up to rounding; if one is killed the others end, a rerun goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from argap.records import as_json, read_record
from argap.train import load_config, read_log, train
from argap.train.records import TrainRecord
from tests.builders.processes import COMMAND, said, torchrun

LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

LINE = "argap: another process of torchrun has ended; run the same command again to resume"


def ranks(launcher: int) -> dict[int, int]:
    """The process of each rank below ``launcher``."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            variables = dict(v.split("=", 1) for v in (folder / "environ").read_text().split("\0") if "=" in v)
        except (OSError, ValueError, IndexError):
            continue
        if parent == launcher and "RANK" in variables:
            found[int(variables["RANK"])] = int(folder.name)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the processes in /proc")
@pytest.mark.parametrize("rank", [0, 1])
def test_the_ranks_beside_a_killed_one_end_and_a_rerun_continues(toy_values: dict, tmp_path: Path, rank: int) -> None:
    values = toy_values | {"steps": 1000, "log_every": 100, "checkpoint_every": 20}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    command = [*LAUNCHER, "-m", "argap", "train", "run.yaml", "--out", "out", "--device", "cpu"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with open(tmp_path / "stderr", "w") as stderr:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=stderr, stdout=subprocess.DEVNULL)
        while not list((tmp_path / "out" / "checkpoints").glob("step-*")) and process.poll() is None:
            time.sleep(0.05)
        os.kill(ranks(process.pid)[rank], signal.SIGKILL)
        assert process.wait(240) != 0
    said = (tmp_path / "stderr").read_text()
    lines = [line for line in said.splitlines() if line.startswith("argap: ")]
    assert lines in ([], [LINE])  # none where the SIGTERM of torchrun came before the lost connection
    assert not list(tmp_path.glob("argap-traceback-*"))
    done = sorted(int(path.name.removeprefix("step-")) for path in (tmp_path / "out" / "checkpoints").glob("step-*"))
    rerun = [sys.executable, "-m", "argap", *command[command.index("train") :]]
    again = subprocess.run(rerun, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=400)
    assert again.returncode == 0, again.stderr
    assert f"resumed from step {done[-1]:,}" in again.stderr
    record = read_record(tmp_path / "out" / "train.json", TrainRecord)
    assert record.finished is not None
    assert record.finished.steps == 1000


def test_two_processes_train_the_same_model_as_one(toy_values: dict, tmp_path: Path) -> None:
    values = toy_values | {"steps": 12, "micro_batch_size": 2, "eval_data": [*toy_values["data"]], "eval_every": 10}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    train(load_config(None, values), tmp_path / "one", device="cpu")
    codes = torchrun(COMMAND, "train", "run.yaml", "--out", "two", "--device", "cpu", folder=tmp_path)
    out, err = said(tmp_path)
    assert codes == [0, 0], err
    assert out.count("loss") == 1  # only the first process prints
    one, two = read_log(tmp_path / "one" / "log.jsonl"), read_log(tmp_path / "two" / "log.jsonl")
    for mine, other in zip(one, two, strict=True):
        expected, found = ({**as_json(line), "tokens_per_s": 0.0} for line in (mine, other))
        assert found == pytest.approx(expected, rel=1e-4)
    a, b = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, weights in a.items():
        torch.testing.assert_close(b[name], weights, rtol=1e-3, atol=1e-4)
