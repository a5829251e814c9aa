"""Score a server's model: send windows a few at a time, and write each shard once it is complete.

A window is sent as it is, without a token before it unless a BOS is requested, so that its log-probs have the same
context as in argap's own scorer. A killed run resumes at its first missing shard.
"""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from argap.errors import ArgapError, MismatchError
from argap.evaluation.windows import EvaluationSet
from argap.files.lock import one_writer
from argap.files.parquet import read_parquet
from argap.records import RunIdentity, RunResult, ServerRecord, SourceRecord
from argap.runtime.progress import progress, say
from argap.scoring.server.client import Client
from argap.scoring.server.dialects import Dialect, Scored
from argap.scoring.server.probe import find_dialect, round_trips
from argap.text.tokenizer import Tokenizer
from argap.tokens.runs import (
    Run,
    begin_run,
    finish_run,
    missing_shards,
    new_record,
    shard_path,
    shards_of,
    write_shard,
)

SHARDS_AHEAD = 2
"""Shards whose requests are in flight at once."""
TOKENS_PER_REQUEST = 2**13
"""Tokens per request with batch size "auto" if prompts are token ids; text prompts are sent one by one."""
MOST_DECIMALS = 4
"""Rounding to more decimals is not visible in float32."""
TEXTS = 256
"""Windows decoded and re-encoded at a time."""


class Server(NamedTuple):
    """A model on a server."""

    address: str
    model: str

    @property
    def fingerprint(self) -> str:
        """Return the SHA-256 (hex) over address and model: a server does not say which weights it runs."""
        return hashlib.sha256(f"{self.address}\0{self.model}".encode()).hexdigest()

    def identity(self, data: EvaluationSet, bos: int | None) -> RunIdentity:
        """Return the identity of the run that `score_server` writes."""
        return RunIdentity(
            checkpoint=self.fingerprint,
            evaluation_set=data.fingerprint,
            dtype="unknown",
            device="server",
            batch_size="auto",
            backend="server",
            bos=bos,
        )


@one_writer("folder")
def score_server(
    server: Server,
    data: EvaluationSet,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    model_name: str,
    source: SourceRecord,
    batch_size: int | Literal["auto"],
    concurrency: int,
    bos: int | None,
    overwrite: bool,
) -> Run:
    """Write the run of the server's model over ``data`` into ``folder``; finished shards are skipped.

    ``bos``: id of a token to put before each window, unless the server adds one itself.

    Raises `ArgapError` for a server that returns no log-probs of prompts, impossible ones, or nothing after several
    tries, and `MismatchError` if its tokens differ from the text's; finished shards are kept.
    """
    record = new_record(model_name, server.address, source, data.record, server.identity(data, bos))
    run = begin_run(folder, record, overwrite=overwrite)
    shards = dict(enumerate(shards_of(data)))
    missing = missing_shards(folder, data, shards)
    if run.finished and not missing:
        return run
    started, client = time.monotonic(), Client(server.address)
    longest = int(np.argmax(np.diff(data.offsets)))
    dialect = find_dialect(client, server.model, _ids(data, longest), tokenizer, bos)
    if dialect.prompts == "text":
        _check_round_trips(data, tokenizer, server.address)
    if batch_size == "auto":
        batch_size = 1 if dialect.prompts == "text" else max(1, TOKENS_PER_REQUEST // data.seq_len)
    work = _Work(client, server.model, dialect, data, tokenizer, batch_size)
    _score_shards(work, missing, folder, concurrency, model_name)
    seconds, done = time.monotonic() - started, sum(data.count_in(windows) for windows in missing.values())
    return finish_run(run, _result(server, work, seconds, done, folder, len(shards)))


class _Work(NamedTuple):
    client: Client
    model: str
    dialect: Dialect
    data: EvaluationSet
    tokenizer: Tokenizer
    batch: int
    """Windows per request."""

    def ask(self, windows: Sequence[int]) -> list[Scored]:
        """Send one request. Raises what `Dialect.ask` raises, naming the first window."""
        try:
            return self.dialect.ask(self.client, self.model, [_ids(self.data, w) for w in windows], self.tokenizer)
        except MismatchError as error:
            raise MismatchError(f"{error} (in window {windows[0]}{' or after' if len(windows) > 1 else ''})") from None

    def batches(self, windows: range) -> list[list[int]]:
        """Return the windows with a token to score, `batch` at a time."""
        lengths = np.diff(self.data.offsets)
        scored = [w for w in windows if lengths[w] > 1]
        return [scored[first : first + self.batch] for first in range(0, len(scored), self.batch)]


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
                    _write(work, waiting.popleft(), advance)
            while waiting:
                _write(work, waiting.popleft(), advance)
    except KeyboardInterrupt:
        say(f"{folder}: interrupted; finished shards are kept, the same command resumes there")
        raise
    finally:
        work.client.stop()
        pool.shutdown(cancel_futures=True)


def _write(work: _Work, shard: _Shard, advance: Callable[[int], None]) -> None:
    """Wait for the requests of a shard and write it."""
    offsets = work.data.offsets
    start = offsets[shard.windows.start]
    logprob = np.full(work.data.count_in(shard.windows), np.nan, dtype=np.float32)
    top1 = np.full(len(logprob), -1, dtype=np.int32)
    for batch, future in shard.requests:
        for w, scored in zip(batch, future.result(), strict=True):
            rows = slice(offsets[w] - start, offsets[w + 1] - start)
            logprob[rows], top1[rows] = scored.logprob, scored.top1
            advance(rows.stop - rows.start)
    write_shard(shard.path, work.data, shard.windows, logprob, top1)


def _result(server: Server, work: _Work, seconds: float, done: int, folder: Path, shards: int) -> RunResult:
    return RunResult(
        parameters=None,
        head="server",
        windows_per_batch=work.batch,
        device_name="server",
        processes=1,
        seconds=round(seconds, 3),
        tokens_per_second=round(done / seconds, 1) if done else None,
        server=ServerRecord(
            model=server.model,
            logprobs=work.dialect.logprobs,
            prompts=work.dialect.prompts,
            bos=work.dialect.adds or work.dialect.sends is not None,
            decimals=_decimals([shard_path(folder, k) for k in range(shards)]),
            retries=work.client.retries,
        ),
    )


def _decimals(parts: list[Path]) -> int | None:
    """Return the decimals to which all log-probs are rounded, up to `MOST_DECIMALS`; None if they are not rounded."""
    fewest = 0
    for path in parts:
        values = read_parquet(path, ["logprob"])["logprob"].drop_null().to_numpy()
        while (
            fewest <= MOST_DECIMALS and (np.round(values.astype(np.float64), fewest).astype(np.float32) != values).any()
        ):
            fewest += 1
    return fewest if fewest <= MOST_DECIMALS else None


def _check_round_trips(data: EvaluationSet, tokenizer: Tokenizer, where: str) -> None:
    """Raise `ArgapError` if the text of a window, all that the server takes, does not tokenize to the window."""
    for first in range(0, data.windows, TEXTS):
        numbers = range(first, min(first + TEXTS, data.windows))
        same = round_trips([_ids(data, w) for w in numbers], tokenizer)
        if not all(same):
            raise ArgapError(
                f"{where}: takes prompts as text, and that of window {numbers[same.index(False)]} does not tokenize to "
                "the window, which begins or ends inside a word or contains an EOS; use `packing=document` and a "
                "`seq_len` as long as the documents, or a server that takes token ids"
            )


def _ids(data: EvaluationSet, window: int) -> list[int]:
    return data.tokens[data.offsets[window] : data.offsets[window + 1]].tolist()
