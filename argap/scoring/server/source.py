"""Use a model on a server as a source of log-probs."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from argap.errors import ArgapError
from argap.evaluation.windows import EvaluationSet
from argap.records import RunIdentity, SourceRecord
from argap.scoring.bos import Configured, bos_id
from argap.scoring.config import DEFAULT, ScoreConfig
from argap.scoring.server.scoring import Server, score_server
from argap.text.tokenizer import Tokenizer, load_tokenizer
from argap.tokens.runs import Run

if TYPE_CHECKING:
    from argap.runtime.torchrun import Parallel


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
        return self.server.identity(data, self.bos)

    def score(self, data: EvaluationSet, folder: Path, text: SourceRecord, parallel: "Parallel | None" = None) -> Run:
        return score_server(
            self.server,
            data,
            self.tokenizer,
            folder,
            model_name=self.name,
            source=text,
            batch_size=self.config.batch_size,
            concurrency=self.config.concurrency,
            bos=self.bos,
            overwrite=self.config.overwrite,
        )
