"""Two processes under torchrun write the same files as one."""

import subprocess
import sys
from pathlib import Path

from argap.records import EvaluationSpec
from argap.results.pipeline import score_models
from argap.scoring.config import ScoreConfig
from argap.tokens import runs

ROOT = Path(__file__).parents[2]
MODEL = str(ROOT / "argap" / "demo" / "checkpoints" / "base_conv")

IN_SMALL_SHARDS = """
from argap.tokens import runs
from argap.cli import main
runs.SHARD_TOKENS = 512
main()
"""


def test_two_processes_write_the_same_files_as_one(tmp_path, monkeypatch):
    (tmp_path / "program.py").write_text(IN_SMALL_SHARDS)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "program.py", "score", MODEL, "--ref", "attention", "--device", "cpu"]
    command += ["--seq-len", "256", "--limit-tokens", "1900", "--out", "two", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"fingerprint"') == 1  # only the main process prints

    monkeypatch.setattr(runs, "SHARD_TOKENS", 512)
    score_models(
        [MODEL], "attention", tmp_path / "one", ScoreConfig(text=EvaluationSpec(seq_len=256, limit_tokens=1900))
    )
    for model in ("attention", "base_conv"):
        one, two = (
            {p.name: p.read_bytes() for p in (tmp_path / k / model / "tokens").iterdir()} for k in ("one", "two")
        )
        assert len(one) > 2
        assert one == two
