"""What a name on the command line stands for: a checkpoint to score or a finished run, with its settings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from argap.checkpoint import Checkpoint, find_checkpoint
from argap.errors import ArgapError
from argap.evaluation import Packing
from argap.references import find_reference
from argap.runs import Run, folder_name, open_run
from argap.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class Settings:
    """What to evaluate on. None: not given (on a command line) or not recorded (with a reference)."""

    data: tuple[str, ...] = ()
    index: str | None = None
    seq_len: int | None = None
    packing: Packing | None = None
    limit_tokens: int | None = None
    text_column: str | None = None
    token_dtype: str | None = None

    def over(self, recorded: "Settings") -> "Settings":
        """These settings, with what was recorded in the places that are empty."""
        own = {k: v for k, v in vars(self).items() if v not in (None, ())}
        return replace(recorded, **own)


@dataclass(frozen=True)
class Target:
    """A model to compare: a checkpoint to score, or a run that is finished."""

    name: str
    checkpoint: Checkpoint | None
    run: Run | None
    settings: Settings

    @property
    def tokenizer(self) -> Tokenizer:
        if self.checkpoint is not None:
            return load_tokenizer(self.checkpoint.folder, name=self.checkpoint.name)
        assert self.run is not None
        return load_tokenizer(self.run.folder.parent / "labels", name=self.run.record["evaluation"]["tokenizer"])


def find_target(source: str, *, reference: bool) -> Target:
    """What a name, a folder or a hub id on the command line stands for."""
    path = Path(source)
    if reference and (path / "run.json").is_file():
        run = open_run(path)
        recorded = dict(run.record["source"])
        recorded["data"] = tuple(recorded["data"])
        return Target(run.model, None, run, Settings(**recorded))
    known = find_reference(source)
    if known is not None and not path.exists():
        settings = {k: v for k, v in vars(known).items() if k != "checkpoint"}
        return Target(source, find_checkpoint(known.checkpoint), None, Settings(**settings))
    return Target(path.resolve().name if path.exists() else path.name, find_checkpoint(source), None, Settings())


def told_apart(targets: Sequence[Target]) -> list[Target]:
    """A checkpoint with the name of one before it gets its parent folder's name too.

    Raises `ArgapError` where that does not tell them apart.
    """
    seen: dict[str, Target] = {}
    for target in targets:
        if target.name in seen and target.checkpoint is not None:
            target = replace(target, name=f"{target.checkpoint.folder.resolve().parent.name}/{target.name}")
        if target.name in seen:
            raise ArgapError(f"{target.name}: a second checkpoint of that name; rename its folder")
        seen[target.name] = target
    return list(seen.values())


def distinct(models: Sequence[Target], reference: Target) -> list[Target]:
    """Drop repetitions of a checkpoint; tell apart different ones of the same name by their folders.

    Raises `ArgapError` where two would still share a run folder, or one would take that of the labels or figures.
    """
    different = [reference]
    for model in models:
        assert model.checkpoint is not None
        fingerprint = model.checkpoint.fingerprint
        if all(o.checkpoint is None or o.checkpoint.fingerprint != fingerprint for o in different):
            different.append(model)
    kept = told_apart(different)[1:]
    taken = {"labels": "the labels", "figures": "the report's figures"}
    for model in (reference, *kept):
        if model.run is not None:  # stays where it is
            continue
        folder = folder_name(model.name)
        if folder in taken:
            raise ArgapError(
                f"{model.name}: its run and {taken[folder]} would share the folder {folder}; "
                "rename the checkpoint's folder"
            )
        taken[folder] = f"the run of {model.name}"
    return kept
