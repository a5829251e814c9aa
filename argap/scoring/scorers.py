"""One model's part of `argap.results.pipeline.score_models`: what can be refused before any work, and its run.

`scorer_of` chooses: `LocalScorer` for checkpoints and models in memory, `ServerScorer` for servers.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from argap.checkpoints.find import Checkpoint
from argap.checkpoints.live import LiveModel
from argap.checkpoints.load import check_loadable
from argap.errors import ArgapError
from argap.evaluation.windows import EvaluationSet
from argap.files.resumable import check_resumable, folder_name
from argap.records import RunIdentity, SourceRecord
from argap.runtime.progress import say
from argap.scoring.per_model import ModelSettings
from argap.scoring.server.scoring import score_server
from argap.scoring.sources import CheckpointTarget, LiveTarget, ScoredTarget, ServerTarget, bos_of
from argap.tokens.runs import Run

if TYPE_CHECKING:
    from argap.runtime.torchrun import Parallel
    from argap.scoring.scorer import ScoreOptions


@dataclass(frozen=True)
class Scoring:
    """How all models of a command are scored."""

    out: Path
    options: "ScoreOptions"
    settings: ModelSettings
    """Those that models have for themselves."""
    concurrency: int
    """Requests at once to a server."""
    overwrite: bool
    parallel: "Parallel | None"


def scorer_of(target: ScoredTarget, scoring: Scoring) -> "LocalScorer | ServerScorer":
    """The scorer of ``target``, with its own settings. Raises `ArgapError` for a BOS that it lacks."""
    folder, options = scoring.out / folder_name(target.name), scoring.options
    bos = bos_of(target, scoring.settings.bos.of(target.name))
    if isinstance(target, ServerTarget):
        return ServerScorer(target, bos, scoring, folder)
    dtype = scoring.settings.dtype.of(target.name) or options.dtype
    model = target.live if isinstance(target, LiveTarget) else target.checkpoint
    return LocalScorer(target, model, scoring, options._replace(dtype=dtype, bos=bos), folder)


@dataclass(frozen=True)
class LocalScorer:
    """A checkpoint or a model in memory, run on this machine."""

    target: CheckpointTarget | LiveTarget
    model: Checkpoint | LiveModel
    scoring: Scoring
    options: "ScoreOptions"
    folder: Path

    @property
    def _device(self) -> str:
        from argap.runtime.device import resolve_device

        if isinstance(self.model, LiveModel):
            return str(self.model.device)
        parallel = self.scoring.parallel
        return str(parallel.device) if parallel else resolve_device(self.options.device)

    def check(self) -> None:
        """Raise `ArgapError` for what can be refused without the text."""
        parallel = self.scoring.parallel
        if isinstance(self.model, LiveModel):
            if parallel is not None:
                raise ArgapError(f"{self.target.name}: one process has it in memory; run without torchrun")
            return
        if self.options.device_map and parallel is not None:
            raise ArgapError("`device_map` gives one process all GPUs; run without torchrun")
        check_loadable(
            self.model,
            self.options.backend,
            device=self._device,
            device_map=self.options.device_map,
        )

    def check_windows(self, data: EvaluationSet) -> RunIdentity:
        """The identity of the model's run. Raises `ArgapError` for windows that it cannot take and a folder that holds
        another run. Windows longer than those of training are taken, and a line says so."""
        from argap.scoring.scorer import check_length, identity_of

        check_length(self.model, data, bos=self.options.bos is not None)
        identity = identity_of(self.model, data, self.options, self._device)
        if self.scoring.parallel is None or self.scoring.parallel.is_main:
            trained = None if isinstance(self.model, LiveModel) else self.model.trained_on
            if trained is not None and data.longest > trained:
                say(
                    f"{self.target.name}: trained on windows of {trained:,} tokens, scored on windows of "
                    f"{data.longest:,}; positions beyond {trained:,} are new to it, --seq-len {trained} leaves them out"
                )
            check_resumable(self.folder, identity, overwrite=self.scoring.overwrite)
        return identity

    def score(self, data: EvaluationSet, source: SourceRecord) -> Run:
        """The run of the model, in its folder. Raises what `argap.scoring.scorer.score` raises."""
        from argap.scoring.scorer import score

        return score(
            self.model,
            data,
            self.folder,
            model_name=self.target.name,
            source=source,
            options=self.options,
            overwrite=self.scoring.overwrite,
            parallel=self.scoring.parallel,
        )


@dataclass(frozen=True)
class ServerScorer:
    """A model of a server, with the methods of `LocalScorer`."""

    target: ServerTarget
    bos: int | None
    scoring: Scoring
    folder: Path

    def check(self) -> None:
        if self.scoring.parallel is not None:
            raise ArgapError(f"{self.target.name}: one process asks a server; run without torchrun")
        if self.scoring.options.rank:
            raise ArgapError(f"{self.target.name}: `rank`: a server gives no logits to rank; leave `rank` out")
        if self.scoring.concurrency < 1:
            raise ArgapError(f"`concurrency` {self.scoring.concurrency}: expected a positive whole number")

    def check_windows(self, data: EvaluationSet) -> RunIdentity:
        identity = self.target.server.identity(data, self.bos)
        check_resumable(self.folder, identity, overwrite=self.scoring.overwrite)
        return identity

    def score(self, data: EvaluationSet, source: SourceRecord) -> Run:
        return score_server(
            self.target.server,
            data,
            self.target.tokenizer,
            self.folder,
            model_name=self.target.name,
            source=source,
            batch_size=self.scoring.options.batch_size,
            concurrency=self.scoring.concurrency,
            bos=self.bos,
            overwrite=self.scoring.overwrite,
        )
