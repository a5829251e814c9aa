"""What a name on the command line stands for: a checkpoint to score, or a run that is finished."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from argap.checkpoint import Checkpoint, find_checkpoint
from argap.errors import ArgapError
from argap.records import SourceRecord
from argap.references import find_reference
from argap.runs import Run, folder_name, open_run
from argap.tokenizer import Tokenizer, load_tokenizer

NOTHING = SourceRecord()


@dataclass(frozen=True)
class CheckpointTarget:
    """A checkpoint, and what is recorded with the name that stands for it."""

    name: str
    checkpoint: Checkpoint
    recorded: SourceRecord = NOTHING

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.checkpoint.folder, name=self.checkpoint.name)


@dataclass(frozen=True)
class RunTarget:
    """A finished run, scored before."""

    run: Run

    @property
    def name(self) -> str:
        return self.run.model

    @property
    def recorded(self) -> SourceRecord:
        return self.run.record.source

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.run.folder.parent / "labels", name=self.run.record.evaluation.tokenizer)


Target = CheckpointTarget | RunTarget
AnyTarget = TypeVar("AnyTarget", CheckpointTarget, RunTarget, Target)


def find_target(source: str) -> CheckpointTarget:
    """The checkpoint that a folder, a hub id or a reference's name stands for."""
    path = Path(source)
    known = find_reference(source)
    if known is not None and not path.exists():
        return CheckpointTarget(source, find_checkpoint(known.checkpoint), known)
    return CheckpointTarget(path.resolve().name if path.exists() else path.name, find_checkpoint(source))


def find_reference_target(source: str) -> Target:
    """As `find_target`; a folder of a finished run stands for that run."""
    return RunTarget(open_run(source)) if (Path(source) / "run.json").is_file() else find_target(source)


def with_distinct_names(targets: Sequence[AnyTarget]) -> list[AnyTarget]:
    """Put the parent folder's name before that of a checkpoint whose name is taken: ``a/final``, ``b/final``.

    Raises `ArgapError` where that does not make the names distinct.
    """
    seen: dict[str, AnyTarget] = {}
    for target in targets:
        if target.name in seen and isinstance(target, CheckpointTarget):
            target = replace(target, name=f"{target.checkpoint.folder.resolve().parent.name}/{target.name}")
        if target.name in seen:
            raise ArgapError(f"{target.name}: a second checkpoint of that name; rename its folder")
        seen[target.name] = target
    return list(seen.values())


def distinct(models: Sequence[CheckpointTarget], reference: Target) -> list[CheckpointTarget]:
    """The models without repetitions, with distinct names and distinct run folders.

    Raises `ArgapError` where two would share a run folder, or one would take the folder of the labels or figures.
    """
    different: list[Target] = [reference]
    for model in models:
        known = [other.checkpoint.fingerprint for other in different if isinstance(other, CheckpointTarget)]
        if model.checkpoint.fingerprint not in known:
            different.append(model)
    taken = {"labels": "the labels", "figures": "the report's figures"}
    named = with_distinct_names(different)
    for model in named:
        if isinstance(model, RunTarget):  # its folder is elsewhere
            continue
        folder = folder_name(model.name)
        if folder in taken:
            raise ArgapError(
                f"{model.name}: its run and {taken[folder]} would share the folder {folder}; "
                "rename the checkpoint's folder"
            )
        taken[folder] = f"the run of {model.name}"
    return [model for model in named[1:] if isinstance(model, CheckpointTarget)]
