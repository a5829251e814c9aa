"""The folder of a sweep's results.

``sweep.json`` records the grid. ``runs.jsonl`` is the table of the finished runs, one line each. While the sweep goes
on, a run that ends first writes a file of its own, ``runs/KEY.json``, so that several processes can work side by side
and a kill loses none; once they have ended, `collect_runs` moves these runs into the table. A finished run, in the
table or a file, is never trained again. ``unfinished`` has the runs in progress
(`argap.synthetics.training.unfinished`).
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import pandas as pd

from argap.errors import ArgapError, FormatError, MismatchError
from argap.files.atomic import read_json, read_json_lines, write_json, write_json_lines
from argap.files.configs import build
from argap.files.record import to_record
from argap.files.regular import found_in, is_there
from argap.files.remedies import remedy_for
from argap.synthetics.sweeps.sweep import Sweep
from argap.synthetics.training.config import RunConfig
from argap.synthetics.training.loop import RunResult
from argap.synthetics.training.unfinished import discard

TABLE = "runs.jsonl"
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
"""Columns of `read_runs` and their dtypes; ``pairs`` is text, several values separated by commas."""


def run_path(out: Path, config: RunConfig) -> Path:
    """Return the file of a run that has ended and is not in the table yet."""
    return out / "runs" / f"{config.key}.json"


def write_run(out: Path, result: RunResult) -> None:
    """Write one finished run and delete its files in ``unfinished``."""
    write_json(run_path(out, result.config), result.as_json())
    discard(out / UNFINISHED, result.config)


def read_run(path: Path) -> RunResult:
    """Read the file of a run. Raises `FormatError` if it is not one, or is that of another configuration."""
    result = to_record(path, read_json(path), RunResult)
    if result.config.key != path.stem:
        raise FormatError(f"{path}: its configuration is another run's{remedy_for(path)}")
    return result


def read_results(out: Path) -> dict[str, RunResult]:
    """Read the finished runs, by key: those of the table, in its order, then those with a file of their own.

    Raises `FormatError` for a line that is damaged or not a run, and like `read_run`.
    """
    path, found = out / TABLE, {}
    if is_there(path):
        for number, values in enumerate(read_json_lines(path), 1):
            result = to_record(path, values, RunResult, part=f"line {number}")
            found[result.config.key] = result
    return found | {path.stem: read_run(path) for path in _files(out)}


def _files(out: Path) -> list[Path]:
    return found_in(out / "runs", "*.json")


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
    if not is_there(path):
        return
    theirs = {config.key for config in read_sweep(out).configs()}
    if theirs.isdisjoint(config.key for config in sweep.configs()):
        raise MismatchError(
            f"{out}: {path.name} is from another sweep, none of whose {len(theirs)} runs belongs to this one; choose "
            "another `out`, or remove that file if its table and figures may be overwritten"
        )


def collect_runs(sweep: Sweep, out: Path) -> pd.DataFrame:
    """Move finished runs with files of their own into the table; return the sweep's runs as `read_runs` does.

    Lines have the order of the sweep; runs of an earlier grid come last. No process may be training in the folder.
    """
    files, found = _files(out), read_results(out)
    of_sweep = {config.key: found[config.key] for config in sweep.configs() if config.key in found}
    write_json_lines(out / TABLE, [result.as_json() for result in (of_sweep | found).values()])
    for path in files:
        path.unlink()
    with suppress(OSError):  # absent, or not empty
        (out / "runs").rmdir()
    return _frame(sweep, found)


def read_runs(out: Path) -> pd.DataFrame:
    """Read the sweep's finished runs, one row each with `COLUMNS`, also while the sweep goes on or after a kill.

    Raises `ArgapError` if there are none or all are another sweep's, and `FormatError` if a file is damaged.
    """
    found = read_results(out)
    again = f"`argap synthetics sweep CONFIG.yaml --out {out}` trains them"
    if not found:
        raise ArgapError(f"{out / TABLE}: {'empty' if (out / TABLE).is_file() else 'no such file'}; {again}")
    runs = _frame(read_sweep(out), found)
    if runs.empty:
        raise MismatchError(f"{out / TABLE}: none of its {len(found)} runs belongs to the grid of sweep.json; {again}")
    return runs


def _frame(sweep: Sweep, found: Mapping[str, RunResult]) -> pd.DataFrame:
    labels = sweep.task_labels()
    rows = [_row(found[config.key], labels[config.key]) for config in sweep.configs() if config.key in found]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(COLUMNS)


def _row(result: RunResult, task: str) -> dict[str, object]:
    config = result.config
    pairs = ",".join(map(str, config.pairs))
    own = {"task": task, "pairs": pairs, "epochs": result.steps / config.steps_per_epoch, "key": config.key}
    return {**vars(config), **msgspec.structs.asdict(result), **own}
