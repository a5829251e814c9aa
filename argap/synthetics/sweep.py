"""A grid of runs from a YAML file, and the folder of its results.

``sweep.json`` says what was asked for, ``runs/KEY.json`` holds one finished run each, whole or absent, and
``runs.parquet`` all of them, one row a run. A run that is there is never trained again.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from argap.atomic import read_json, replacing, write_json
from argap.configuration import build, read_yaml
from argap.errors import ArgapError
from argap.synthetics.protocol import LEARNING_RATES, RunConfig, member_from
from argap.synthetics.training import RunResult


@dataclass(frozen=True)
class Sweep:
    """Every member at every width, length, number of pairs, learning rate and seed."""

    members: Mapping[str, Any]
    """Name to the keys of a `Member` that differ from its default; none: the default."""
    lengths: tuple[int, ...]
    widths: tuple[int, ...] = (64, 128, 256, 512)
    pairs: tuple[int, ...] = ()
    """Each on its own; by default a sixteenth of the length."""
    pairs_together: bool = False
    """Train and test on all of ``pairs`` at once, an equal share of the examples each."""
    lrs: tuple[float, ...] = LEARNING_RATES
    seeds: tuple[int, ...] = (0,)
    run: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of `RunConfig`, the same for all."""
    first_ends: bool = False
    """Whether a group's other learning rates and seeds end where the first solves the task, or are not begun where
    one has. It saves up to half of the time, and leaves what a figure shows, the best learning rate of each group."""
    axis: Literal["width", "pairs", "state_size"] = "width"
    """The figure's horizontal axis."""
    title: str = ""

    def __post_init__(self) -> None:
        if not self.members or not self.lengths or not self.widths or not self.lrs or not self.seeds:
            raise ArgapError("members, lengths, widths, lrs and seeds: expected at least one of each")
        own = ("name", "member", "width", "length", "pairs", "lr", "seed")
        if taken := [key for key in self.run if key in own]:
            raise ArgapError(f"run: {taken[0]} is set by members, widths, lengths, pairs, lrs or seeds")
        if self.pairs_together and not self.pairs:
            raise ArgapError("pairs_together: expected a list of pairs")

    def configs(self) -> list[RunConfig]:
        """All runs of the grid, those that train together side by side."""
        return [config for group in self.groups() for config in group]

    def groups(self) -> list[list[RunConfig]]:
        """The runs by member, width, length and pairs: alike but for learning rate and seed; narrow models first."""
        sizes = itertools.product(self.widths, self.lengths, self.members.items())
        return [
            [self._config(name, value, length, width, pairs, lr, seed) for seed in self.seeds for lr in self.lrs]
            for width, length, (name, value) in sizes
            for pairs in self._pairs(length)
        ]

    def _pairs(self, length: int) -> Iterator[tuple[int, ...]]:
        if self.pairs_together:
            yield self.pairs
            return
        for pairs in self.pairs or (max(1, length // 16),):
            yield (pairs,)

    def _config(
        self, name: str, value: Any, length: int, width: int, pairs: tuple[int, ...], lr: float, seed: int
    ) -> RunConfig:
        own = {"name": name, "width": width, "length": length, "pairs": pairs, "lr": lr, "seed": seed}
        return build(RunConfig, {**self.run, **own, "member": asdict(member_from(name, value))})


def load_sweep(path: Path) -> Sweep:
    """The sweep of a YAML file. Raises `ArgapError`, one line that begins with the file's name."""
    try:
        sweep = build(Sweep, read_yaml(path))
        sweep.configs()
    except ArgapError as error:
        raise ArgapError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None
    return sweep


def run_path(out: Path, config: RunConfig) -> Path:
    """Where the result of a run lies."""
    return out / "runs" / f"{config.key}.json"


def write_run(out: Path, result: RunResult) -> None:
    """Write one finished run."""
    write_json(run_path(out, result.config), result.as_json())


def collect_runs(sweep: Sweep, out: Path) -> pd.DataFrame:
    """Write ``runs.parquet`` from the finished runs of the sweep, and return it."""
    records = [read_json(path) for config in sweep.configs() if (path := run_path(out, config)).exists()]
    rows = [_row(record) for record in records]
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
    with replacing(out / "runs.parquet") as temporary:
        frame.to_parquet(temporary, index=False, compression="zstd")
    return frame


def read_runs(out: Path) -> pd.DataFrame:
    """``runs.parquet`` of a sweep's folder. Raises `ArgapError` where there is none."""
    path = out / "runs.parquet"
    if not path.is_file():
        raise ArgapError(f"{path}: no such file; `argap mqar sweep CONFIG.yaml --out {out}` writes it")
    return pd.read_parquet(path)


COLUMNS = {
    "name": "object",
    "length": "int64",
    "pairs": "object",
    "width": "int64",
    "lr": "float64",
    "seed": "int64",
    "accuracy": "float64",
    "validation_accuracy": "float64",
    "steps": "int64",
    "stopped": "object",
    "best_step": "int64",
    "epochs": "float64",
    "parameters": "int64",
    "flops": "int64",
    "state_size": "int64",
    "seconds": "float64",
    "group": "int64",
    "device": "object",
    "key": "object",
}
"""Of ``runs.parquet``; ``pairs`` is text, with a comma between several."""


def _row(record: dict[str, Any]) -> dict[str, Any]:
    config = build(RunConfig, record["config"])
    own = {"pairs": ",".join(map(str, config.pairs)), "epochs": record["steps"] / config.steps_an_epoch}
    return {**record["config"], **record, **own, "key": config.key}


def as_json(sweep: Sweep) -> dict[str, Any]:
    """All fields as JSON has them."""
    return {**vars(sweep), "members": dict(sweep.members), "run": dict(sweep.run)}
