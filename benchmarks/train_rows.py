"""Run the processes behind the rows of ``benchmarks/train.py``: one by one, all ready before any is timed, or pairs."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import combinations, product
from pathlib import Path
from typing import Any, NamedTuple

from measured import DEMO, seconds_since_start
from safetensors.torch import load_file

from argap.files.atomic import read_json, write_json
from argap.train.log import read_steps

SCRIPT = Path(__file__).with_name("train.py")
LIMITS = {"fla": 240, "native": 150, "whole": 100, "parity": 300}
"""Seconds that a row may take, by its type."""
PREPARING, TIMING = 0.75, 60
"""With ``--lengths``: the share of ``--limit`` in which the models must be ready, and seconds that a row may take."""

SEEDS = "attention", "gated_delta_net"
SEED_SIZES = {
    "cpu": {"hidden_size": 64, "num_layers": 2, "seq_len": 128, "batch_size": 8, "steps": 40},
    "cuda": {"hidden_size": 256, "num_layers": 6, "seq_len": 1024, "batch_size": 64, "steps": 300},
    "check": {"hidden_size": 16, "num_layers": 1, "seq_len": 128, "batch_size": 32, "steps": 20},
}


class RowProcess:
    """The process of a row, which waits for a line on its input before it measures a row."""

    def __init__(self, name: str, lengths: list[int], folder: Path, cpu_check: bool) -> None:
        self.name, self.out = name, folder / f"{name}.json"
        command = [sys.executable, str(SCRIPT), "--row", name, "--out", str(self.out)]
        command += ["--lengths", ",".join(map(str, lengths))] if lengths else []
        with open(self.out.with_suffix(".log"), "w") as log:
            self.process = subprocess.Popen(
                [*command, *(["--cpu-check"] if cpu_check else [])],
                text=True,
                start_new_session=True,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
            )

    def figures(self, length: int | None, seconds: float) -> dict[str, Any]:
        """Return the figures of the row, or of one of its lengths, or the reason why there are none."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write("go\n")
            self.process.stdin.flush()
        return self.written(path_of(self.out, length), seconds)

    def written(self, path: Path, seconds: float) -> dict[str, Any]:
        """Return what the process writes to ``path`` within ``seconds``; end the process if it writes nothing."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None and not path.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        if path.exists():
            return read_json(path)
        if self.process.poll() is None:
            self.end()
            return {"error": f"not finished within {seconds:.0f} s"}
        lines = self.out.with_suffix(".log").read_text().strip().splitlines()
        return {"error": (lines or [f"exit status {self.process.returncode}"])[-1]}

    def end(self) -> None:
        """Kill the process, if it still runs, and those of its compiler."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def path_of(out: Path, length: int | None) -> Path:
    """Return the file for the figures of a row, or of one of its lengths."""
    return out if length is None else out.with_suffix(f".{length}.json")


def one_by_one(names: list[str], folder: Path, cpu_check: bool, limit: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of each row. The process of the next row starts while one is measured."""
    with ExitStack() as started:
        following: RowProcess | None = None
        for name, after in zip(names, [*names[1:], None], strict=True):
            row = following or RowProcess(name, [], folder, cpu_check)
            started.callback(row.end)
            following = RowProcess(after, [], folder, cpu_check) if after else None
            if following:
                started.callback(following.end)
            yield name, row.figures(None, LIMITS["parity" if name.startswith("parity") else name.split()[1]])
            row.end()
            if after and seconds_since_start() > limit:
                print(f"not run, after {limit:.0f} s: {', '.join(names[names.index(after) :])}", flush=True)
                return


def by_length(
    missing: dict[str, list[int]], folder: Path, cpu_check: bool, limit: float
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the figures of each row at each of its lengths, once all processes are ready to be timed."""
    with ExitStack() as started:
        rows = [RowProcess(name, lengths, folder, cpu_check) for name, lengths in missing.items() if lengths]
        for row in rows:
            started.callback(row.end)
        for row in list(rows):
            ready = row.written(row.out, max(1.0, PREPARING * limit - seconds_since_start()))
            if "error" in ready:
                rows.remove(row)
                yield row.name, ready
        for length in sorted(set().union(*missing.values())):
            for row in rows:
                if length in missing[row.name] and seconds_since_start() < limit:
                    yield row.name, row.figures(length, TIMING)
        if seconds_since_start() > limit:
            print(f"stopped after {limit:.0f} s", flush=True)


class Training(NamedTuple):
    """One training of ``--seeds``."""

    threads: int
    deterministic: bool
    turn: int

    def __str__(self) -> str:
        """Return the setting, without the turn."""
        return f"{'deterministic' if self.deterministic else 'default'}, {self.threads} threads"


def seeds(architectures: list[str], device: str, folder: Path, check: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield how far apart two trainings of an architecture are that differ in one thing or in none."""
    sizes, threads = SEED_SIZES["check" if check else device], (1, 2) if device == "cpu" else (1,)
    shape = "width {hidden_size}, {num_layers} layers, B {batch_size}, T {seq_len}, {steps} steps".format(**sizes)
    several = [Training(*each) for each in product(threads, (False, True), (1, 2))]
    for architecture in architectures:
        runs = {}
        for each in several:
            runs[each] = folder / f"{architecture}-{each}-{each.turn}"
            config = {
                **sizes,
                "architecture": architecture,
                "lr": 2e-3,
                "deterministic": each.deterministic,
                "tokenizer": str(DEMO / "tokenizer"),
                "data": ["stdlib:train"],
            }
            write_json(folder / "train.yaml", config, seal=False)  # JSON is YAML
            command = [sys.executable, "-m", "argap", "train", str(folder / "train.yaml"), "--out", str(runs[each])]
            command += ["--device", device, "--tokens", str(folder / "tokens")]
            subprocess.run(
                command, check=True, stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": str(each.threads)}
            )
        for one, other in combinations(runs, 2):
            if one.turn == 1 and sum(mine != its for mine, its in zip(one, other, strict=True)) == 1:
                pair = {"shape": shape, "device": device, "pair": [str(one), str(other)]}
                yield f"seeds {architecture}", pair | distance(runs[one], runs[other])


def distance(one: Path, other: Path) -> dict[str, Any]:
    """Return how far apart two trained models are; losses in nats."""
    ours, theirs = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    lines = [read_steps(run / "log.jsonl") for run in (one, other)]
    apart = [abs(a.loss - b.loss) for a, b in zip(*lines, strict=True)]
    ends = [read_json(run / "train.json")["finished"] for run in (one, other)]
    return {
        "equal": all(bool((ours[name] == theirs[name]).all()) for name in ours),
        "largest_weight_difference": max(float((ours[name] - theirs[name]).abs().max()) for name in ours),
        "first_line_apart": next((line.step for line, loss in zip(lines[0], apart, strict=True) if loss), None),
        "largest_loss_difference": max(apart),
        "losses": [end["loss"] for end in ends],
        "tokens_per_s": [round(end["tokens_per_s"]) for end in ends],
    }
