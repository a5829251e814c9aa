"""Continuous MQAR: keys and values are vectors, so that nothing of them is in an embedding table.

After HazyResearch/zoology (``stacked_mqar.py``): a position holds a key and its value, a later one the key alone.

Legend: E examples, N positions, P pairs, K channels of a key or a value.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from argap.errors import ArgapError
from argap.files.configs import Count, NotNegative, Seed
from argap.synthetics.tasks.examples import IGNORED, LARGEST, Examples, TaskConfig, generator
from argap.synthetics.tasks.recall.scatter import check_fewest, distinct, draw_sizes


@dataclass(frozen=True)
class ContinuousConfig(TaskConfig):
    """One data set. Raises `ArgapError` for sizes that do not fit."""

    length: Annotated[int, Meta(ge=2, le=2**24)] = 32
    """N; half of it is the most pairs P."""
    fewest: Count | None = 1
    """Fewest pairs; all numbers up to P are equally likely. None: always P."""
    size: Annotated[int, Meta(ge=1, le=4096)] = 32
    """K."""
    noise: NotNegative = 0.0
    """Length of the Gaussian noise that is added to a key when it is asked for; keys have length 1."""
    vocab_size: Annotated[int, Meta(ge=2, le=2**20)] = 128
    """Number of values; a label is the number of a value."""
    values_seed: Seed = 0
    """Draws the vectors of the values, the same in training and test. Keys are drawn anew for every example."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fewest("fewest", self.fewest, self.pairs)
        if self.vocab_size < self.pairs:
            raise ArgapError(f"{self.pairs} pairs need as many values, `vocab_size` is {self.vocab_size}")
        if (numbers := self.examples * self.length * self.channels) > LARGEST:
            raise ArgapError(
                f"{self.examples:,} examples of {self.length:,} x {self.channels:,} channels are {numbers:,} numbers; "
                f"expected at most {LARGEST:,}"
            )

    @property
    def pairs(self) -> int:
        """P."""
        return self.length // 2

    @property
    def channels(self) -> int:
        """Numbers per position: a key and a value."""
        return 2 * self.size

    @property
    def values(self) -> np.ndarray:
        """Return the vectors of the values ``[V, K]`` float32, of length 1."""
        return _unit(generator(self.values_seed).standard_normal((self.vocab_size, self.size)))


def build(config: ContinuousConfig, seed: int) -> Examples:
    """Build the examples of a seed; their inputs are vectors ``[E, N, 2K]`` float32, key then value.

    P pairs with distinct values, then their keys in random order with zeros in place of the values, then zeros. The
    label is the output *at* the key. ``slices["pairs"]`` is P, ``slices["distance"]`` the distance from the pair.
    """
    rng = generator(seed)
    examples, most, size = config.examples, config.pairs, config.size
    sizes = draw_sizes(rng, config.fewest, most, examples)
    keys = _unit(rng.standard_normal((examples, most, size), dtype=np.float32))
    numbers = distinct(rng, np.arange(config.vocab_size), most, examples)
    present = np.arange(most) < sizes[:, None]
    order = np.where(present, rng.random(present.shape), 2.0).argsort(axis=1)
    inputs = np.zeros((examples, config.length, config.channels), dtype=np.float32)
    labels = np.full((examples, config.length), IGNORED, dtype=np.int32)
    pairs, distance = np.zeros((2, *labels.shape), dtype=np.int32)
    inputs[:, :most, :size] = np.where(present[..., None], keys, 0)
    inputs[:, :most, size:] = np.where(present[..., None], config.values[numbers], 0)
    row, place = np.nonzero(present)
    asked = order[row, place]
    at = sizes[row] + place
    noise = rng.standard_normal((len(row), size), dtype=np.float32) * np.float32(config.noise / size**0.5)
    inputs[row, at] = 0
    inputs[row, at, :size] = keys[row, asked] + noise
    labels[row, at], pairs[row, at], distance[row, at] = numbers[row, asked], sizes[row], at - asked
    return Examples(inputs, labels, {"pairs": pairs, "distance": distance})


def _unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)).astype(np.float32)
