"""Score prompts: send windows a few at a time to a server or an engine, and write each shard once it is complete.

A window is sent as it is, without a token before it unless a BOS is requested, so that its log-probs have the same
context as in argap's own scorer. A killed run resumes at its first missing shard.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from argap.errors import MismatchError
from argap.evaluation.windows import EvaluationSet
from argap.files.lock import one_writer
from argap.records import RunRecord, RunResult, ServerRecord
from argap.runtime.progress import progress, say
from argap.scoring.server.dialects import Scored
from argap.tokens.runs import Run, begin_run, finish_run, missing_shards, shard_path, shards_of, write_shard

SHARDS_AHEAD = 2
"""Shards whose requests are in flight at once."""


class Scorer(Protocol):
    """A server or an engine, ready to score windows."""

    @property
    def batch(self) -> int:
        """Return the windows per request."""
        ...

    @property
    def device_name(self) -> str: ...

    def ask(self, windows: Sequence[Sequence[int]]) -> list[Scored]:
        """Return the scores of windows of token ids. Raises `MismatchError` for other tokens than those."""
        ...

    def stop(self) -> None:
        """End all requests, in all threads."""
        ...

    def record(self, parts: Sequence[Path]) -> ServerRecord | None:
        """Return what to record of a server, given the Parquet ``parts`` of the run; None for an engine."""
        ...


@one_writer("folder")
def score_prompts(
    folder: Path,
    data: EvaluationSet,
    record: RunRecord,
    open_scorer: Callable[[], AbstractContextManager[Scorer]],
    *,
    concurrency: int,
    overwrite: bool,
) -> Run:
    """Write the run ``record`` over ``data`` into ``folder``; finished shards are skipped.

    ``open_scorer`` is called only if something is missing; ``concurrency``: its most requests at once.

    Raises what `Scorer.ask` raises, and `MismatchError` if the folder holds another run; finished shards are kept.
    """
    run = begin_run(folder, record, overwrite=overwrite)
    shards = dict(enumerate(shards_of(data)))
    missing = missing_shards(folder, data, shards)
    if run.finished and not missing:
        return run
    started = time.monotonic()
    with open_scorer() as scorer:
        _score_shards(_Work(scorer, data), missing, folder, concurrency, record.model)
    seconds, done = time.monotonic() - started, sum(data.count_in(windows) for windows in missing.values())
    backend = record.identity.backend
    result = RunResult(
        parameters=None,
        head="server" if backend == "server" else "engine",
        windows_per_batch=scorer.batch,
        device_name=scorer.device_name,
        processes=1,
        seconds=round(seconds, 3),
        tokens_per_second=round(done / seconds, 1) if done else None,
        server=scorer.record([shard_path(folder, number) for number in shards]),
    )
    return finish_run(run, result)


class _Work(NamedTuple):
    scorer: Scorer
    data: EvaluationSet

    def ask(self, windows: Sequence[int]) -> list[Scored]:
        """Send one request. Raises what `Scorer.ask` raises, naming the first window."""
        try:
            return self.scorer.ask([ids_of_window(self.data, w) for w in windows])
        except MismatchError as error:
            raise MismatchError(f"{error} (in window {windows[0]}{' or after' if len(windows) > 1 else ''})") from None

    def batches(self, windows: range) -> list[list[int]]:
        """Return the windows with a token to score, `Scorer.batch` at a time."""
        lengths, batch = np.diff(self.data.offsets), self.scorer.batch
        scored = [w for w in windows if lengths[w] > 1]
        return [scored[first : first + batch] for first in range(0, len(scored), batch)]


class _Shard(NamedTuple):
    path: Path
    windows: range
    requests: list[tuple[list[int], Future[list[Scored]]]]
    """Requests, each with its windows."""


def _score_shards(work: _Work, missing: dict[int, range], folder: Path, concurrency: int, name: str) -> None:
    """Write the missing shards with ``concurrency`` parallel requests; a failure or Ctrl-C ends all requests."""
    waiting: deque[_Shard] = deque()
    pool = ThreadPoolExecutor(concurrency, thread_name_prefix="server")
    try:
        with progress(f"scoring {name}", sum(work.data.count_in(windows) for windows in missing.values())) as advance:
            for number, windows in missing.items():
                requests = [(batch, pool.submit(work.ask, batch)) for batch in work.batches(windows)]
                waiting.append(_Shard(shard_path(folder, number), windows, requests))
                if len(waiting) == SHARDS_AHEAD:
                    _write(work.data, waiting.popleft(), advance)
            while waiting:
                _write(work.data, waiting.popleft(), advance)
    except KeyboardInterrupt:
        say(f"{folder}: interrupted; finished shards are kept, the same command resumes there")
        raise
    finally:
        work.scorer.stop()
        pool.shutdown(cancel_futures=True)


def _write(data: EvaluationSet, shard: _Shard, advance: Callable[[int], None]) -> None:
    """Wait for the requests of a shard and write it."""
    start = data.offsets[shard.windows.start]
    logprob = np.full(data.count_in(shard.windows), np.nan, dtype=np.float32)
    top1 = np.full(len(logprob), -1, dtype=np.int32)
    for batch, future in shard.requests:
        for w, scored in zip(batch, future.result(), strict=True):
            rows = slice(data.offsets[w] - start, data.offsets[w + 1] - start)
            logprob[rows], top1[rows] = scored.logprob, scored.top1
            advance(rows.stop - rows.start)
    write_shard(shard.path, data, shard.windows, logprob, top1)


def ids_of_window(data: EvaluationSet, window: int) -> list[int]:
    """Return the token ids of a window."""
    return data.tokens[data.offsets[window] : data.offsets[window + 1]].tolist()


def longest_window(data: EvaluationSet) -> list[int]:
    """Return the token ids of the longest window, from which probes are cut."""
    return ids_of_window(data, int(np.argmax(np.diff(data.offsets))))
