"""Resolve the names that users give to models: checkpoints to score, servers to ask, and finished runs; and models in
memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from argap.checkpoint import Checkpoint, find_checkpoint
from argap.errors import ArgapError, FormatError
from argap.gguf_file import gguf_tokenizer
from argap.live import LiveModel
from argap.per_model import NO_SETTING, PerModel
from argap.records import SourceRecord
from argap.references import find_reference
from argap.runs import OWN, Run, folder_name, open_run, tokenizer_of
from argap.server.client import is_address, parse_address
from argap.server.scoring import Server
from argap.tokenizer import Tokenizer, load_tokenizer

NOTHING = SourceRecord()


@dataclass(frozen=True)
class CheckpointTarget:
    """A checkpoint, with the settings recorded for it if it was named by a reference."""

    name: str
    checkpoint: Checkpoint
    recorded: SourceRecord = NOTHING
    tokenizers: PerModel = NO_SETTING

    @property
    def fingerprint(self) -> str:
        return self.checkpoint.fingerprint

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """As named for this model, else its own, else the one named for models that have none."""
        if self.name in self.tokenizers.named:
            return load_tokenizer(self.tokenizers.named[self.name])
        try:
            if self.checkpoint.gguf is not None:
                return gguf_tokenizer(self.checkpoint.gguf)
            return load_tokenizer(self.checkpoint.folder, name=self.checkpoint.name)
        except FormatError:
            raise
        except ArgapError:
            if self.tokenizers.default is None:
                raise
            return load_tokenizer(self.tokenizers.default)


@dataclass(frozen=True)
class ServerTarget:
    """A model of a server."""

    name: str
    server: Server
    tokenizers: PerModel = NO_SETTING
    recorded: SourceRecord = NOTHING

    @property
    def fingerprint(self) -> str:
        return self.server.fingerprint

    @cached_property
    def tokenizer(self) -> Tokenizer:
        source = self.tokenizers.of(self.name)
        if source is None:
            raise ArgapError(f"{self.name}: a server does not give its tokenizer; name it with `tokenizer=T`")
        return load_tokenizer(source)


@dataclass(frozen=True)
class LiveTarget:
    """A model in memory, and its tokenizer."""

    name: str
    live: LiveModel
    tokenizer: Tokenizer
    recorded: SourceRecord = NOTHING

    @property
    def fingerprint(self) -> str:
        return self.live.fingerprint


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


ScoredTarget = CheckpointTarget | ServerTarget | LiveTarget
"""What log-probs are computed for."""
Target = ScoredTarget | RunTarget
AnyTarget = TypeVar("AnyTarget", CheckpointTarget, ScoredTarget, Target)


def find_target(source: str, tokenizers: PerModel = NO_SETTING) -> CheckpointTarget:
    """The checkpoint given by a folder, a hub id or the name of a reference. An existing path wins over a name."""
    if is_address(source):
        raise ArgapError("a server is scored by `argap score` alone; expected a checkpoint")
    path = Path(source)
    known = find_reference(source)
    if known is not None and not path.exists():
        return CheckpointTarget(source, find_checkpoint(known.checkpoint), known, tokenizers)
    name = path.resolve().name if path.exists() else path.name
    return CheckpointTarget(name, find_checkpoint(source), tokenizers=tokenizers)


def find_targets(
    sources: Sequence[str | LiveTarget],
    reference: str | LiveTarget,
    model_names: Sequence[str] = (),
    tokenizers: PerModel = NO_SETTING,
) -> tuple[list[ScoredTarget], Target]:
    """The models and the reference, either of which may be a server, and the latter the folder of a finished run.

    ``model_names``: the model of each server, in the order of ``sources`` and then ``reference``. Raises `ArgapError`
    for more or fewer names than servers, and what `find_target` raises.
    """
    servers = [source for source in (*sources, reference) if isinstance(source, str) and is_address(source)]
    if len(servers) != len(model_names):
        raise ArgapError(
            f"{len(servers)} servers and {len(model_names)} names of their models; give `model_name` once for each "
            "server, as the server knows it"
        )
    names = iter(model_names)

    def find(source: str | LiveTarget) -> ScoredTarget:
        if isinstance(source, LiveTarget):
            return source
        if not is_address(source):
            return find_target(source, tokenizers)
        model = next(names)
        return ServerTarget(model.rpartition("/")[2] or model, Server(parse_address(source), model), tokenizers)

    models = [find(source) for source in sources]
    if isinstance(reference, str) and (Path(reference) / "run.json").is_file():
        return models, RunTarget(open_run(reference))
    return models, find(reference)


def with_distinct_names(targets: Sequence[AnyTarget]) -> list[AnyTarget]:
    """Prefix the parent folder to a checkpoint's name if that is already taken: ``final``, ``b/final``.

    Raises `ArgapError` if the names still clash.
    """
    seen: dict[str, AnyTarget] = {}
    for target in targets:
        if target.name in seen and isinstance(target, CheckpointTarget):
            target = replace(target, name=f"{target.checkpoint.folder.resolve().parent.name}/{target.name}")
        if target.name in seen:
            raise ArgapError(f"{target.name}: two models have this name; rename the folder of one")
        seen[target.name] = target
    return list(seen.values())


def distinct(models: Sequence[ScoredTarget], reference: Target) -> list[ScoredTarget]:
    """Drop repeated models and give the rest distinct names and run folders.

    Raises `ArgapError` if two models, or a model and the labels or figures, would share a folder.
    """
    different: list[Target] = [reference]
    for model in models:
        known = [other.fingerprint for other in different if not isinstance(other, RunTarget)]
        if model.fingerprint not in known:
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
    return [model for model in named[1:] if not isinstance(model, RunTarget)]
