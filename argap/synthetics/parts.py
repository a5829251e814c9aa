"""A sweep's runs in parts that train side by side, and the sweep as an engine trains its parts.

An engine decides where: on this machine's devices (`argap.synthetics.devices`), on a cluster
(`argap.synthetics.cluster`). What a part came to is files, so engines need tell no more than that a part has ended.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch

from argap.atomic import write_json
from argap.progress import say
from argap.runs import environment
from argap.synthetics.protocol import RunConfig
from argap.synthetics.sweep import Sweep
from argap.synthetics.sweep_folder import as_json, check_folder, collect_runs, read_run, run_path, write_run
from argap.synthetics.training import train_together


@dataclass(frozen=True)
class Part:
    """Runs of one group that train side by side: all of it, or some where it has too many."""

    runs: tuple[RunConfig, ...]
    group: tuple[RunConfig, ...]
    """All runs of the group, finished ones among them."""
    first_ends: bool
    """Whether the first of the group to solve the task ends it."""
    out: Path
    """Folder of the sweep's result."""

    def unfinished(self) -> list[RunConfig]:
        """The runs that are to be trained: none where the first to solve the task ends it, and one has."""
        if self.first_ends and any(record["stopped"] == "solved" for record in _records(self.out, self.group)):
            return []
        return [config for config in self.runs if not run_path(self.out, config).exists()]

    def train(self, device: torch.device, stop: Callable[[], bool]) -> None:
        """Train and write what is not finished. Where ``stop`` says so, the runs in progress are given up."""
        configs = self.unfinished()
        if configs and not stop():
            train_together(
                configs,
                device,
                finished=lambda result: write_run(self.out, result),
                first_ends=self.first_ends,
                stop=stop,
            )


Engine = Callable[[Sequence[Part], Callable[[], bool]], Iterator[Part]]
"""Trains the parts and yields each when it has ended. It asks its second argument whether to stop: then it begins
no more, and gives up the runs in progress."""


def parts_of(sweep: Sweep, out: Path, together: int) -> list[Part]:
    """What is not finished, in parts of at most ``together`` runs."""
    parts = []
    for group in map(tuple, sweep.groups()):
        left = Part(group, group, sweep.first_ends, out).unfinished()
        parts += [
            Part(tuple(left[start : start + together]), group, sweep.first_ends, out)
            for start in range(0, len(left), together)
        ]
    return parts


def run_sweep(
    sweep: Sweep, out: Path, engine: Engine, *, together: int = 64, stop: Callable[[], bool] = lambda: False
) -> pd.DataFrame:
    """Train what is not finished yet, at most ``together`` runs side by side; returns `collect_runs`.

    Where ``stop`` says so, and after a kill, the runs in progress are lost, and they alone. Raises `MismatchError` for
    a folder of another sweep.
    """
    check_folder(sweep, out)
    write_json(out / "sweep.json", {"sweep": as_json(sweep), **environment()})
    parts = parts_of(sweep, out, together)
    total = len(sweep.configs())
    done = total - sum(len(part.runs) for part in parts)
    if done:
        say(f"{out}: {done} of {total} runs are finished")
    for part in engine(parts, stop):
        found = _records(out, part.runs)
        done += len(found)
        if found:
            best = max(found, key=lambda record: record["accuracy"])
            say(
                f"{done} of {total}: {part.runs[0].title}: {best['accuracy']:.3f} at lr {best['config']['lr']:.1e}, "
                f"{best['steps']:,} steps, {best['seconds']:.0f} s"
            )
    return collect_runs(sweep, out)


def _records(out: Path, configs: Sequence[RunConfig]) -> list[dict]:
    return [read_run(out, config) for config in configs if run_path(out, config).exists()]
