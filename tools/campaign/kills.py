"""Kill commands at random moments: run again, they must end with the undisturbed result."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from cases import Case, as_series
from forked import LONGEST, run, start, wait

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
SAME, LOST, CHANGED, TRACEBACK, LEFTOVERS = (
    "undisturbed result", "lost", "changed result", "traceback", "leftovers",
)  # fmt: skip
PATIENCE = 10 * LONGEST
"""Seconds of processor time for a rerun, on a machine that is busy with other work."""
FAILURES = (LOST, CHANGED, TRACEBACK, LEFTOVERS)

SCORE = "--data text/val.jsonl --seq-len 32 --device cpu --index index --batch-size 1"
KILLED = [
    Case(
        "index build",
        "index build text --tokenizer tokenizer --out fresh --memory 500MB",
        "text tokenizer",
        outputs="fresh/*",
    ),
    Case("index merge", "index merge index index2 --out fresh", "index index2", outputs="fresh/*"),
    Case(
        "score",
        f"score model gpt2 --ref ref {SCORE} --out fresh",
        "model gpt2 ref text index",
        outputs="fresh/gap.json fresh/*/tokens/*.parquet fresh/labels/*.parquet fresh/cells.parquet",
    ),
    Case(
        "train",
        "train train.yaml --out fresh --device cpu --set steps=60",
        "train.yaml text tokenizer",
        outputs="fresh/model.safetensors fresh/log.jsonl",
    ),
    Case("sweep", "synthetics sweep sweep.yaml --out fresh --device cpu", "sweep.yaml", outputs="fresh/runs.jsonl"),
    Case(
        "recall",
        "recall model --ref ref --tasks swde --data questions.jsonl --out fresh",
        "model ref questions.jsonl",
        outputs="fresh/recall.json fresh/*/*/samples/*",
    ),
    Case(
        "convert",
        "convert published fresh --tokenizer tokenizer",
        "published tokenizer",
        outputs="fresh/model.safetensors fresh/config.json",
    ),
    Case(
        "import",
        "import logprobs.jsonl --tokenizer tokenizer --data text/val.jsonl --packing document --index index",
        "logprobs.jsonl tokenizer text index",
        outputs="runs/import/*/*/*.parquet runs/import/*/*.parquet",
    ),
    Case(
        "label",
        "label out --index index2",
        "out index2",
        outputs="out/gap.json out/cells.parquet out/labels/*.parquet out/table.*",
    ),
    Case(
        "compare",
        "compare out/model --ref out/ref --out fresh",
        "out",
        outputs="fresh/gap.json fresh/cells.parquet fresh/table.*",
    ),
    Case(
        "segments",
        f"score other --ref ref {SCORE} --out fresh",
        "other ref text index",
        outputs="fresh/gap.json fresh/cells.parquet fresh/*/tokens/*.parquet",
    ),
    Case(
        "suite trajectory",
        "suite trajectory series.yaml --out fresh --device cpu",
        "series.yaml model ref text index",
        outputs="fresh/gap.json fresh/trajectory.parquet",
        prepare=as_series,
    ),
    Case(
        "suite",
        "suite run suite.yaml --work fresh --out result --device cpu",
        "suite.yaml text tokenizer",
        outputs="result/tiny/gap.json result/tiny/members.json result/tiny/cells.parquet",
    ),
]


@dataclass(frozen=True)
class Kill:
    """One disturbed run, and what became of it."""

    case: str
    kills: tuple[tuple[str, float], ...]
    """Signals that ended it, with the seconds since its start."""
    outcome: str
    said: str


class _Strike:
    """Sends a signal once its time has come."""

    def __init__(self, process: int, number: signal.Signals, at: float) -> None:
        self.process, self.number, self.at, self.sent = process, number, at, False

    def __call__(self, seconds: float) -> None:
        if seconds >= self.at and not self.sent:
            os.kill(self.process, self.number)
            self.sent = True


def _result(case: Case, folder: Path, stdout: str) -> dict[str, Any] | None:
    try:
        return case.result(folder, stdout)
    except (OSError, ValueError):
        return None


def disturb(case: Case, expected: dict[str, Any], length: float, rng: Random, material: Path, folder: Path) -> Kill:
    """Kill the command at a random moment of its ``length`` seconds, now and then its rerun too; then let it end."""
    case.copy(material, folder)
    kills, said = [], ""
    while not kills or (rng.random() < 0.3 and len(kills) < 4):
        number, at = rng.choice(SIGNALS), rng.uniform(0, 0.95 * length)
        process = start(case.command, folder)
        strike = _Strike(process, number, at)
        ended = wait(process, folder, strike)
        said += ended.stderr
        if not strike.sent:
            break  # it was over before
        kills.append((signal.Signals(number).name, round(at, 3)))
    ended = run(case.command, folder, PATIENCE)
    said += ended.stderr
    same = _result(case, folder, ended.stdout) == expected
    if ended.code not in (0, 1) or (ended.code and not same):  # 1: a finished index is not built again
        return Kill(case.name, tuple(kills), LOST, f"exit {ended.code}: {ended.stderr[-500:]}")
    if not same:
        return Kill(case.name, tuple(kills), CHANGED, ended.stderr[-500:])
    if "Traceback" in said or list(folder.glob("argap-traceback-*")):
        return Kill(case.name, tuple(kills), TRACEBACK, said[-2000:])
    left = [str(path.relative_to(folder)) for path in folder.rglob(".*") if path.suffix in (".tmp", ".old", ".lock")]
    if left:
        return Kill(case.name, tuple(kills), LEFTOVERS, ", ".join(left))
    return Kill(case.name, tuple(kills), SAME, "")
