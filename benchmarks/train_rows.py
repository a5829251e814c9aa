"""Run the processes behind the rows of ``benchmarks/train.py``: one by one, or all ready before any is timed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from measured import seconds_since_start

from argap.files.atomic import read_json

SCRIPT = Path(__file__).with_name("train.py")
LIMITS = {"fla": 240, "native": 150, "whole": 100, "parity": 300}
"""Seconds that a row may take, by its type."""
PREPARING, TIMING = 0.75, 60
"""With ``--lengths``: the share of ``--limit`` in which the models must be ready, and seconds that a row may take."""


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
