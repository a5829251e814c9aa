"""The type that every synthetic task builds: token sequences, labels to predict, and properties to slice results by."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from argap.errors import ArgapError
from argap.files.atomic import replacing
from argap.files.configs import Count, check_ranges

IGNORED = -100
"""The label of an unsupervised position; torch's cross-entropy ignores it."""


LARGEST = 2**34
"""Most tokens in a data set, which is held in memory at eight bytes per token."""


class Examples(NamedTuple):
    """Examples of one task. Legend: E examples, N tokens per example. Arrays are int32."""

    inputs: np.ndarray
    """Token ids ``[E, N]``; of a task whose configuration has ``channels`` C, vectors ``[E, N, C]`` float32."""
    labels: np.ndarray
    """``[E, N]``: the token to predict *at* this position from the inputs before it, or `IGNORED`. With a causal
    language model, ``model(inputs, labels=labels).loss`` is therefore the loss of the task. Where a task's answers are
    read at their own position (`argap.synthetics.tasks.registry.Task.own_position`), also from the input there."""
    slices: dict[str, np.ndarray]
    """Name to ``[E, N]``: a property of each label, such as its distance from the key; 0 at unsupervised positions."""


@dataclass(frozen=True)
class TaskConfig:
    """The sizes of a data set. Raises `ArgapError` for one outside its declared range, and for too large a data set."""

    examples: Count
    length: int
    """N."""

    def __post_init__(self) -> None:
        check_ranges(self)
        check_size(self.examples, self.length)


def generator(seed: int) -> np.random.Generator:
    """Return the only source of randomness of a data set: PCG64, identical on every platform."""
    return np.random.Generator(np.random.PCG64(seed))


def check_size(examples: int, length: int) -> None:
    """Raise `ArgapError` if a data set of ``examples`` with ``length`` tokens each would not fit in memory."""
    if examples * length > LARGEST:
        raise ArgapError(
            f"{examples:,} examples of length {length:,} are {examples * length:,} tokens; expected at most {LARGEST:,}"
        )


def examples_file(out: Path) -> Path:
    """Return the file of `write_examples` for ``out``: the suffix ``.npz`` is added if it has another.

    Raises `ArgapError` for a folder without a name, such as ``.``.
    """
    if not out.name:
        raise ArgapError(f"`out` {out}: a folder; expected the name of a file")
    return out if out.suffix == ".npz" else out.with_name(out.name + ".npz")


def write_examples(path: Path, examples: Examples) -> None:
    """Write ``inputs``, ``labels`` and every slice to an ``.npz`` file."""
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, inputs=examples.inputs, labels=examples.labels, **examples.slices)  # pyright: ignore[reportArgumentType]
