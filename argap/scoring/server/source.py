"""Use a model on a server as a source of log-probs."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from argap.errors import ArgapError
from argap.evaluation.windows import EvaluationSet
from argap.files.parquet import read_parquet
from argap.records import RunIdentity, ServerRecord, SourceRecord
from argap.scoring.bos import Configured, bos_id
from argap.scoring.config import DEFAULT, ScoreConfig
from argap.scoring.server.client import Client
from argap.scoring.server.dialects import Dialect, Scored
from argap.scoring.server.probe import find_dialect, round_trips
from argap.scoring.server.scoring import ids_of_window, longest_window, score_prompts
from argap.text.tokenizer import Tokenizer, load_tokenizer
from argap.tokens.runs import Run, new_record

if TYPE_CHECKING:
    from argap.runtime.torchrun import Parallel

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


@dataclass(frozen=True)
class ServerSource(Configured):
    """A model on a server, with the tokenizer that the user names for it."""

    name: str
    server: Server
    config: ScoreConfig = DEFAULT
    named: bool = False
    recorded = SourceRecord()
    finished = None
    longest = None

    @property
    def fingerprint(self) -> str:
        return self.server.fingerprint

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        source = self.config.tokenizer.of(self.name)
        if source is None:
            raise ArgapError(f"{self.name}: a server does not report its tokenizer; name it with `tokenizer=T`")
        return load_tokenizer(source)

    @property
    def bos(self) -> int | None:
        """Return the id of the token to send before each window; a rule of several tokens is not followed."""
        asked = self.config.bos.of(self.name)
        found = bos_id(self, asked)
        if isinstance(found, tuple) and asked is not None:
            raise ArgapError(f"{self.name}: `bos` {asked}: {len(found)} tokens; a server is sent one at most")
        return None if isinstance(found, tuple) else found

    def check(self, parallel: "Parallel | None") -> None:
        if parallel is not None:
            raise ArgapError(f"{self.name}: one process asks a server; run without torchrun")
        for option in ("rank", "kl"):
            if getattr(self.config, option):
                raise ArgapError(f"{self.name}: `{option}`: a server returns no logits; leave `{option}` out")
        if self.config.concurrency < 1:
            raise ArgapError(f"`concurrency` {self.config.concurrency}: expected a positive whole number")

    def check_windows(self, data: EvaluationSet, parallel: "Parallel | None") -> None:
        """Accept any windows: the server itself refuses those it cannot read."""

    def identity(self, data: EvaluationSet, parallel: "Parallel | None") -> RunIdentity:
        return RunIdentity(
            checkpoint=self.fingerprint,
            evaluation_set=data.fingerprint,
            dtype="unknown",
            device="server",
            batch_size="auto",
            backend="server",
            bos=self.bos,
        )

    def score(self, data: EvaluationSet, folder: Path, text: SourceRecord, parallel: "Parallel | None" = None) -> Run:
        """Return the run over ``data``.

        Raises `ArgapError` for a server that returns no log-probs of prompts, impossible ones, or nothing after several
        tries, and `MismatchError` if its tokens differ from the text's; finished shards are kept.
        """
        return score_prompts(
            folder,
            data,
            new_record(self.name, self.server.address, text, data.record, self.identity(data, parallel)),
            lambda: self._asked(data),
            concurrency=self.config.concurrency,
            overwrite=self.config.overwrite,
        )

    @contextmanager
    def _asked(self, data: EvaluationSet) -> "Iterator[_Asked]":
        """Find out how the server answers, before the first window."""
        client, model, tokenizer, batch = (
            Client(self.server.address),
            self.server.model,
            self.tokenizer,
            self.config.batch_size,
        )
        dialect = find_dialect(client, model, longest_window(data), tokenizer, self.bos)
        if dialect.prompts == "text":
            _check_round_trips(data, tokenizer, self.server.address)
        if batch == "auto":
            batch = 1 if dialect.prompts == "text" else max(1, TOKENS_PER_REQUEST // data.seq_len)
        yield _Asked(client, model, dialect, tokenizer, batch)


class _Asked(NamedTuple):
    """A server whose dialect is known."""

    client: Client
    model: str
    dialect: Dialect
    tokenizer: Tokenizer
    batch: int
    device_name = "server"

    def ask(self, windows: Sequence[Sequence[int]]) -> list[Scored]:
        return self.dialect.ask(self.client, self.model, windows, self.tokenizer)

    def stop(self) -> None:
        self.client.stop()

    def record(self, parts: Sequence[Path]) -> ServerRecord:
        return ServerRecord(
            model=self.model,
            logprobs=self.dialect.logprobs,
            prompts=self.dialect.prompts,
            bos=self.dialect.adds or self.dialect.sends is not None,
            decimals=_decimals(parts),
            retries=self.client.retries,
        )


def _decimals(parts: Sequence[Path]) -> int | None:
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
        same = round_trips([ids_of_window(data, w) for w in numbers], tokenizer)
        if not all(same):
            raise ArgapError(
                f"{where}: takes prompts as text, and that of window {numbers[same.index(False)]} does not tokenize to "
                "the window, which begins or ends inside a word or contains an EOS; use `packing=document` and a "
                "`seq_len` as long as the documents, or a server that takes token ids"
            )
