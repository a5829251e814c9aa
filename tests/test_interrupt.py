"""Ctrl-C while scoring: one line, exit code 130, and finished shards stay."""

import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent

SLOWLY = """
import signal, sys, time
from argap import batches, runs
from argap.cli import main
runs.SHARD_TOKENS = 512
score, started = batches.Batches.score, []
def score_slowly(self, windows, advance):
    started.append(windows)
    if len(started) > 1:
        time.sleep(60)
    return score(self, windows, advance)
batches.Batches.score = score_slowly
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
main()
"""


def test_an_interrupted_score_keeps_its_shards(tmp_path):
    command = [sys.executable, "-c", SLOWLY, "score", str(ROOT / "argap/demo/checkpoints/base_conv")]
    command += ["--ref", "attention", "--seq-len", "256", "--limit-tokens", "2048", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    shard = tmp_path / "out" / "attention" / "tokens" / "part-00000.parquet"
    for _ in range(600):
        if shard.exists() or process.poll() is not None:
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    try:
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert out == ""
    assert err.strip().endswith("interrupted; finished shards are kept, the same command resumes there")
    assert "Traceback" not in err
    assert shard.exists()
