"""The folder of a sweep's results.

``sweep.json`` says what was asked for, ``runs/KEY.json`` holds one finished run each, whole or absent, and
``runs.parquet`` all of them, one row a run, made of the files of ``runs``. A run that is there is never trained again.
"""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pandas as pd

from argap.atomic import read_json, replacing, write_json
from argap.configuration import build
from argap.errors import ArgapError, FormatError, MismatchError
from argap.synthetics.protocol import RunConfig
from argap.synthetics.sweep import Sweep
from argap.synthetics.training import RunResult


def run_path(out: Path, config: RunConfig) -> Path:
    """Where the result of a run lies."""
    return out / "runs" / f"{config.key}.json"


def write_run(out: Path, result: RunResult) -> None:
    """Write one finished run."""
    write_json(run_path(out, result.config), result.as_json())


def read_run(out: Path, config: RunConfig) -> dict[str, Any]:
    """The record of a finished run. Raises `FormatError` where the file is not one."""
    path = run_path(out, config)
    record = read_json(path)
    missing = [f.name for f in fields(RunResult) if f.name not in record]
    if missing or record["config"] != config.as_json():
        found = f"no {missing[0]} in it" if missing else "its config is another run's"
        raise FormatError(f"{path}: no finished run ({found}); remove it, and the sweep trains it again")
    return record


def read_sweep(out: Path) -> Sweep:
    """The sweep that a folder is of. Raises `FormatError` where its ``sweep.json`` is missing or is none."""
    path = out / "sweep.json"
    grid = read_json(path).get("sweep")
    try:
        if not isinstance(grid, dict):
            raise ArgapError(f"no grid under the key sweep, found {grid!r}")
        return build(Sweep, grid)
    except ArgapError as error:
        again = f"remove it, and `argap mqar sweep CONFIG.yaml --out {out}` writes it anew"
        raise FormatError(f"{path}: {error}; {again}") from None


def check_folder(sweep: Sweep, out: Path) -> None:
    """Raises `MismatchError` where the folder is another sweep's: one of which this one has no run. A file that was
    changed and keeps a run may go on."""
    path = out / "sweep.json"
    if not path.exists():
        return
    theirs = {config.key for config in read_sweep(out).configs()}
    if theirs.isdisjoint(config.key for config in sweep.configs()):
        raise MismatchError(
            f"{out}: {path.name} is another sweep's, none of its {len(theirs)} runs is one of this; choose another "
            "--out, or remove that file if its table and figures may be lost"
        )


def collect_runs(sweep: Sweep, out: Path) -> pd.DataFrame:
    """Write ``runs.parquet`` from the finished runs of the sweep, and return it."""
    labels = sweep.task_labels()
    finished = [config for config in sweep.configs() if run_path(out, config).exists()]
    rows = [_row(config, read_run(out, config)) | {"task": labels[config.key]} for config in finished]
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)
    with replacing(out / "runs.parquet") as temporary:
        frame.to_parquet(temporary, index=False, compression="zstd")
    return frame


def read_runs(out: Path) -> pd.DataFrame:
    """The finished runs of a sweep's folder: those of ``runs``, while the sweep goes on or after a kill too, or
    where that is not there those of ``runs.parquet``.

    Raises `ArgapError` where there is none, and `FormatError` where a file of them is broken.
    """
    path, sweep = out / "runs.parquet", f"`argap mqar sweep CONFIG.yaml --out {out}`"
    if (out / "runs").is_dir():
        runs = collect_runs(read_sweep(out), out)
    elif path.is_file():
        runs = _read_parquet(path)
    else:
        raise ArgapError(f"{path}: no such file; {sweep} writes it")
    if runs.empty:
        raise ArgapError(f"{out}: none of the sweep's runs is finished; {sweep} trains them")
    return runs


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        runs = pd.read_parquet(path)
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: not a whole Parquet file ({str(error).splitlines()[0]})") from error
    runs = runs if "task" in runs else runs.assign(task="mqar")  # written before there were others
    if missing := [column for column in COLUMNS if column not in runs]:
        raise FormatError(f"{path}: no table of runs, {missing[0]} is missing; `argap mqar sweep` writes one")
    return runs


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
"""Of ``runs.parquet``; ``pairs`` is text, with a comma between several."""


def _row(config: RunConfig, record: dict[str, Any]) -> dict[str, Any]:
    pairs = ",".join(map(str, config.pairs))
    own = {"pairs": pairs, "epochs": record["steps"] / config.steps_an_epoch}
    return {**record["config"], **record, **own, "key": config.key}


def as_json(sweep: Sweep) -> dict[str, Any]:
    """All fields as JSON has them."""
    return {**vars(sweep), "members": dict(sweep.members), "run": dict(sweep.run)}
