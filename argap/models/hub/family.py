"""A family of hub checkpoints: its options, its native configuration, its weight map."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from argap.errors import ArgapError
from argap.models.configuration import ArgapConfig

MOST_LAYERS = 10_000


class Options:
    """The ``config.json`` of a checkpoint, with the family's defaults; refusals name the option and its value."""

    def __init__(self, checkpoint: str, family: str, values: Mapping[str, Any], stored: Collection[str] = ()) -> None:
        self.checkpoint, self.family = checkpoint, family
        self.stored = stored
        """Names of the checkpoint's tensors, for layouts that no option distinguishes; empty while configuring."""
        self._values = values
        self._known: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        """Return the option's value, or the default if it is absent or null."""
        self._known.add(name)
        value = self._values.get(name)
        return default if value is None else value

    def size(self, name: str, default: int | None = None, *, most: int = 2**24) -> int:
        """Return a whole number from 1 to ``most``. Raises `ArgapError` for other values, or none without a default."""
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise ArgapError(
                f"{self.checkpoint}: {name} {value!r} in config.json of {self.family}; expected a positive number, at "
                f"most {most:,}"
            )
        return value

    def layers(self, name: str, default: int | None = None) -> int:
        """Return the number of layers. Raises `ArgapError`, as `size` does."""
        return self.size(name, default, most=MOST_LAYERS)

    def only(self, name: str, *accepted: Any) -> None:
        """Raise `ArgapError` unless the option is absent or has one of the values that the native model supports."""
        self._known.add(name)
        if name in self._values and self._values[name] not in accepted:
            self.refuse(name, self._values[name], " or ".join(map(repr, accepted)))

    def fixed(self, **accepted: Any) -> None:
        """Raise `ArgapError` unless each option is absent or has the one value that the native model supports."""
        for name, value in accepted.items():
            self.only(name, value)

    def no_others(self, inert: Collection[str]) -> None:
        """Raise `ArgapError` for an option that was not asked for so far, as one of a later version of the family.

        Accepted are names in ``inert``, which change no output, names that start with an underscore, and options that
        are off: null, false or empty.
        """
        for name, value in self._values.items():
            if value and name not in self._known and name not in inert and not name.startswith("_"):
                self.refuse(name, value, "a known option")

    def refuse(self, name: str, value: Any, expected: str) -> NoReturn:
        """Raise an `ArgapError` for an option whose value has no native form."""
        raise ArgapError(
            f"{self.checkpoint}: option {name} {value!r} of {self.family} has no native form, expected {expected}; "
            "run the family's own code with `backend=hf`"
        )

    def shared(self) -> dict[str, Any]:
        """Return the options with the same meaning in every family, if given: special tokens and tied embeddings."""
        names = ("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")
        self._known.update(names)
        return {name: self._values[name] for name in names if name in self._values}


class Tensors:
    """The checkpoint tensors of one native weight: stacked along rows, then changed."""

    def __init__(self, *names: str, change: Callable[[torch.Tensor], torch.Tensor] | None = None) -> None:
        self.names = names
        self.change = change

    def __call__(self, read: Callable[[str], torch.Tensor]) -> torch.Tensor:
        parts = [read(name) for name in self.names]
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole if self.change is None else self.change(whole)


ZEROS = Tensors()
"""A bias that the family lacks."""

WeightMap = dict[str, Tensors]
"""The tensors of each parameter of the native model, by the parameter's name."""


def renamed(ours: str, theirs: str, names: Mapping[str, str]) -> WeightMap:
    """Map weights below the prefix ``ours`` to single tensors below ``theirs``; ``names`` maps our names to theirs."""
    return {f"{ours}.{own}": Tensors(f"{theirs}.{name}") for own, name in names.items()}


def taps(weight: torch.Tensor) -> torch.Tensor:
    """Convert the filters of a depthwise `torch.nn.Conv1d` to those of `ShortConvolution`.

    From ``[D, 1, N]``, the current input last, to ``[N, D]``, the current input first.
    """
    return weight[:, 0].flip(-1).T


def first_half(weight: torch.Tensor) -> torch.Tensor:
    """Return the upper half of the rows of two stacked maps."""
    return weight.chunk(2)[0]


def second_half(weight: torch.Tensor) -> torch.Tensor:
    """Return the lower half."""
    return weight.chunk(2)[1]


def column(weight: torch.Tensor) -> torch.Tensor:
    """Return a vector as a matrix of one column."""
    return weight[:, None]


def padded(size: int, multiple: int) -> int:
    """Round ``size`` up to a ``multiple``."""
    return -(-size // multiple) * multiple


@dataclass(frozen=True)
class Family:
    """A layout of checkpoints. Its ``configure`` raises `ArgapError` for options without a native form."""

    name: str
    """The model type of ``config.json``, or our own name if it gives none."""
    source: str
    """Whose layout it is."""
    configure: Callable[[Options], ArgapConfig]
    weights: Callable[[Options, ArgapConfig], WeightMap]
    rename: Callable[[str], str | None] = lambda name: name
    """Maps a tensor's name in any version of the layout to its name in the weight map; None for tensors that are not
    weights."""
    head: str = "lm_head.weight"
    """The head's weight if it is not tied to the embedding; otherwise a copy in the checkpoint is ignored."""
    float32: tuple[str, ...] = ()
    """Native parameters, by the last part of their names, that stay in float32 whatever dtype the others are loaded
    in."""
    original: str | None = None
    """The class in the family's own code, ``"module:Class"``; None if transformers can load none."""
