"""Reuse the log-probs of a finished run."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from argap.evaluation.windows import EvaluationSet
from argap.records import RunIdentity, SourceRecord
from argap.text.tokenizer import Tokenizer
from argap.tokens.runs import Run, tokenizer_of

if TYPE_CHECKING:
    from argap.runtime.torchrun import Parallel


@dataclass(frozen=True)
class FinishedSource:
    """A finished run of a model's own tokens; no model runs."""

    finished: Run
    named = False
    bos = None
    longest = None

    @property
    def name(self) -> str:
        return self.finished.model

    @property
    def fingerprint(self) -> str:
        """Return the run's folder: a run never counts as a repetition of a model."""
        return str(self.finished.folder)

    @property
    def recorded(self) -> SourceRecord:
        return self.finished.record.source

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return tokenizer_of(self.finished)

    def qualified(self) -> Self:
        return self

    def check(self, parallel: "Parallel | None") -> None:
        """Accept the run, which was checked when opened."""

    def check_windows(self, data: EvaluationSet, parallel: "Parallel | None") -> None:
        """Accept ``data``, whose windows are those of the run (`argap.scoring.segmented.open_models_text`)."""

    def identity(self, data: EvaluationSet, parallel: "Parallel | None") -> RunIdentity:
        return self.finished.record.identity

    def score(self, data: EvaluationSet, folder: Path, text: SourceRecord, parallel: "Parallel | None" = None) -> Run:
        return self.finished
