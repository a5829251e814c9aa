"""One model's part of `argap.pipeline.score_models`: what can be refused before any work, and its run."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from argap.checkpoint import check_length, check_loadable
from argap.errors import ArgapError
from argap.evaluation import EvaluationSet
from argap.records import RunIdentity, SourceRecord
from argap.resumable import folder_name
from argap.runs import Run
from argap.server.scoring import CONCURRENCY, check_server_identity, score_server
from argap.targets import CheckpointTarget, LiveTarget, ScoredTarget, ServerTarget

if TYPE_CHECKING:
    from argap.parallel import Parallel
    from argap.scorer import ScoreOptions


@dataclass(frozen=True)
class Scoring:
    """How all models of a command are scored."""

    out: Path
    options: "ScoreOptions"
    concurrency: int = CONCURRENCY
    """Requests at once to a server."""
    overwrite: bool = False
    parallel: "Parallel | None" = None


def check_target(target: ScoredTarget, scoring: Scoring) -> None:
    """Raise `ArgapError` for a model that its ``config.json`` refuses, or for a server under ``torchrun``."""
    if isinstance(target, CheckpointTarget):
        from argap.device import resolve_device

        options = scoring.options
        if options.device_map and scoring.parallel is not None:
            raise ArgapError("`device_map` gives one process all GPUs; run without torchrun")
        check_loadable(
            target.checkpoint,
            options.backend,
            trust_remote_code=options.trust_remote_code,
            device=str(scoring.parallel.device) if scoring.parallel else resolve_device(options.device),
            device_map=options.device_map,
        )
    elif isinstance(target, LiveTarget):
        if scoring.parallel is not None:
            raise ArgapError(f"{target.name}: one process has it in memory; run without torchrun")
    elif scoring.parallel is not None:
        raise ArgapError(f"{target.name}: one process asks a server; run without torchrun")
    elif scoring.concurrency < 1:
        raise ArgapError(f"`concurrency` {scoring.concurrency}: expected a positive whole number")


def check_windows(target: ScoredTarget, data: EvaluationSet, scoring: Scoring) -> RunIdentity:
    """The identity of the model's run. Raises `ArgapError` for windows that it cannot take and a folder that holds
    another run."""
    folder = scoring.out / folder_name(target.name)
    if isinstance(target, ServerTarget):
        return check_server_identity(target.server, data, folder, scoring.overwrite)
    from argap.scorer import check_identity

    model = target.live if isinstance(target, LiveTarget) else target.checkpoint
    check_length(model, longest=int((data.offsets[1:] - data.offsets[:-1]).max()))
    return check_identity(model, data, folder, scoring.options, scoring.overwrite, scoring.parallel)


def score_target(target: ScoredTarget, data: EvaluationSet, source: SourceRecord, scoring: Scoring) -> Run:
    """The run of the model in its folder below ``out``. Raises what the scorer of its type raises."""
    folder = scoring.out / folder_name(target.name)
    if isinstance(target, ServerTarget):
        return score_server(
            target.server,
            data,
            target.tokenizer,
            folder,
            model_name=target.name,
            source=source,
            batch_size=scoring.options.batch_size,
            concurrency=scoring.concurrency,
            overwrite=scoring.overwrite,
        )
    from argap.scorer import score

    return score(
        target.live if isinstance(target, LiveTarget) else target.checkpoint,
        data,
        folder,
        model_name=target.name,
        source=source,
        options=scoring.options,
        overwrite=scoring.overwrite,
        parallel=scoring.parallel,
    )
