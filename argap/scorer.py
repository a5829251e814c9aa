"""The scorer: run a checkpoint over an evaluation set and keep the log-prob of every token.

A shard of windows is written when it is done, by a thread beside the next one's work, so a killed run
goes on where it stopped. Under ``torchrun`` each process takes every so-manieth shard, and the files are
those that one process writes.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from argap.atomic import read_json
from argap.batches import Batches, Shard
from argap.checkpoint import Backend, Checkpoint, load_model, max_positions, runs_native
from argap.device import DTYPES, resolve_dtype, use_device
from argap.errors import ArgapError
from argap.evaluation import EvaluationSet
from argap.parallel import Parallel
from argap.progress import progress, say
from argap.runs import (
    Run,
    begin_run,
    environment,
    finish_run,
    shard_path,
    shards_of,
    whole_shard,
    write_shard,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SHARDS_IN_FLIGHT = 2
"""How many shards may wait for their writing while the device goes on: their log-probs lie in memory."""


class ScoreOptions(NamedTuple):
    """How to run a model; ``auto`` dtype is float32 on a CPU, bfloat16 elsewhere."""

    dtype: str = "auto"
    device: str = "auto"
    batch_size: int | Literal["auto"] = "auto"
    trust_remote_code: bool = False
    backend: Backend = "auto"


def score(
    checkpoint: Checkpoint,
    data: EvaluationSet,
    folder: Path,
    *,
    model_name: str,
    source: dict[str, Any],
    options: ScoreOptions,
    overwrite: bool = False,
    parallel: Parallel | None = None,
) -> Run:
    """Write the run of ``checkpoint`` over ``data`` into ``folder``; finished shards are skipped.

    ``source`` records where the evaluation set came from (data, index). With ``parallel`` all its processes
    call this with the same arguments, share the shards, and return when the run is finished.

    Raises `ArgapError` for a model that cannot take the windows or gives a NaN or infinite log-prob,
    `MismatchError` where the folder holds another run.
    """
    parallel = parallel or Parallel(0, 1, use_device(options.device))
    device = str(parallel.device)
    dtype = resolve_dtype(options.dtype, device)
    record = {
        "model": model_name,
        "checkpoint": {"name": checkpoint.name, "fingerprint": checkpoint.fingerprint},
        "source": source,
        "evaluation": data.describe(),
        "identity": {
            "checkpoint": checkpoint.fingerprint,
            "evaluation set": data.fingerprint,
            "dtype": dtype,
            "device": torch.device(device).type,
            "batch size": options.batch_size,
            "backend": "native" if runs_native(checkpoint, options.backend) else "hf",
        },
        **environment(),
    }
    run = begin_run(folder, record, overwrite=overwrite) if parallel.is_main else Run(folder, record)
    parallel.wait()  # for the main process to begin the run, or to find it finished
    if not parallel.is_main:
        run = Run(folder, read_json(folder / "run.json"))
    shards = shards_of(data)
    if run.finished and all(_whole(folder, k, data, windows) for k, windows in enumerate(shards)):
        return run
    model = load_model(
        checkpoint,
        dtype=DTYPES[dtype],
        device=device,
        trust_remote_code=options.trust_remote_code,
        backend=options.backend,
    )
    _check_fits(model, data, checkpoint.name)
    batches = Batches(model, data, device, options.batch_size, checkpoint.name)
    started = time.monotonic()
    own = {k: windows for k, windows in enumerate(shards) if k % parallel.world == parallel.rank}
    try:
        done = _score_shards(batches, own, folder, model_name)
    except KeyboardInterrupt:
        say(f"{folder}: interrupted; finished shards stay, the same command goes on from there")
        raise
    done = int(parallel.sum(torch.tensor(done, device=device)))  # and with it the end of all processes
    seconds = time.monotonic() - started
    result = {
        "parameters": model.num_parameters(),
        "head": "chunked" if batches.head else "model",
        "windows per batch": batches.batch,
        "device name": torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        "processes": parallel.world,
        "seconds": round(seconds, 3),
        "tokens per second": round(done / seconds, 1) if done else None,
    }
    if parallel.is_main:
        run = finish_run(run, result)
    parallel.wait()
    return run if parallel.is_main else Run(folder, read_json(folder / "run.json"))


def _score_shards(batches: Batches, shards: dict[int, range], folder: Path, name: str) -> int:
    """Write the shards that are not there yet; returns how many tokens were scored."""
    data, done = batches.data, 0
    sizes = {k: int(data.offsets[windows.stop] - data.offsets[windows.start]) for k, windows in shards.items()}
    writing: deque[tuple[int, Future[None]]] = deque()
    with (
        progress(f"scoring {name}", sum(sizes.values())) as advance,
        ThreadPoolExecutor(1, thread_name_prefix="writer") as writer,
    ):
        for number, windows in shards.items():
            if _whole(folder, number, data, windows):
                advance(sizes[number])
                continue
            shard = batches.score(windows)
            writing.append((number, writer.submit(_write, shard, shard_path(folder, number), name)))
            done += sizes[number]
            while len(writing) > SHARDS_IN_FLIGHT:
                _finish(writing, sizes, advance)
        while writing:
            _finish(writing, sizes, advance)
    return done


def _finish(writing: deque[tuple[int, Future[None]]], sizes: dict[int, int], advance: Callable[[int], None]) -> None:
    """Wait for the first shard that is being written; what stopped it is raised here."""
    number, written = writing.popleft()
    written.result()
    advance(sizes[number])


def _write(shard: Shard, path: Path, name: str) -> None:
    logprob, top1 = shard.arrays()
    _check_finite(logprob, shard.data, shard.windows, name)
    write_shard(path, shard.data, shard.windows, logprob, top1)


def _whole(folder: Path, number: int, data: EvaluationSet, windows: range) -> bool:
    rows = int(data.offsets[windows.stop] - data.offsets[windows.start])
    return whole_shard(shard_path(folder, number), rows)


def _check_fits(model: "PreTrainedModel", data: EvaluationSet, name: str) -> None:
    longest, limit = int(np.diff(data.offsets).max()), max_positions(model)
    if limit is not None and longest > limit:
        raise ArgapError(f"{name}: takes at most {limit} tokens, the windows have {longest}; use --seq-len {limit}")
    embedding: Any = model.get_input_embeddings()
    rows = embedding.weight.shape[0]
    highest = int(data.tokens.max())
    if highest >= rows:
        raise ArgapError(
            f"{name}: its vocabulary has {rows} entries, the text holds token id {highest}; "
            f"is {data.tokenizer} really its tokenizer?"
        )


def _check_finite(logprob: np.ndarray, data: EvaluationSet, windows: range, name: str) -> None:
    rows = slice(data.offsets[windows.start], data.offsets[windows.stop])
    wrong = ~np.isfinite(logprob) & (data.position[rows] > 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ArgapError(
            f"{name}: log-prob {logprob[at]} at window {data.window[rows][at]}, position {data.position[rows][at]}; "
            "a checkpoint that is broken, or a --dtype too narrow for it (try --dtype float32)"
        )
