"""Score a model in memory, on its own device and in its own dtype, and leave its mode as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from argap.checkpoints.live import LiveModel, undisturbed
from argap.errors import ArgapError
from argap.evaluation.windows import EvaluationSet
from argap.records import RunIdentity, SourceRecord
from argap.scoring.bos import Configured
from argap.scoring.config import DEFAULT, ScoreConfig
from argap.scoring.divergence import kl_reference
from argap.text.tokenizer import Tokenizer
from argap.tokens.runs import Run

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from argap.runtime.torchrun import Parallel
    from argap.scoring.sources import Local


@dataclass(frozen=True)
class MemorySource(Configured):
    """A model in memory, and its tokenizer."""

    live: LiveModel
    tokenizer: Tokenizer
    config: ScoreConfig = DEFAULT
    named: bool = False
    beside: "Local | None" = None
    recorded = SourceRecord()
    finished = None
    shared = True

    @property
    def name(self) -> str:
        return self.live.name

    @property
    def fingerprint(self) -> str:
        return self.live.fingerprint

    @property
    def origin(self) -> str:
        return self.live.name

    @property
    def without_bos(self) -> bool:
        return self.live.without_bos

    @property
    def weights(self) -> int:
        return self.live.model.num_parameters()

    @property
    def longest(self) -> int | None:
        return self.config.longest(self.name, self.live.longest)

    def check(self, parallel: "Parallel | None") -> None:
        if parallel is not None:
            raise ArgapError(f"{self.name}: one process has it in memory; run without torchrun")

    def check_windows(self, data: EvaluationSet, parallel: "Parallel | None") -> None:
        """Raise `ArgapError` for windows that the model cannot take."""
        from argap.scoring.scorer import check_length

        check_length(self.name, self.longest, data, bos=self.bos)

    def identity(self, data: EvaluationSet, parallel: "Parallel | None") -> RunIdentity:
        return RunIdentity(
            checkpoint=self.fingerprint,
            evaluation_set=data.fingerprint,
            dtype=self.live.dtype,
            device=self.device().type,
            batch_size=self.config.batch_size,
            backend="memory",
            bos=self.bos,
            rank=self.config.rank,
            entropy=self.config.kl,
            kl=kl_reference(self, data, parallel),
        )

    def score(self, data: EvaluationSet, folder: Path, text: SourceRecord, parallel: "Parallel | None" = None) -> Run:
        from argap.scoring.scorer import score

        return score(self, data, folder, text, parallel)

    def device(self) -> "torch.device":
        return self.live.device

    @contextmanager
    def loaded(self, device: str) -> "Iterator[PreTrainedModel]":
        """Yield the model in evaluation mode; restore its own mode afterwards."""
        with undisturbed(self.live.model):
            yield self.live.model
