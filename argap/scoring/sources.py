"""Where the log-probs of a model come from: the one protocol, what tells models apart, and finished runs."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

from argap.errors import ArgapError
from argap.evaluation.windows import EvaluationSet
from argap.files.resumable import case_aside, folder_name
from argap.records import Bos, RunIdentity, SourceRecord
from argap.runtime.progress import say
from argap.scoring.config import DEFAULT, ScoreConfig
from argap.text.tokenizer import Tokenizer
from argap.tokens.runs import Run, tokenizer_of

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from argap.runtime.torchrun import Parallel


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
    def bos(self) -> Bos:
        """Return what is put before each window. Raises `ArgapError` if the tokenizer lacks it."""
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


class Local(Source, Protocol):
    """A source whose model this machine runs (`argap.scoring.scorer`): a checkpoint or a model in memory."""

    @property
    def config(self) -> ScoreConfig: ...
    @property
    def origin(self) -> str:
        """The model as the user wrote it."""
        ...

    @property
    def without_bos(self) -> bool:
        """Whether it was trained on windows without a BOS, whatever its tokenizer does."""
        ...

    @property
    def weights(self) -> int:
        """About how many weights it has, by which the work on a processor is divided."""
        ...

    @property
    def beside(self) -> "Local | None":
        """The model that KL is taken from, scored beside this one; None without `kl` (`argap.scoring.divergence`)."""
        ...

    @property
    def shared(self) -> bool:
        """Whether something else uses the model too, so that it must be left as it was."""
        ...

    def device(self) -> "torch.device":
        """Return the device of a single process, made current where the model is yet to be loaded."""
        ...

    def loaded(self, device: str) -> "AbstractContextManager[PreTrainedModel]":
        """Return a block in which the model is in evaluation mode on ``device``."""
        ...


AnyNamed = TypeVar("AnyNamed", bound=Named)


def distinct(models: Sequence[AnyNamed], config: ScoreConfig = DEFAULT) -> list[AnyNamed]:
    """Return each model under a unique name, and for a repeated one its first occurrence.

    A model repeats another if it has the same weights and options and no name of its own; one line says so. If a
    checkpoint's name is taken, its parent folder's is prepended: ``final``, ``b/final``. Raises `ArgapError` for models
    that still share a name, case aside (`argap.files.resumable.case_aside`).
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
            names = {each.name.lower(): each.name for each in known.values()}
            own = model.qualified() if model.name.lower() in names else model
            if other := names.get(own.name.lower()):
                aside = case_aside(own.name, other)
                raise ArgapError(f"{own.name}: two models have this name{aside}; write NAME=CKPT for one")
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
