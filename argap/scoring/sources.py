"""Resolve the names that users give to models: checkpoints to score, servers to ask, and finished runs; and models in
memory."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, TypeVar

from argap.checkpoints.find import Checkpoint, find_checkpoint
from argap.checkpoints.gguf import gguf_tokenizer
from argap.checkpoints.live import LiveModel
from argap.checkpoints.references import find_reference
from argap.errors import ArgapError, FormatError
from argap.files.resumable import folder_name
from argap.records import SourceRecord
from argap.runtime.progress import say
from argap.scoring.per_model import NO_SETTINGS, OWN_BOS, ModelSettings
from argap.scoring.server.client import is_address, parse_address
from argap.scoring.server.scoring import Server
from argap.text.tokenizer import Tokenizer, load_tokenizer
from argap.tokens.runs import Run, open_run, tokenizer_of

NOTHING = SourceRecord()
NAMED = re.compile(r"([^/=:]+)=(.+)", re.DOTALL)
"""``NAME=CKPT``."""


@dataclass(frozen=True)
class CheckpointTarget:
    """A checkpoint, with the settings recorded for it if it was named by a reference."""

    name: str
    checkpoint: Checkpoint
    recorded: SourceRecord = NOTHING
    settings: ModelSettings = NO_SETTINGS
    named: bool = False
    """Whether the user chose the name. Such a model has its own row, even with the weights of another."""

    @property
    def fingerprint(self) -> str:
        return self.checkpoint.fingerprint

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """As named for this model, else its own, else the one named for models that have none."""
        given = self.settings.tokenizer
        if self.name in given.named:
            return load_tokenizer(given.named[self.name])
        try:
            if self.checkpoint.gguf is not None:
                return gguf_tokenizer(self.checkpoint.gguf)
            return load_tokenizer(self.checkpoint.folder, name=self.checkpoint.name)
        except FormatError:
            raise
        except ArgapError as error:
            if given.default is None:
                raise ArgapError(f"{error}; save one there, or name one to `argap score` by `tokenizer=T`") from None
            return load_tokenizer(given.default)


@dataclass(frozen=True)
class ServerTarget:
    """A model of a server."""

    name: str
    server: Server
    settings: ModelSettings = NO_SETTINGS
    recorded: SourceRecord = NOTHING
    named: bool = False

    @property
    def fingerprint(self) -> str:
        return self.server.fingerprint

    @cached_property
    def tokenizer(self) -> Tokenizer:
        source = self.settings.tokenizer.of(self.name)
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
    named: bool = False

    @property
    def fingerprint(self) -> str:
        return self.live.fingerprint


@dataclass(frozen=True)
class RunTarget:
    """A finished run, whose log-probs are reused."""

    run: Run
    named = False

    @property
    def name(self) -> str:
        return self.run.model

    @property
    def fingerprint(self) -> str:
        """Of the run, which repeats no model."""
        return str(self.run.folder)

    @property
    def recorded(self) -> SourceRecord:
        return self.run.record.source

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return tokenizer_of(self.run)


def bos_of(target: "ScoredTarget", asked: str | None) -> int | None:
    """The id of the token that ``asked`` puts before each window of the model; None for none.

    Raises `ArgapError` for a token that its vocabulary does not have.
    """
    if asked is None:
        return None
    tokenizer = target.tokenizer
    found = tokenizer.bos if asked == OWN_BOS else tokenizer.vocabulary.get(asked)
    if found is None:
        what = "its tokenizer has no BOS" if asked == OWN_BOS else "no token of its vocabulary"
        raise ArgapError(f"{target.name}: `bos` {asked}: {what}; expected {OWN_BOS} or a token's text")
    return found


ScoredTarget = CheckpointTarget | ServerTarget | LiveTarget
"""What log-probs are computed for."""
Target = ScoredTarget | RunTarget


class Named(Protocol):
    """What tells models apart."""

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def named(self) -> bool: ...


AnyTarget = TypeVar("AnyTarget", bound=Named)


def find_target(source: str, settings: ModelSettings = NO_SETTINGS) -> CheckpointTarget:
    """The checkpoint given by a folder, a hub id or the name of a reference, or by ``NAME=`` and one of these.

    An existing path wins over a name.
    """
    given, source = split_name(source)
    if is_address(source):
        raise ArgapError("a server is scored by `argap score` alone; expected a checkpoint")
    path = Path(source)
    known = find_reference(source)
    if known is not None and not path.exists():
        name, checkpoint, recorded = source, find_checkpoint(known.checkpoint), known
    else:
        name = path.resolve().name if path.exists() else path.name
        checkpoint, recorded = find_checkpoint(source), NOTHING
    return CheckpointTarget(given or name, checkpoint, recorded, settings, named=given is not None)


def split_name(source: str) -> tuple[str | None, str]:
    """The parts of ``NAME=CKPT``; the name is None where there is none. A path that exists may have a ``=``.

    >>> split_name("bf16=org/model"), split_name("runs/lr=0.1/final")
    (('bf16', 'org/model'), (None, 'runs/lr=0.1/final'))
    """
    match = NAMED.fullmatch(source)
    return (None, source) if match is None or Path(source).exists() else (match[1], match[2])


def with_name(name: str, source: str) -> str:
    """``NAME=CKPT``. Raises `ArgapError` for a name that `split_name` would not find again."""
    if split_name(both := f"{name}={source}") != (name, source):
        raise ArgapError(f"model name {name!r}: expected a plain name without /, = and :")
    return both


def find_targets(
    sources: Sequence[str | LiveTarget],
    reference: str | LiveTarget,
    model_names: Sequence[str],
    settings: ModelSettings,
) -> tuple[list[ScoredTarget], Target]:
    """The models and the reference, either of which may be a server, and the latter the folder of a finished run.

    ``model_names``: the model of each server, in the order of ``sources`` and then ``reference``. Raises `ArgapError`
    for more or fewer names than servers, and what `find_target` raises.
    """
    given = [split_name(source)[1] for source in (*sources, reference) if isinstance(source, str)]
    servers = [source for source in given if is_address(source)]
    if len(servers) != len(model_names):
        raise ArgapError(
            f"{len(servers)} servers and {len(model_names)} names of their models; give `model_name` once for each "
            "server, as the server knows it"
        )
    names = iter(model_names)

    def find(source: str | LiveTarget) -> ScoredTarget:
        if isinstance(source, LiveTarget):
            return source
        own, address = split_name(source)
        if not is_address(address):
            return find_target(source, settings)
        model = next(names)
        name = own or model.rpartition("/")[2] or model
        return ServerTarget(name, Server(parse_address(address), model), settings, named=own is not None)

    models = [find(source) for source in sources]
    if isinstance(reference, str) and (Path(reference) / "run.json").is_file():
        return models, RunTarget(open_run(reference))
    return models, find(reference)


def distinct(
    targets: Sequence[AnyTarget], settings: ModelSettings = NO_SETTINGS, folders: Mapping[str, str] | None = None
) -> list[AnyTarget]:
    """The model of each target: the first of those that repeat one, of which a line is printed, under a name and with a
    run folder that no other model has.

    Repeated: the same weights and settings, and no name of its own. A checkpoint whose name is taken has its parent
    folder's before it: ``final``, ``b/final``. ``folders``: those that hold something else, and what. Raises
    `ArgapError` for models that still share a name or folder.
    """
    models: list[AnyTarget] = []
    known: dict[tuple[str | None, ...], AnyTarget] = {}
    for target in targets:
        same = (target.fingerprint, *settings.of(target.name), target.name if target.named else None)
        if same in known:
            first = known[same].name
            twice = "listed twice" if first == target.name else f"the same model as {first}"
            say(f"{target.name}: {twice}, scored once; NAME=CKPT gives it a row of its own")
        else:
            names = {model.name for model in known.values()}
            if target.name in names and isinstance(target, CheckpointTarget) and not target.named:
                target = replace(target, name=f"{target.checkpoint.folder.resolve().parent.name}/{target.name}")
            if target.name in names:
                raise ArgapError(f"{target.name}: two models have this name; write NAME=CKPT for one")
            known[same] = target
        models.append(known[same])
    taken = dict(folders or {})
    for model in known.values():
        if isinstance(model, RunTarget):  # its folder is elsewhere
            continue
        folder = folder_name(model.name)
        if folder in taken:
            raise ArgapError(
                f"{model.name}: its run and {taken[folder]} would share the folder {folder}; "
                "rename the checkpoint's folder, or write NAME=CKPT"
            )
        taken[folder] = f"the run of {model.name}"
    return models
