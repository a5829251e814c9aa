"""Define the source of a model's log-probs, and find the sources that users name."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.references import find_reference
from argap.errors import ArgapError
from argap.evaluation.windows import EvaluationSet
from argap.files.resumable import folder_name
from argap.records import RunIdentity, SourceRecord
from argap.runtime.progress import say
from argap.scoring.checkpoint import CheckpointSource
from argap.scoring.config import DEFAULT, ScoreConfig
from argap.scoring.finished import FinishedSource
from argap.scoring.server.client import is_address, parse_address
from argap.scoring.server.scoring import Server
from argap.scoring.server.source import ServerSource
from argap.text.tokenizer import Tokenizer
from argap.tokens.runs import Run, open_run
from argap.tokens.segment_runs import check_tokens

if TYPE_CHECKING:
    from argap.runtime.torchrun import Parallel

NAMED = re.compile(r"([^/=:]+)=(.+)", re.DOTALL)
"""``NAME=CKPT``."""


class Named(Protocol):
    """A model with a name and a fingerprint."""

    @property
    def name(self) -> str: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def named(self) -> bool:
        """Return whether the user chose the name. Such a model has its own row, even with the weights of another."""
        ...

    def qualified(self) -> Self:
        """Return the same model under a longer name, if it has one, for use when its own is taken."""
        ...


class Source(Named, Protocol):
    """A source of the log-probs of one model: a checkpoint, a model in memory, a server or a finished run.

    Call in this order: `check`; with the text, `check_windows` and `identity`; then `score`. ``parallel``: this process
    among those of ``torchrun``.
    """

    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def recorded(self) -> SourceRecord:
        """Return the text and the index recorded with the model, if any."""
        ...

    @property
    def bos(self) -> int | None:
        """Return the id of the token put before each window. Raises `ArgapError` if the tokenizer lacks it."""
        ...

    @property
    def longest(self) -> int | None:
        """Return the tokens of the longest window, BOS included; None without a known limit."""
        ...

    @property
    def finished(self) -> Run | None:
        """Return the finished run, which fixes the windows of the text; None if a model is still to be run."""
        ...

    def check(self, parallel: "Parallel | None") -> None:
        """Raise `ArgapError` for anything that can be refused before the text is read."""
        ...

    def check_windows(self, data: EvaluationSet, parallel: "Parallel | None") -> None:
        """Raise `ArgapError` for windows that the model cannot take."""
        ...

    def identity(self, data: EvaluationSet, parallel: "Parallel | None") -> RunIdentity:
        """Return the identity of the run that `score` returns."""
        ...

    def score(self, data: EvaluationSet, folder: Path, text: SourceRecord, parallel: "Parallel | None" = None) -> Run:
        """Return the run over ``data``, written to ``folder`` or finished before.

        ``text``: where ``data`` and the index came from. Raises `ArgapError` for a model that returns no log-probs or
        impossible ones, `MismatchError` if the folder holds another run.
        """
        ...


AnyNamed = TypeVar("AnyNamed", bound=Named)


def find_source(source: str, config: ScoreConfig = DEFAULT) -> CheckpointSource:
    """Return the checkpoint of a folder, a hub id or a named reference, optionally with ``NAME=`` before it.

    An existing path takes precedence over a reference.
    """
    given, source = split_name(source)
    if is_address(source):
        raise ArgapError("only `argap score` takes a server; expected a checkpoint")
    path = Path(source)
    known = find_reference(source)
    if known is not None and not path.exists():
        name, checkpoint, recorded = source, find_checkpoint(known.checkpoint), known
    else:
        name = path.resolve().name if path.exists() else path.name
        checkpoint, recorded = find_checkpoint(source), SourceRecord()
    return CheckpointSource(given or name, checkpoint, config, recorded, named=given is not None)


def find_checkpoints(sources: Iterable[str], config: ScoreConfig = DEFAULT) -> list[CheckpointSource]:
    """Return the checkpoints of ``sources`` without repetitions (`distinct`)."""
    return once(distinct([find_source(source, config) for source in sources], config))


def find_sources(
    sources: Sequence[str | Source], reference: str | Source, config: ScoreConfig
) -> tuple[Source, list[Source]]:
    """Return the reference and the other models (`distinct`), each once.

    Any may be a server, and the reference may be the folder of a finished run. ``config`` names the models of servers
    in the order of ``sources`` and then ``reference``. Raises `ArgapError` if there are more or fewer names than
    servers, for a run of segments, and whatever `find_source` raises.
    """
    given = [split_name(source)[1] for source in (*sources, reference) if isinstance(source, str)]
    servers = [source for source in given if is_address(source)]
    if len(servers) != len(config.model_name):
        raise ArgapError(
            f"{len(servers)} servers and {len(config.model_name)} names of their models; give `model_name` once for "
            "each server, as the server knows it"
        )
    names = iter(config.model_name)

    def find(source: str | Source) -> Source:
        if not isinstance(source, str):
            return source
        own, address = split_name(source)
        if not is_address(address):
            return find_source(source, config)
        model = next(names)
        name = own or model.rpartition("/")[2] or model
        return ServerSource(name, Server(parse_address(address), model), config, named=own is not None)

    models: list[Source] = [find(source) for source in sources]
    if isinstance(reference, str) and (Path(reference) / "run.json").is_file():
        run = open_run(reference)
        check_tokens([run])
        first: Source = FinishedSource(run)
    else:
        first = find(reference)
    first, *models = once(distinct([first, *models], config))
    return first, models


def split_name(source: str) -> tuple[str | None, str]:
    """Split ``NAME=CKPT``; the name is None if there is none. An existing path may contain ``=``.

    >>> split_name("bf16=org/model"), split_name("runs/lr=0.1/final")
    (('bf16', 'org/model'), (None, 'runs/lr=0.1/final'))
    """
    match = NAMED.fullmatch(source)
    return (None, source) if match is None or Path(source).exists() else (match[1], match[2])


def with_name(name: str, source: str) -> str:
    """Return ``NAME=CKPT``. Raises `ArgapError` for a name that `split_name` would not recover."""
    if split_name(both := f"{name}={source}") != (name, source):
        raise ArgapError(f"model name {name!r}: expected a plain name without /, = and :")
    return both


def distinct(models: Sequence[AnyNamed], config: ScoreConfig = DEFAULT) -> list[AnyNamed]:
    """Return each model under a unique name, and for a repeated one its first occurrence.

    A model repeats another if it has the same weights and options and no name of its own; one line says so. If a
    checkpoint's name is taken, its parent folder's is prepended: ``final``, ``b/final``. Raises `ArgapError` for models
    that still share a name.
    """
    found: list[AnyNamed] = []
    known: dict[tuple[str | None, ...], AnyNamed] = {}
    for model in models:
        same = (model.fingerprint, *config.of_model(model.name), model.name if model.named else None)
        if same in known:
            first = known[same].name
            twice = "listed twice" if first == model.name else f"the same model as {first}"
            say(f"{model.name}: {twice}, scored once; NAME=CKPT gives it a row of its own")
        else:
            names = {each.name for each in known.values()}
            own = model.qualified() if model.name in names else model
            if own.name in names:
                raise ArgapError(f"{own.name}: two models have this name; write NAME=CKPT for one")
            known[same] = own
        found.append(known[same])
    return found


def once(models: Iterable[AnyNamed]) -> list[AnyNamed]:
    """Return the models with different names, in order of first occurrence."""
    return list({each.name: each for each in models}.values())


def check_folders(names: Iterable[str], folders: Mapping[str, str] | None = None) -> None:
    """Raise `ArgapError` if the runs of two models would share a folder, or use one of ``folders``.

    ``folders``: other content by folder name.
    """
    taken = dict(folders or {})
    for name in names:
        folder = folder_name(name)
        if folder in taken:
            raise ArgapError(
                f"{name}: its run and {taken[folder]} would share the folder {folder}; "
                "rename the checkpoint's folder, or write NAME=CKPT"
            )
        taken[folder] = f"the run of {name}"
