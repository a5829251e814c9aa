"""torchrun: a rank is killed; the others end within a minute with one line, and the rerun ends the training."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from argap.records import read_record
from argap.train.records import TrainRecord

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
