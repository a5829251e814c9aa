"""Fuzzy recall: keys and values of one to three tokens (MAD, arXiv 2403.17844, section 3).

Legend: E examples, N tokens, U units (a key and its value), M maximum length of a key or value.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from argap.errors import ArgapError
from argap.synthetics.tasks.examples import IGNORED, Examples, TaskConfig, generator

ROWS = 2048
"""Examples built at once. Changing it changes the data of a seed."""


@dataclass(frozen=True)
class FuzzyRecallConfig(TaskConfig):
    """One data set. Raises `ArgapError` for inconsistent sizes."""

    length: int = 128
    longest: int = 3
    """M: maximum number of tokens of a key, and of a value."""
    vocab_size: int = 16
    """The last token is padding. Of the others, the first half form keys, the rest values."""
    short_keys: bool = True
    """Keys have 1 to M tokens, as in training; if False exactly M, as in MAD's test."""
    padding: Literal["left", "right"] = "left"
    """The end of the example that is padded: the left one in MAD (athms/mad-lab, mad/data/instances.py), so that every
    example ends with its last answer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.longest < 1 or (self.vocab_size - 1) // 2 < self.longest:
            raise ArgapError(
                f"longest {self.longest}, vocab_size {self.vocab_size}; expected keys of at least 1 token, and for "
                f"keys and values of this length at least vocab_size {2 * max(1, self.longest) + 1}"
            )
        if self.length < 4 * self.longest:
            raise ArgapError(
                f"a key, its value and their repetition need {4 * self.longest} tokens, the length is {self.length}"
            )


class _Units(NamedTuple):
    """The units of `ROWS` examples. Every field but ``last`` is drawn for the largest number of units."""

    keys: np.ndarray
    """``[ROWS, U, M]``, like ``values``."""
    key_size: np.ndarray
    """``[ROWS, U]``, like ``value_size``: how many of the M tokens count."""
    values: np.ndarray
    value_size: np.ndarray
    repeated: np.ndarray
    """``[ROWS, U]``: whether an earlier unit has the same key."""
    last: np.ndarray
    """``[ROWS]``: index of the last unit that fits."""


def build(config: FuzzyRecallConfig, seed: int) -> Examples:
    """Build the examples of a seed: a sequence of units, padded at one end.

    The tokens of a key are distinct, as are those of a value; all keys of one length are equally likely. A key
    that recurs with all its tokens has the same value as before, and every token of that value is labelled. The
    last unit repeats an earlier one. ``slices["tokens"]`` is the number of tokens of the key.
    """
    rng = generator(seed)
    parts = [_lay_out(_draw_units(rng, config), config) for _ in range(0, config.examples, ROWS)]
    inputs, labels, tokens = (np.concatenate(column)[: config.examples] for column in zip(*parts, strict=True))
    return Examples(inputs, labels, {"tokens": tokens})


def _draw_units(rng: np.random.Generator, config: FuzzyRecallConfig) -> _Units:
    """Draw the units of `ROWS` examples."""
    most = config.length // 2  # units of one-token keys and values
    half = (config.vocab_size - 1) // 2
    keys, key_size = _motifs(rng, (ROWS, most), np.arange(half), config.longest, config.short_keys)
    values, value_size = _motifs(rng, (ROWS, most), np.arange(half, config.vocab_size - 1), config.longest, True)
    counts = np.arange(config.longest) < key_size[..., None]
    codes = (np.where(counts, keys + 1, 0) * (half + 1) ** np.arange(config.longest)).sum(axis=2)
    first = (codes[:, :, None] == codes[:, None, :]).argmax(axis=2)  # the earliest unit with the same key
    repeated = first < np.arange(most)
    values = np.take_along_axis(values, first[..., None], axis=1)
    value_size = np.take_along_axis(value_size, first, axis=1)
    ends = np.cumsum(key_size + value_size, axis=1)
    # As many units as leave room for a last one of maximum length.
    count = np.maximum(1, (ends <= config.length - 2 * config.longest).sum(axis=1))
    rows = np.arange(ROWS)
    again = (rng.random(ROWS) * count).astype(np.int64)
    for part in (keys, key_size, values, value_size):
        part[rows, count] = part[rows, again]
    repeated[rows, count] = True
    return _Units(keys, key_size, values, value_size, repeated, count)


def _lay_out(units: _Units, config: FuzzyRecallConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lay out inputs, labels and the slice of `ROWS` examples, ``[ROWS, N]`` each."""
    sizes = units.key_size + units.value_size
    ends = np.cumsum(sizes, axis=1)
    padding = config.length - np.take_along_axis(ends, units.last[:, None], axis=1) if config.padding == "left" else 0
    starts = ends - sizes + padding
    inputs = np.full((ROWS, config.length), config.vocab_size - 1, dtype=np.int32)
    labels = np.full_like(inputs, IGNORED)
    tokens = np.zeros_like(inputs)
    used = np.arange(sizes.shape[1]) <= units.last[:, None]
    for offset in range(config.longest):
        row, unit = np.nonzero(used & (offset < units.key_size))
        inputs[row, starts[row, unit] + offset] = units.keys[row, unit, offset]
        row, unit = np.nonzero(used & (offset < units.value_size))
        at = starts[row, unit] + units.key_size[row, unit] + offset
        inputs[row, at] = units.values[row, unit, offset]
        labels[row, at] = np.where(units.repeated[row, unit], units.values[row, unit, offset], IGNORED)
        tokens[row, at] = np.where(units.repeated[row, unit], units.key_size[row, unit], 0)
    return inputs, labels, tokens


def _motifs(
    rng: np.random.Generator, shape: tuple[int, int], vocabulary: np.ndarray, longest: int, shorter: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Draw distinct tokens of the vocabulary, ``[*shape, M]``, and how many of them count, ``shape``."""
    order = rng.random((*shape, len(vocabulary))).argsort(axis=-1)[..., :longest]
    size = rng.integers(1, longest + 1, shape) if shorter else np.full(shape, longest)
    return vocabulary[order], size
