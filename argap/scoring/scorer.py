"""Run a checkpoint over an evaluation set and store the log-prob of every token.

A thread writes each finished shard of windows while the next one is scored, so a killed run resumes where it stopped.
Under ``torchrun``, shards are assigned round-robin to ranks; the output is identical to that of one process.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from argap.checkpoints.family_code import family_code
from argap.errors import ArgapError
from argap.evaluation.windows import EvaluationSet, strided, tokens_read
from argap.files.lock import one_writer
from argap.records import Bos, RunResult, SourceRecord, ids_of
from argap.runtime.progress import progress, say
from argap.runtime.torchrun import Parallel
from argap.scoring.batches import Batches, Shard
from argap.scoring.bos import probe_bos
from argap.scoring.divergence import batches_of, check_same_vocabulary
from argap.scoring.sources import Local
from argap.tokens.runs import (
    SHARD_TOKENS,
    Run,
    begin_run,
    finish_run,
    missing_shards,
    new_record,
    no_logprob,
    read_run,
    shard_path,
    shards_of,
    short_identity,
    write_shard,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel

AND_BOS = ("", " and a BOS", " and the tokens before it")
SHARD_WORK = 10**12
"""Weights times tokens of a shard on a processor: half a minute's work of two cores in float32."""
SHARDS_IN_FLIGHT = 2
"""Shards that may wait in memory to be written while the device works on."""


@one_writer("folder")
def score(
    source: Local,
    data: EvaluationSet,
    folder: Path,
    text: SourceRecord,
    parallel: Parallel | None = None,
    *,
    context: int | None = None,
) -> Run:
    """Write the run of ``source`` over ``data`` into ``folder``; finished shards are skipped.

    ``text`` records where the evaluation set came from (data, index). ``context``: read every token in a window of
    that many tokens (`argap.evaluation.windows`) instead of the whole one; the rows are the same. With ``parallel`` all
    its processes call this with the same arguments, share the shards, and return when the run is finished.

    Raises `ArgapError` for a model that cannot take the windows or returns a log-prob of NaN or +∞,
    `MismatchError` if the folder holds another run.
    """
    parallel = parallel or Parallel(0, 1, source.device())
    device = str(parallel.device)
    identity = source.identity(data, parallel)
    if context is not None:
        identity = short_identity(identity, context)
    shard_tokens = _shard_tokens(source.weights) if device.startswith("cpu") else None
    record = new_record(source.name, source.origin, text, data.record, identity, shard_tokens)
    run = begin_run(folder, record, overwrite=source.config.overwrite) if parallel.is_main else Run(folder, record)
    parallel.wait()  # until the main process has begun the run, or seen that it is finished
    if not parallel.is_main:
        run = read_run(folder)
    shards = enumerate(shards_of(data, run.record.shard_tokens))
    own = {k: windows for k, windows in shards if k % parallel.world == parallel.rank}
    missing = missing_shards(folder, data, own)
    left = int(parallel.sum(torch.tensor(len(missing), device=device)))  # of all processes
    if run.finished and not left:
        return run
    check_length(source.origin, source.longest, data, bos=source.bos)
    to_read = data if context is None else strided(data, next(iter(missing.values()), range(1)), context).data
    too_long = None if source.config.max_length.of(source.name) is None else "reduce `max_length` and `seq_len`"
    beside = source.beside if context is None else None
    with (
        source.loaded(device) as model,
        family_code(source.origin, model, to_read.longest, too_long),
        batches_of(beside, data, device) as reference,
    ):
        check_vocabulary(model, data, source.origin)
        check_same_vocabulary(source, model, reference)
        batches = Batches(
            model,
            to_read,
            device,
            source.config.batch_size,
            source.origin,
            live=source.shared,
            bos=source.bos,
            rank=identity.rank,
            entropy=identity.entropy,
        )
        if reference is not None:
            batches.follow(reference)
        if (
            context is None
            and parallel.is_main
            and missing
            and (source.longest is None or data.longest < source.longest)
        ):
            probe_bos(batches, source, source.config.bos.of(source.name), without_bos=source.without_bos)
        started = time.monotonic()
        done = _score_shards(batches, data, missing, folder, source.name, context)
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


def _shard_tokens(weights: int) -> int | None:
    """Return the tokens of a shard that take a processor about `SHARD_WORK`; None for the usual shard.

    Planned by size and not by the clock, so that a run has the same parts however often it is interrupted.
    """
    tokens = SHARD_WORK // max(1, weights)
    return tokens if tokens < SHARD_TOKENS else None


def _score_shards(
    batches: Batches, data: EvaluationSet, missing: dict[int, range], folder: Path, name: str, context: int | None
) -> int:
    """Score and write the missing shards of ``data``; return the number of tokens read."""
    if context is None:
        to_do = sum(data.count_in(windows) for windows in missing.values())
    else:
        to_do = sum(tokens_read(data, windows, context) for windows in missing.values())
        name = f"{name} with {context:,} tokens of context"
    writing: deque[Future[None]] = deque()
    try:
        with (
            progress(f"scoring {name}", to_do) as advance,
            ThreadPoolExecutor(1, thread_name_prefix="writer") as writer,
        ):
            for number, windows in missing.items():
                kept = None
                if context is not None:
                    batches.data, kept = strided(data, windows, context)
                shard = batches.score(windows if kept is None else batches.data.all, advance)
                part = _Part(data, windows, kept, shard_path(folder, number))
                writing.append(writer.submit(_write, shard, part, name, advance))
                while len(writing) > SHARDS_IN_FLIGHT:
                    writing.popleft().result()  # raises the writer's error
            while writing:
                writing.popleft().result()
    except KeyboardInterrupt:
        say(f"{folder}: interrupted; finished shards are kept, the same command resumes there")
        raise
    return to_do


class _Part(NamedTuple):
    """A part of a run to write."""

    data: EvaluationSet
    windows: range
    kept: np.ndarray | None
    """Which tokens of the shard are those of ``windows`` (`argap.evaluation.windows`); None: all."""
    path: Path


def _write(shard: Shard, part: _Part, name: str, advance: Callable[[int], None]) -> None:
    (logprob, top1), further = shard.arrays(), shard.further()
    if part.kept is not None:
        logprob, top1 = logprob[part.kept], top1[part.kept]
    check_logprobs(logprob, part.data, part.windows, name)
    write_shard(part.path, part.data, part.windows, logprob, top1, further)
    advance(shard.uncounted)


def check_length(name: str, longest: int | None, data: EvaluationSet, *, bos: Bos) -> None:
    """Raise `ArgapError` if the windows of ``data`` are longer than the ``longest`` that a model takes.

    ``bos``: what is put before each.
    """
    before = len(ids_of(bos))
    if longest is not None and data.longest + before > longest:
        raise ArgapError(
            f"{name}: takes at most {longest} tokens, the windows have {data.longest}"
            f"{AND_BOS[min(before, 2)]}; use `seq_len={longest - before}`, or `max_length={data.longest + before}` "
            "if it takes more than it says"
        )


def check_vocabulary(model: "PreTrainedModel", data: EvaluationSet, name: str) -> None:
    """Raise `ArgapError` for a token id without an embedding in the model."""
    embedding: Any = model.get_input_embeddings()
    check_ids(embedding.weight.shape[0], data, name)


def check_ids(rows: int, data: EvaluationSet, name: str) -> None:
    """Raise `ArgapError` for a token id beyond a vocabulary of ``rows``."""
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
