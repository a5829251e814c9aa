"""Run a model on this machine: load a checkpoint, or score a model in memory and leave its mode as it was."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from argap.checkpoints.find import Checkpoint
from argap.checkpoints.gguf.tokenizer import gguf_tokenizer
from argap.checkpoints.live import LiveModel, undisturbed
from argap.checkpoints.load import check_loadable, load_model, runs_native
from argap.errors import ArgapError, FormatError
from argap.evaluation.windows import EvaluationSet
from argap.records import RunIdentity, SourceRecord
from argap.runtime.progress import say
from argap.scoring.bos import Configured
from argap.scoring.config import DEFAULT, ScoreConfig
from argap.scoring.divergence import kl_reference
from argap.text.tokenizer import Tokenizer, load_tokenizer
from argap.tokens.runs import Run

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from argap.runtime.torchrun import Parallel
    from argap.scoring.sources import Local


Backend = Literal["native", "hf", "vllm", "sglang", "memory"]
NOTHING = SourceRecord()


class RunHere(Configured):
    """A source whose model `argap.scoring.scorer` runs."""

    def score(
        self: "Local", data: EvaluationSet, folder: Path, text: SourceRecord, parallel: "Parallel | None" = None
    ) -> Run:
        from argap.scoring.scorer import score

        return score(self, data, folder, text, parallel)


@dataclass(frozen=True)
class CheckpointSource(RunHere):
    """A checkpoint under its row's name, with the text and index recorded with it if it is a named reference."""

    name: str
    checkpoint: Checkpoint
    config: ScoreConfig = DEFAULT
    recorded: SourceRecord = NOTHING
    named: bool = False
    beside: "Local | None" = None
    finished = None
    shared = False

    @property
    def fingerprint(self) -> str:
        return self.checkpoint.fingerprint

    @property
    def origin(self) -> str:
        return self.checkpoint.name

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        """Load the tokenizer given for this model, else its own, else the one given for models without one."""
        given = self.config.tokenizer
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
                raise ArgapError(f"{error}; save one there, or name one to `argap score` with `tokenizer=T`") from None
            return load_tokenizer(given.default)

    @property
    def without_bos(self) -> bool:
        return self.checkpoint.without_bos

    @property
    def weights(self) -> int:
        return self.checkpoint.weights

    @property
    def dtype(self) -> str:
        """Return the dtype as requested; ``auto`` is resolved on a device."""
        return self.config.dtype.of(self.name) or "auto"

    @property
    def longest(self) -> int | None:
        return self.config.longest(self.name, self.checkpoint.longest)

    def qualified(self) -> Self:
        """Put the name of the parent folder before one that the user did not choose."""
        if self.named:
            return self
        return replace(self, name=f"{self.checkpoint.folder.resolve().parent.name}/{self.name}")

    def check(self, parallel: "Parallel | None") -> None:
        if self.config.device_map and parallel is not None:
            raise ArgapError("`device_map` gives one process all GPUs; run without torchrun")
        device = self._device(parallel)
        check_loadable(self.checkpoint, self.config.backend, device=device, device_map=self.config.device_map)

    def check_windows(self, data: EvaluationSet, parallel: "Parallel | None") -> None:
        """Raise `ArgapError` for windows too long for the model; say so if they are longer than those of training."""
        from argap.scoring.scorer import check_length

        check_length(self.origin, self.longest, data, bos=self.bos)
        trained = self.checkpoint.trained_on
        if trained is not None and data.longest > trained and (parallel is None or parallel.is_main):
            say(
                f"{self.name}: trained on windows of {trained:,} tokens, scored on windows of "
                f"{data.longest:,}; positions beyond {trained:,} are new to it, --seq-len {trained} leaves them out"
            )

    def identity(self, data: EvaluationSet, parallel: "Parallel | None") -> RunIdentity:
        from argap.runtime.device import resolve_dtype

        device = self._device(parallel)
        dtype, kind = resolve_dtype(self.dtype, device), device.partition(":")[0]
        return _identity(self, data, parallel, dtype, kind, self._backend())

    def _backend(self) -> Backend:
        """Return what runs the checkpoint."""
        return "native" if runs_native(self.checkpoint, self.config.backend) else "hf"

    def _device(self, parallel: "Parallel | None") -> str:
        from argap.runtime.device import resolve_device

        return str(parallel.device) if parallel else resolve_device(self.config.device)

    def device(self) -> "torch.device":
        from argap.runtime.device import use_device

        return use_device(self.config.device)

    @contextmanager
    def loaded(self, device: str) -> "Iterator[PreTrainedModel]":
        """Load the model, in evaluation mode."""
        from argap.runtime.device import DTYPES, resolve_dtype

        yield load_model(
            self.checkpoint,
            dtype=DTYPES[resolve_dtype(self.dtype, device)],
            device=device,
            backend=self.config.backend,
            device_map=self.config.device_map,
        )


@dataclass(frozen=True)
class MemorySource(RunHere):
    """A model in memory, and its tokenizer."""

    live: LiveModel
    tokenizer: Tokenizer
    config: ScoreConfig = DEFAULT
    named: bool = False
    beside: "Local | None" = None
    recorded = NOTHING
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
        return _identity(self, data, parallel, self.live.dtype, self.device().type, "memory")

    def device(self) -> "torch.device":
        return self.live.device

    @contextmanager
    def loaded(self, device: str) -> "Iterator[PreTrainedModel]":
        """Yield the model in evaluation mode; restore its own mode afterwards."""
        with undisturbed(self.live.model):
            yield self.live.model


def _identity(
    source: "Local", data: EvaluationSet, parallel: "Parallel | None", dtype: str, device: str, backend: Backend
) -> RunIdentity:
    return RunIdentity(
        checkpoint=source.fingerprint,
        evaluation_set=data.fingerprint,
        dtype=dtype,
        device=device,
        batch_size=source.config.batch_size,
        backend=backend,
        bos=source.bos,
        rank=source.config.rank,
        entropy=source.config.kl,
        kl=kl_reference(source, data, parallel),
    )
