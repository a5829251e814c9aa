"""The folder of a sweep's results.

``sweep.json`` records the grid. ``runs/KEY.json`` is one finished run each, written atomically; a run whose file exists
is never trained again. ``unfinished`` has the runs in progress (`argap.synthetics.training.unfinished`).
``runs.parquet`` is the table of all finished runs, one row each, rebuilt from ``runs``.
"""

from pathlib import Path
from typing import Any

import msgspec
import pandas as pd

from argap.errors import ArgapError, FormatError, MismatchError
from argap.files.atomic import read_json, write_json
from argap.files.configs import build
from argap.files.parquet import read_frame, write_parquet
from argap.files.record import to_record
from argap.synthetics.sweeps.sweep import Sweep
from argap.synthetics.training.config import RunConfig
from argap.synthetics.training.loop import RunResult
from argap.synthetics.training.unfinished import discard

UNFINISHED = "unfinished"
COLUMNS = {
    "name": "object",
    "task": "object",
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
"""Columns of ``runs.parquet`` and their dtypes; ``pairs`` is text, several values separated by commas."""


def run_path(out: Path, config: RunConfig) -> Path:
    """Return the file of a run's result."""
    return out / "runs" / f"{config.key}.json"


def write_run(out: Path, result: RunResult) -> None:
    """Write one finished run and delete its files in ``unfinished``."""
    write_json(run_path(out, result.config), result.as_json())
    discard(out / UNFINISHED, result.config)


def read_run(out: Path, config: RunConfig) -> RunResult:
    """Read a finished run. Raises `FormatError` if its file is not one, or has another configuration."""
    path, remedy = run_path(out, config), "remove it, and the sweep trains it again"
    values = read_json(path)
    result = to_record(path, values, RunResult, remedy=remedy)
    if values["config"] != config.as_json():
        raise FormatError(f"{path}: its configuration is another run's; {remedy}")
    return result


def read_sweep(out: Path) -> Sweep:
    """Read the sweep of a folder. Raises `FormatError` if its ``sweep.json`` is missing or malformed."""
    path = out / "sweep.json"
    grid = read_json(path).get("sweep")
    try:
        if not isinstance(grid, dict):
            raise ArgapError(f"expected a grid under the key sweep, found {grid!r}")
        return build(Sweep, grid)
    except ArgapError as error:
        again = f"remove it, and `argap synthetics sweep CONFIG.yaml --out {out}` writes it anew"
        raise FormatError(f"{path}: {error}; {again}") from None


def check_folder(sweep: Sweep, out: Path) -> None:
    """Raise `MismatchError` if the folder belongs to another sweep, one that shares no run with this one."""
    path = out / "sweep.json"
    if not path.exists():
        return
    theirs = {config.key for config in read_sweep(out).configs()}
    if theirs.isdisjoint(config.key for config in sweep.configs()):
        raise MismatchError(
            f"{out}: {path.name} is from another sweep, none of whose {len(theirs)} runs belongs to this one; choose "
            "another `out`, or remove that file if its table and figures may be overwritten"
        )


def collect_runs(sweep: Sweep, out: Path) -> pd.DataFrame:
    """Write ``runs.parquet`` from the finished runs of the sweep, and return it."""
    labels = sweep.task_labels()
    finished = [config for config in sweep.configs() if run_path(out, config).exists()]
    rows = [_row(read_run(out, config), labels[config.key]) for config in finished]
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
    write_parquet(out / "runs.parquet", frame)
    return frame


def read_runs(out: Path) -> pd.DataFrame:
    """Read the table of a sweep's finished runs, from the files of ``runs`` if that folder exists.

    Otherwise reads ``runs.parquet``. The sweep may still be running or have been killed. Raises `ArgapError` if no run
    is finished, and `FormatError` if a file is corrupt.
    """
    path, sweep = out / "runs.parquet", f"`argap synthetics sweep CONFIG.yaml --out {out}`"
    if (out / "runs").is_dir():
        runs = collect_runs(read_sweep(out), out)
    elif path.is_file():
        runs = read_frame(path)
        if missing := [column for column in COLUMNS if column not in runs]:
            lacks = f"the column {missing[0]} is missing; `argap synthetics sweep` writes one"
            raise FormatError(f"{path}: not a table of runs, {lacks}")
    else:
        raise ArgapError(f"{path}: no such file; {sweep} writes it")
    if runs.empty:
        raise ArgapError(f"{out}: no run of the sweep is finished; {sweep} trains them")
    return runs


def _row(result: RunResult, task: str) -> dict[str, Any]:
    config = result.config
    pairs = ",".join(map(str, config.pairs))
    own = {"task": task, "pairs": pairs, "epochs": result.steps / config.steps_per_epoch, "key": config.key}
    return {**vars(config), **msgspec.structs.asdict(result), **own}
