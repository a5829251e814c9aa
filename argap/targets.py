"""Resolve the names that users give to models: checkpoints to score, and finished runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from argap.checkpoint import Checkpoint, find_checkpoint
from argap.errors import ArgapError
from argap.records import SourceRecord
from argap.references import find_reference
from argap.runs import OWN, Run, folder_name, open_run, tokenizer_of
from argap.tokenizer import Tokenizer, load_tokenizer

NOTHING = SourceRecord()


@dataclass(frozen=True)
class CheckpointTarget:
    """A checkpoint, with the settings recorded for it if it was named by a reference."""

    name: str
    checkpoint: Checkpoint
    recorded: SourceRecord = NOTHING

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer(self.checkpoint.folder, name=self.checkpoint.name)


@dataclass(frozen=True)
class RunTarget:
    """A finished run, whose log-probs are reused."""

    run: Run

    @property
    def name(self) -> str:
        return self.run.model

    @property
    def recorded(self) -> SourceRecord:
        return self.run.record.source

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return tokenizer_of(self.run)


Target = CheckpointTarget | RunTarget
AnyTarget = TypeVar("AnyTarget", CheckpointTarget, RunTarget, Target)


def find_target(source: str) -> CheckpointTarget:
    """The checkpoint given by a folder, a hub id or the name of a reference. An existing path wins over a name."""
    path = Path(source)
    known = find_reference(source)
    if known is not None and not path.exists():
        return CheckpointTarget(source, find_checkpoint(known.checkpoint), known)
    return CheckpointTarget(path.resolve().name if path.exists() else path.name, find_checkpoint(source))


def find_reference_target(source: str) -> Target:
    """Like `find_target`, but also accepts the folder of a finished run."""
    return RunTarget(open_run(source)) if (Path(source) / "run.json").is_file() else find_target(source)


def with_distinct_names(targets: Sequence[AnyTarget]) -> list[AnyTarget]:
    """Prefix the parent folder to a checkpoint's name if that is already taken: ``final``, ``b/final``.

    Raises `ArgapError` if the names still clash.
    """
    seen: dict[str, AnyTarget] = {}
    for target in targets:
        if target.name in seen and isinstance(target, CheckpointTarget):
            target = replace(target, name=f"{target.checkpoint.folder.resolve().parent.name}/{target.name}")
        if target.name in seen:
            raise ArgapError(f"{target.name}: two checkpoints have this name; rename the folder of one")
        seen[target.name] = target
    return list(seen.values())


def distinct(models: Sequence[CheckpointTarget], reference: Target) -> list[CheckpointTarget]:
    """Drop repeated checkpoints and give the rest distinct names and run folders.

    Raises `ArgapError` if two models, or a model and the labels or figures, would share a folder.
    """
    different: list[Target] = [reference]
    for model in models:
        known = [other.checkpoint.fingerprint for other in different if isinstance(other, CheckpointTarget)]
        if model.checkpoint.fingerprint not in known:
            different.append(model)
    taken = {"labels": "the labels", "figures": "the report's figures", OWN: "the runs of other tokenizers"}
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
