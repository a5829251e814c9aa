"""Declare the options of `argap score` once: name, type, default and help.

The command's flags, `argap.score` and the YAML files of series all build a `ScoreConfig`. Options that decide which
tokens are scored are declared in `argap.records.EvaluationSpec`, which run folders record.
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Annotated, Any, Literal

from msgspec import Meta

from argap.errors import ArgapError
from argap.files.configs import whole_number
from argap.files.record import Record
from argap.metric.threshold import PAPER_THRESHOLD, Threshold, parse_threshold
from argap.records import EvaluationSpec
from argap.scoring.per_model import NO_SETTING, PerModel, per_model

LARGEST_BATCH = 2**20
"""Windows."""
LARGEST_LENGTH = 2**30
"""Tokens."""
Engine = Literal["vllm", "sglang"]
"""Inference engines that run checkpoints (`argap.scoring.server.engines`)."""
BY_MODEL = ("dtype", "tokenizer", "bos", "max_length")
"""Options that can be set for one model."""


class ScoreConfig(Record, frozen=True, kw_only=True):
    """How models are scored and compared.

    The description of a field is its help on the command line; ``extra`` has the flag and the placeholder if these do
    not follow from its name and type.
    """

    text: EvaluationSpec = EvaluationSpec()
    """The text and its windows. Missing fields are taken from the record of the reference."""
    index: Annotated[
        str | None, Meta(description="Bigram index of the training text, also hf://…", extra={"metavar": "DIR"})
    ] = None
    threshold: Annotated[
        Threshold,
        Meta(
            description="Maximum exposures of an AR hit's bigram; scaled: 1,250 per 10 B tokens read in training.",
            extra={"metavar": "N|scaled"},
        ),
    ] = PAPER_THRESHOLD
    model_name: Annotated[
        tuple[str, ...],
        Meta(
            description="The server's name for its model; once for each server.",
            extra={"flag": "--model", "metavar": "NAME"},
        ),
    ] = ()
    tokenizer: Annotated[
        PerModel,
        Meta(
            description="Tokenizer of servers and of CKPTs without one; NAME=T replaces that of CKPT NAME.",
            extra={"metavar": "[NAME=]T"},
        ),
    ] = NO_SETTING
    bos: Annotated[
        PerModel,
        Meta(
            description="Token before each window: own (the tokenizer's BOS), none, or a token's text [what the "
            "tokenizer puts there]; NAME=TOKEN for one model.",
            extra={"metavar": "[NAME=]TOKEN"},
        ),
    ] = NO_SETTING
    max_length: Annotated[
        PerModel,
        Meta(
            description="Longest window that a model takes [what its config.json says]; NAME=N for one model.",
            extra={"metavar": "[NAME=]N"},
        ),
    ] = NO_SETTING
    concurrency: Annotated[int, Meta(ge=1, description="Parallel requests to a server.", extra={"metavar": "N"})] = 8
    dtype: Annotated[
        PerModel,
        Meta(
            description="auto (float32 on a CPU, else bfloat16), float32, bfloat16, float16; NAME=TYPE for one model.",
            extra={"metavar": "[NAME=]TYPE"},
        ),
    ] = PerModel("auto")
    device: Annotated[str, Meta(description="auto, cpu, cuda or cuda:N.", extra={"metavar": "auto|cpu|cuda[:N]"})] = (
        "auto"
    )
    device_map: Annotated[
        bool,
        Meta(description="Spread models over all GPUs, then the CPU's memory.", extra={"flag": "--device-map"}),
    ] = False
    batch_size: Annotated[
        int | Literal["auto"],
        Meta(description="Windows per batch, or auto (halved when out of memory).", extra={"metavar": "N|auto"}),
    ] = "auto"
    rank: Annotated[
        bool, Meta(description="Also keep the rank of each token in the vocabulary.", extra={"flag": "--rank"})
    ] = False
    kl: Annotated[
        bool,
        Meta(
            description="Also keep KL(reference ‖ model) and the entropies of each token, from both models at once.",
            extra={"flag": "--kl"},
        ),
    ] = False
    short_context: Annotated[
        int | None,
        Meta(
            ge=2,
            description="Also score with N tokens of context, for the column gain (about twice the tokens again).",
            extra={"metavar": "N"},
        ),
    ] = None
    context_curve: Annotated[
        bool,
        Meta(
            description="Also with 2N, 4N, … tokens below a window's, for the context-use curve.",
            extra={"flag": "--context-curve"},
        ),
    ] = False
    backend: Annotated[
        Literal["auto", "native", "hf", Engine],
        Meta(
            description="Run known families with argap's own code (native) or with transformers (hf), or all by an "
            "engine (vllm, sglang)."
        ),
    ] = "auto"
    base: Annotated[
        str | None,
        Meta(description="Also show the share of this model's gap that the others close.", extra={"metavar": "MODEL"}),
    ] = None
    slices: Annotated[
        str | Mapping[str, str] | None,
        Meta(
            description="YAML with more slices of the tokens to show [those of the earlier result].",
            extra={"metavar": "FILE"},
        ),
    ] = None
    overwrite: Annotated[bool, Meta(description="Replace earlier output of other inputs.")] = False

    @classmethod
    def of(cls, **given: Any) -> "ScoreConfig":
        """Build the configuration from options as users write them; None means not given.

        Accepts one string for a list of strings, ``NAME=VALUE`` or a mapping for a `PerModel`, text for a number.
        Raises `ArgapError` for text that cannot be read as the option.
        """
        own = {name: READ.get(name, _as_it_is)(name, value) for name, value in given.items() if value is not None}
        text = {name: own.pop(name) for name in OF_TEXT if name in own}
        return cls(text=EvaluationSpec(**text), **own)

    def of_model(self, name: str) -> tuple[str | None, ...]:
        """Return one model's values of the options in `BY_MODEL`, in that order."""
        return tuple(getattr(self, option).of(name) for option in BY_MODEL)

    def longest(self, name: str, stated: int | None) -> int | None:
        """Return the longest window of a model: `max_length`, else the one ``stated`` in its configuration."""
        asked = self.max_length.of(name)
        return stated if asked is None else int(asked)

    def check_models(self, names: Sequence[str]) -> None:
        """Raise `ArgapError` for an option set for a model not among ``names``."""
        for option in BY_MODEL:
            getattr(self, option).check(option, names)


DEFAULT = ScoreConfig()
OF_TEXT = tuple(name for name in EvaluationSpec.__struct_fields__ if name not in ScoreConfig.__struct_fields__)
"""Options that are fields of ``text``."""


def parse_batch_size(text: str) -> int | Literal["auto"]:
    """Parse a batch size. Raises `ArgapError` for anything but a positive number or auto."""
    if text == "auto":
        return "auto"
    size = whole_number(text)
    if size is None or not 0 < size <= LARGEST_BATCH:
        raise ArgapError(f"`batch_size` {text}: expected a positive whole number up to {LARGEST_BATCH:,}, or auto")
    return size


def _lengths(name: str, value: Any) -> PerModel:
    """Parse lengths by model. Raises `ArgapError` for anything but positive whole numbers."""
    if isinstance(value, Mapping):
        value = {model: str(length) for model, length in value.items()}
    found = per_model(name, str(value) if isinstance(value, int) else value)
    for text in (found.default, *found.named.values()):
        if text is not None and not 0 < (whole_number(text) or 0) <= LARGEST_LENGTH:
            raise ArgapError(f"`{name}` {text}: expected a positive whole number up to {LARGEST_LENGTH:,}")
    return found


def _as_it_is(name: str, value: Any) -> Any:
    return value


def _texts(name: str, value: Any) -> tuple[str, ...]:
    return tuple(map(str, [value] if isinstance(value, str | PathLike) else value))


def _path(name: str, value: Any) -> Any:
    return str(value) if isinstance(value, PathLike) else value


READ = {
    "data": _texts,
    "keep": _texts,
    "model_name": _texts,
    "index": _path,
    "slices": _path,
    "threshold": lambda name, value: parse_threshold(value) if isinstance(value, str) else value,
    "batch_size": lambda name, value: parse_batch_size(value) if isinstance(value, str) else value,
    **dict.fromkeys(BY_MODEL, per_model),
    "max_length": _lengths,
}
"""Functions that turn what users write for an option into its value, where the two differ."""
