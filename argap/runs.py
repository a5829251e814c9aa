"""A RUN: the folder of one checkpoint's log-probs, written shard by shard and resumable.

``run.json`` says what was run; ``tokens/part-*.parquet`` holds one row a token: ``window:int32,
pos:int32, token:int32, logprob:float32, top1:int32``; position 0 of every window has null logprob and
top1.
"""

import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from argap.atomic import read_json, replacing, write_json
from argap.errors import ArgapError, FormatError, MismatchError
from argap.evaluation import EvaluationSet

FORMAT = 1
SHARD_TOKENS = 2**17
SCHEMA = pa.schema(
    [
        ("window", pa.int32()),
        ("pos", pa.int32()),
        ("token", pa.int32()),
        ("logprob", pa.float32()),
        ("top1", pa.int32()),
    ]
)


@dataclass(frozen=True)
class Run:
    """A run folder and its ``run.json``."""

    folder: Path
    record: dict[str, Any]

    @property
    def model(self) -> str:
        return self.record["model"]

    @property
    def finished(self) -> bool:
        return self.record.get("finished") is not None


def folder_name(name: str) -> str:
    """A model's or task's name as the name of a folder."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-")


def shards_of(data: EvaluationSet) -> list[range]:
    """The windows of each shard: runs of whole windows of about `SHARD_TOKENS` tokens."""
    number = data.offsets[:-1] // max(SHARD_TOKENS, data.seq_len)
    starts = np.flatnonzero(np.diff(number, prepend=-1)).tolist()
    return [range(a, b) for a, b in zip(starts, [*starts[1:], data.windows], strict=True)]


def shard_path(folder: Path, shard: int) -> Path:
    return folder / "tokens" / f"part-{shard:05d}.parquet"


def begin_run(folder: Path, record: dict[str, Any], *, overwrite: bool) -> Run:
    """Start the run of ``record``, or go on with it where the folder holds a part of the very same.

    Two runs are the same where ``record["identity"]`` agrees. Raises `MismatchError` naming the first
    difference, unless ``overwrite``, which removes what is there.
    """
    path = folder / "run.json"
    if path.is_file() and not overwrite:
        old = read_json(path)
        _check_same(folder, old.get("identity", {}), record["identity"])
        if old.get("finished"):
            return Run(folder, old)
    elif folder.is_dir() and any(folder.iterdir()):
        if not overwrite:
            raise ArgapError(f"{folder}: not empty and no run; choose another --out, or --overwrite")
        shutil.rmtree(folder / "tokens", ignore_errors=True)
        path.unlink(missing_ok=True)
    write_json(path, {"format": FORMAT, **record, "finished": None})
    return Run(folder, record)


def finish_run(run: Run, result: dict[str, Any]) -> Run:
    """Record the end of a run: wall time, tokens per second, what was chosen on the way."""
    record = {"format": FORMAT, **run.record, "finished": result}
    write_json(run.folder / "run.json", record)
    return Run(run.folder, record)


def open_run(folder: str | Path) -> Run:
    """A finished run. Raises `FormatError` for a folder that is none, `ArgapError` for one cut short."""
    folder = Path(folder)
    if not (folder / "run.json").is_file():
        raise FormatError(f"{folder}: no run.json there; expected a run folder as `argap score` writes it")
    record = read_json(folder / "run.json")
    if record.get("format", 0) > FORMAT:
        raise FormatError(f"{folder}: written by a newer argap (format {record['format']}, known up to {FORMAT})")
    run = Run(folder, record)
    if not run.finished:
        raise ArgapError(f"{folder}: the run is not finished; repeat its `argap score` command to complete it")
    return run


def write_shard(path: Path, data: EvaluationSet, windows: range, logprob: np.ndarray, top1: np.ndarray) -> None:
    """Write the rows of some windows; ``logprob`` and ``top1`` have one entry a token, NaN and -1 at 0."""
    rows = slice(data.offsets[windows.start], data.offsets[windows.stop])
    context = data.position[rows] == 0
    table = pa.table(
        [
            data.window[rows],
            data.position[rows],
            data.tokens[rows],
            pa.array(logprob, mask=context),
            pa.array(top1, mask=context),
        ],
        schema=SCHEMA,
    )
    with replacing(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def whole_shard(path: Path, rows: int) -> bool:
    """Whether a finished shard lies there, so that a rerun may skip it."""
    try:
        return pq.read_metadata(path).num_rows == rows
    except (OSError, pa.ArrowException):
        return False


def read_logprobs(run: Run) -> tuple[np.ndarray, np.ndarray]:
    """All rows of a run: log-prob float32 ``[N]`` (NaN at position 0) and top-1 id int32 (-1 there).

    Raises `FormatError` naming the part that is missing or broken.
    """
    table = _read_columns(run, ["logprob", "top1"])
    logprob = table["logprob"].to_numpy().astype(np.float32, copy=False)
    top1 = table["top1"].combine_chunks().fill_null(-1).to_numpy().astype(np.int32, copy=False)
    return logprob, top1


def read_token_ids(run: Run) -> np.ndarray:
    """The token ids that a run scored, int32 ``[N]``: those of its evaluation set. Raises `FormatError`."""
    return _read_columns(run, ["token"])["token"].to_numpy()


def _read_columns(run: Run, columns: list[str]) -> pa.Table:
    parts = sorted((run.folder / "tokens").glob("part-*.parquet"))
    tables = []
    for path in parts:
        try:
            tables.append(pq.read_table(path, columns=columns, schema=SCHEMA))
        except (OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise FormatError(
                f"{path}: not a whole Parquet file ({reason}); remove it and repeat `argap score`"
            ) from error
    expected = run.record["evaluation"]["tokens"]
    found = sum(len(table) for table in tables)
    if found != expected:
        raise FormatError(
            f"{run.folder}: {found} rows in {len(parts)} parts, expected {expected}; repeat its `argap score` command"
        )
    return pa.concat_tables(tables)


def environment() -> dict[str, Any]:
    """Versions and the git revision of this installation, for ``run.json``."""
    names = ("argap", "torch", "transformers", "tokenizers", "numpy", "pyarrow", "triton")
    found: dict[str, Any] = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"versions": found, "git": _git_revision()}


def _git_revision() -> str | None:
    folder = Path(__file__).parent
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None if done.returncode == 0 else None


def _check_same(folder: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    for key in new:
        if old.get(key) != new[key]:
            raise MismatchError(
                f"{folder}: holds a run with {key} {old.get(key)}, asked for {new[key]}; "
                "choose another --out, or --overwrite to discard it"
            )
