"""The scorer: run a checkpoint over an evaluation set and keep the log-prob of every token.

A shard of windows is written when it is done, by a thread that works beside the next shard's scoring, so that a killed
run resumes where it stopped. Under ``torchrun`` shards are assigned round-robin across ranks; the files are the same as
those of one process.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from argap.checkpoints.find import Checkpoint
from argap.checkpoints.live import LiveModel, undisturbed
from argap.checkpoints.load import Backend, load_model, runs_native
from argap.errors import ArgapError
from argap.evaluation.windows import EvaluationSet
from argap.files.lock import one_writer
from argap.records import RunIdentity, RunResult, SourceRecord
from argap.runtime.device import DTYPES, resolve_dtype, use_device
from argap.runtime.progress import progress, say
from argap.runtime.torchrun import Parallel
from argap.scoring.batches import Batches, Shard
from argap.tokens.runs import (
    Run,
    begin_run,
    finish_run,
    missing_shards,
    new_record,
    no_logprob,
    read_run,
    shard_path,
    shards_of,
    write_shard,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LARGEST_BATCH = 2**20
"""Windows."""
SHARDS_IN_FLIGHT = 2
"""Shards that may wait in memory to be written while the device works on."""


class ScoreOptions(NamedTuple):
    """How to run a model; ``auto`` dtype is float32 on a CPU, bfloat16 elsewhere."""

    dtype: str = "auto"
    device: str = "auto"
    batch_size: int | Literal["auto"] = "auto"
    backend: Backend = "auto"
    device_map: bool = False
    """Spread models over all GPUs and then the CPU's memory."""
    bos: int | None = None
    """Id of a token to put before each window, as one more token of context; it has no log-prob."""
    rank: bool = False
    """Also keep the rank of each token among the vocabulary (`argap.scoring.heads.OfTargets`)."""


def parse_batch_size(text: str) -> int | Literal["auto"]:
    """A batch size as written on a command line. Raises `ArgapError` for anything but a positive number and auto."""
    if text == "auto":
        return "auto"
    if not (text.isdecimal() and 0 < int(text) <= LARGEST_BATCH):
        raise ArgapError(f"`batch_size` {text}: expected a positive whole number up to {LARGEST_BATCH:,}, or auto")
    return int(text)


@one_writer("folder")
def score(
    checkpoint: Checkpoint | LiveModel,
    data: EvaluationSet,
    folder: Path,
    *,
    model_name: str,
    source: SourceRecord,
    options: ScoreOptions,
    overwrite: bool = False,
    parallel: Parallel | None = None,
) -> Run:
    """Write the run of ``checkpoint`` over ``data`` into ``folder``; finished shards are skipped.

    ``source`` records where the evaluation set came from (data, index). With ``parallel`` all its processes
    call this with the same arguments, share the shards, and return when the run is finished.

    Raises `ArgapError` for a model that cannot take the windows or gives a log-prob of NaN or +∞,
    `MismatchError` where the folder holds another run.
    """
    live = isinstance(checkpoint, LiveModel)
    parallel = parallel or Parallel(0, 1, checkpoint.device if live else use_device(options.device))
    device = str(parallel.device)
    identity = identity_of(checkpoint, data, options, device)
    record = new_record(model_name, checkpoint.name, source, data.record, identity)
    run = begin_run(folder, record, overwrite=overwrite) if parallel.is_main else Run(folder, record)
    parallel.wait()  # for the main process to begin the run, or to see that it is finished
    if not parallel.is_main:
        run = read_run(folder)
    own = {k: windows for k, windows in enumerate(shards_of(data)) if k % parallel.world == parallel.rank}
    missing = missing_shards(folder, data, own)
    left = int(parallel.sum(torch.tensor(len(missing), device=device)))  # of all processes
    if run.finished and not left:
        return run
    check_length(checkpoint, data, bos=options.bos is not None)
    with _loaded(checkpoint, identity.dtype, device, options) as model:
        check_vocabulary(model, data, checkpoint.name)
        batches = Batches(
            model, data, device, options.batch_size, checkpoint.name, live=live, bos=options.bos, rank=options.rank
        )
        started = time.monotonic()
        done = _score_shards(batches, missing, folder, model_name)
    done = int(parallel.sum(torch.tensor(done, device=device)))  # waits for all processes, too
    seconds = time.monotonic() - started
    result = RunResult(
        parameters=model.num_parameters(),
        head="chunked" if batches.head else "model",
        windows_per_batch=batches.batch,
        device_name=torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu",
        processes=parallel.world,
        seconds=round(seconds, 3),
        tokens_per_second=round(done / seconds, 1) if done else None,
    )
    if parallel.is_main:
        run = finish_run(run, result)
    parallel.wait()
    return run if parallel.is_main else read_run(folder)


@contextmanager
def _loaded(
    checkpoint: Checkpoint | LiveModel, dtype: str, device: str, options: ScoreOptions
) -> "Iterator[PreTrainedModel]":
    """The model in evaluation mode; one that is in memory has its own mode again afterwards."""
    if isinstance(checkpoint, LiveModel):
        with undisturbed(checkpoint.model):
            yield checkpoint.model
        return
    yield load_model(
        checkpoint,
        dtype=DTYPES[dtype],
        device=device,
        backend=options.backend,
        device_map=options.device_map,
    )


def identity_of(
    checkpoint: Checkpoint | LiveModel, data: EvaluationSet, options: ScoreOptions, device: str
) -> RunIdentity:
    """The identity of the run that `score` writes."""
    if isinstance(checkpoint, LiveModel):
        dtype, backend = checkpoint.dtype, "memory"
    else:
        dtype = resolve_dtype(options.dtype, device)
        backend = "native" if runs_native(checkpoint, options.backend) else "hf"
    return RunIdentity(
        checkpoint=checkpoint.fingerprint,
        evaluation_set=data.fingerprint,
        dtype=dtype,
        device=torch.device(device).type,
        batch_size=options.batch_size,
        backend=backend,
        bos=options.bos,
        rank=options.rank,
    )


def _score_shards(batches: Batches, missing: dict[int, range], folder: Path, name: str) -> int:
    """Write the shards that are not there yet; returns how many tokens were scored."""
    to_do = sum(batches.data.count_in(windows) for windows in missing.values())
    writing: deque[Future[None]] = deque()
    try:
        with (
            progress(f"scoring {name}", to_do) as advance,
            ThreadPoolExecutor(1, thread_name_prefix="writer") as writer,
        ):
            for number, windows in missing.items():
                shard = batches.score(windows, advance)
                writing.append(writer.submit(_write, shard, shard_path(folder, number), name, advance))
                while len(writing) > SHARDS_IN_FLIGHT:
                    writing.popleft().result()  # raises what stopped the writer
            while writing:
                writing.popleft().result()
    except KeyboardInterrupt:
        say(f"{folder}: interrupted; finished shards are kept, the same command resumes there")
        raise
    return to_do


def _write(shard: Shard, path: Path, name: str, advance: Callable[[int], None]) -> None:
    logprob, top1 = shard.arrays()
    check_logprobs(logprob, shard.data, shard.windows, name)
    write_shard(path, shard.data, shard.windows, logprob, top1, shard.ranks())
    advance(shard.uncounted)


def check_length(model: Checkpoint | LiveModel, data: EvaluationSet, *, bos: bool) -> None:
    """Raise `ArgapError` where the model cannot take the windows of ``data``; ``bos``: and a BOS before each."""
    limit = model.longest
    if limit is not None and data.longest + bos > limit:
        raise ArgapError(
            f"{model.name}: takes at most {limit} tokens, the windows have {data.longest}"
            f"{' and a BOS' if bos else ''}; use `seq_len={limit - bos}`"
        )


def check_vocabulary(model: "PreTrainedModel", data: EvaluationSet, name: str) -> None:
    """Raise `ArgapError` for a token id that the model has no embedding of."""
    embedding: Any = model.get_input_embeddings()
    rows = embedding.weight.shape[0]
    highest = int(data.tokens.max())
    if highest >= rows:
        raise ArgapError(
            f"{name}: its vocabulary has {rows} entries, the text has token id {highest}; "
            f"is {data.tokenizer} really its tokenizer?"
        )


def check_logprobs(logprob: np.ndarray, data: EvaluationSet, windows: range, name: str) -> None:
    """Raise `ArgapError` for a scored token of ``windows`` whose log-prob is NaN or +∞."""
    window, position = data.window_of(windows), data.position_of(windows)
    wrong = no_logprob(logprob) & (position > 0)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ArgapError(
            f"{name}: log-prob {logprob[at]} at window {window[at]}, position {position[at]}; "
            "a broken checkpoint, or a dtype too narrow for it (try `dtype=float32`)"
        )
