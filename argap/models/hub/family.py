"""What a family of hub checkpoints is: its options, its configuration here, its weight map."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from argap.errors import ArgapError
from argap.models.configuration import ArgapConfig

MOST_LAYERS = 10_000


class Options:
    """The ``config.json`` of a checkpoint, read with the family's defaults and refused by option and value."""

    def __init__(self, checkpoint: str, family: str, values: Mapping[str, Any], stored: Collection[str] = ()) -> None:
        self.checkpoint, self.family = checkpoint, family
        self.stored = stored
        """Names of the checkpoint's tensors, for layouts that no option distinguishes; empty while configuring."""
        self._values = values

    def get(self, name: str, default: Any = None) -> Any:
        """The option's value, or the default where it is absent or null."""
        value = self._values.get(name)
        return default if value is None else value

    def size(self, name: str, default: int | None = None, *, most: int = 2**24) -> int:
        """A whole number from 1 to ``most``. Raises `ArgapError` for another value, or none without a default."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ArgapError(
                f"{self.checkpoint}: {name} {value!r} in config.json of {self.family}; expected a positive number, at "
                f"most {most:,}"
            )
        return value

    def layers(self, name: str, default: int | None = None) -> int:
        """The number of layers. Raises `ArgapError`, as `size` does."""
        return self.size(name, default, most=MOST_LAYERS)

    def only(self, name: str, *accepted: Any) -> None:
        """Raises `ArgapError` unless the option is absent or has one of the values that the native model takes."""
        if name in self._values and self._values[name] not in accepted:
            self.refuse(name, self._values[name], " or ".join(map(repr, accepted)))

    def fixed(self, **accepted: Any) -> None:
        """Raises `ArgapError` unless each option is absent or has the one value that the native model takes."""
        for name, value in accepted.items():
            self.only(name, value)

    def refuse(self, name: str, value: Any, expected: str) -> NoReturn:
        """Raises the `ArgapError` of an option whose value has no native form."""
        raise ArgapError(
            f"{self.checkpoint}: option {name} {value!r} of {self.family} has no native form, expected {expected}; "
            "run the family's own code with `backend=hf`"
        )

    def shared(self) -> dict[str, Any]:
        """What means the same in every family: special tokens and tied embeddings, where they are given."""
        names = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")
        return {name: self._values[name] for name in names if name in self._values}


class Tensors:
    """The checkpoint's tensors that make a native weight: stacked row upon row, then changed."""

    def __init__(self, *names: str, change: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        self.names = names
        self.change = change

    def __call__(self, read: Callable[[str], torch.Tensor]) -> torch.Tensor:
        parts = [read(name) for name in self.names]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole if self.change is None else self.change(whole)


ZEROS = Tensors()
"""A bias that the family does not have."""

WeightMap = dict[str, Tensors]
"""The tensors of each parameter of the native model, by the parameter's name."""


def renamed(ours: str, theirs: str, names: Mapping[str, str]) -> WeightMap:
    """The weights below the prefix ``ours`` that are single tensors below ``theirs``: our name to their name."""
    return {f"{ours}.{own}": Tensors(f"{theirs}.{name}") for own, name in names.items()}


def taps(weight: torch.Tensor) -> torch.Tensor:
    """The filters of a depthwise `torch.nn.Conv1d`, ``[D, 1, N]``, the present last, as `ShortConvolution`
    has them: ``[N, D]``, the present first."""
    return weight[:, 0].flip(-1).T


def first_half(weight: torch.Tensor) -> torch.Tensor:
    """The upper rows of two maps in one tensor."""
    return weight.chunk(2)[0]


def second_half(weight: torch.Tensor) -> torch.Tensor:
    """The lower rows."""
    return weight.chunk(2)[1]


def padded(size: int, multiple: int) -> int:
    """``size``, rounded up to a ``multiple``."""
    return -(-size // multiple) * multiple


@dataclass(frozen=True)
class Family:
    """A layout of checkpoints. Its ``configure`` raises `ArgapError` for options without a native form."""

    name: str
    """The model type of ``config.json``, or a name of ours where it gives none."""
    source: str
    """Whose layout it is."""
    configure: Callable[[Options], ArgapConfig]
    weights: Callable[[Options, ArgapConfig], WeightMap]
    rename: Callable[[str], str | None] = lambda name: name
    """A tensor's name in the weight map, whatever version of the layout wrote it; None for tensors that are not
    weights."""
    head: str = "lm_head.weight"
    """The head's weight, if it is not tied to the embedding; if it is, a copy in the checkpoint is ignored."""
    float32: tuple[str, ...] = ()
    """Native parameters, by the last part of their names, that stay in float32 whatever the others are loaded in."""
    original: str | None = None
    """The class of the family's own code, ``"module:Class"``; None: there is none that transformers can load."""
