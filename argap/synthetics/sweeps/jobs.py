"""The jobs of a sweep, and the function that runs what is left of a sweep on an engine (`argap.runtime.jobs`).

Jobs leave each result as a file; then the files are collected in one table (`argap.synthetics.sweeps.store`).
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import torch

from argap.files.atomic import write_json
from argap.files.lock import one_writer
from argap.files.regular import is_there
from argap.files.resumable import environment
from argap.runtime.jobs import Engine, Stop
from argap.runtime.progress import say
from argap.synthetics.sweeps.store import (
    UNFINISHED,
    check_folder,
    collect_runs,
    read_results,
    read_run,
    run_path,
    write_run,
)
from argap.synthetics.sweeps.sweep import Sweep
from argap.synthetics.training.config import RunConfig
from argap.synthetics.training.loop import RunResult, train_group


@dataclass(frozen=True)
class Job:
    """Runs of one group that train side by side: the whole group, or part of a large one."""

    runs: tuple[RunConfig, ...]
    group: tuple[RunConfig, ...]
    """All runs of the group: another job may train some of them."""
    first_ends: bool
    """End the group as soon as its first run solves the task."""
    folder: Path
    """Folder of the sweep's results."""
    compiled: bool = False
    """Train compiled layers."""

    def unfinished(self) -> list[RunConfig]:
        """Return the runs without a result, which are still to be trained; none once ``first_ends`` applies."""
        if self.first_ends and any(result.stopped == "solved" for result in finished_runs(self.folder, self.group)):
            return []
        return [config for config in self.runs if not is_there(run_path(self.folder, config))]

    def is_done(self) -> bool:
        """Return whether nothing is left to train."""
        return not self.unfinished()

    def run(self, device: torch.device, stop: Stop) -> None:
        """Train the unfinished runs and write each result. Once ``stop`` returns true, runs in progress are kept."""
        configs = self.unfinished()
        if configs and not stop():
            train_group(
                configs,
                device,
                finished=lambda result: write_run(self.folder, result),
                kept=self.folder / UNFINISHED,
                first_ends=self.first_ends,
                compiled=self.compiled,
                stop=stop,
            )


def pending_jobs(sweep: Sweep, out: Path, together: int, compiled: bool = False) -> list[Job]:
    """Split the unfinished runs of a sweep into jobs of at most ``together`` runs."""
    jobs, finished = [], read_results(out)
    solved = {key for key, result in finished.items() if result.stopped == "solved"}
    for group in map(tuple, sweep.groups()):
        if sweep.first_ends and any(config.key in solved for config in group):
            continue
        left = [config for config in group if config.key not in finished]
        jobs += [
            Job(tuple(left[start : start + together]), group, sweep.first_ends, out, compiled)
            for start in range(0, len(left), together)
        ]
    return jobs


@one_writer("out")
def run_sweep(
    sweep: Sweep,
    out: Path,
    engine: Engine,
    *,
    together: int = 64,
    compiled: bool = False,
    stop: Stop = lambda: False,
    time_limit: float | None = None,
) -> pd.DataFrame:
    """Train the unfinished runs of a sweep, at most ``together`` side by side; return all finished ones.

    The table is that of `collect_runs`. ``compiled``: train compiled layers, which every job compiles anew and whose
    rounding differs.

    Runs in progress are kept when it stops or ``time_limit`` (in seconds) runs out; a kill loses a few minutes of them.
    Raises `MismatchError` if the folder belongs to another sweep.
    """
    started = time.monotonic()
    check_folder(sweep, out)
    jobs = pending_jobs(sweep, out.absolute(), together, compiled)  # before anything is written
    write_json(out / "sweep.json", {"sweep": asdict(sweep), **environment()})
    total = len(sweep.configs())
    done = total - sum(len(job.runs) for job in jobs)
    if done:
        say(f"{out}: {done} of {total} runs are finished")
    limit = float("inf") if time_limit is None else time_limit
    for job in engine(jobs, lambda: stop() or time.monotonic() - started > limit):
        results = finished_runs(out, job.runs)
        done += len(results)
        if results:
            best = max(results, key=lambda result: result.accuracy)
            say(
                f"{done} of {total}: {job.runs[0].title}: {best.accuracy:.3f} at lr {best.config.lr:.1e}, "
                f"{best.steps:,} steps, {best.seconds:.0f} s"
            )
    return collect_runs(sweep, out)


def finished_runs(out: Path, configs: Sequence[RunConfig]) -> list[RunResult]:
    """Read the results of those runs that have ended since the table was written."""
    paths = [run_path(out, config) for config in configs]
    return [read_run(path) for path in paths if is_there(path)]
