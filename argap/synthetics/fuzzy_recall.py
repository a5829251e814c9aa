"""Fuzzy recall: keys and values of one to three tokens (MAD, arXiv 2403.17844, section 3).

Legend: E examples, N tokens, U units (a key and its value), M the longest key or value.
"""

from dataclasses import dataclass

import numpy as np

from argap.errors import ArgapError
from argap.synthetics.examples import IGNORED, Examples, generator

ROWS = 2048
"""Examples made at once. The bytes of a seed depend on it."""


@dataclass(frozen=True)
class FuzzyRecallConfig:
    """One data set. Raises `ArgapError` for sizes that do not fit each other."""

    examples: int
    length: int = 128
    longest: int = 3
    """M: tokens of the longest key, and of the longest value."""
    vocab_size: int = 16
    """Keys are made of the first half of what lies before the last token, values of the second; the last
    token fills up an example."""
    short_keys: bool = True
    """Keys of 1 to M tokens, as in training; False: of M, as in MAD's test."""

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ArgapError(f"{self.examples} examples; expected at least 1")
        if self.longest < 1 or (self.vocab_size - 1) // 2 < self.longest:
            raise ArgapError(
                f"longest {self.longest}, vocab_size {self.vocab_size}; expected keys from 1 token, and for such keys "
                f"and values a vocabulary from {2 * max(1, self.longest) + 1}"
            )
        if self.length < 4 * self.longest:
            raise ArgapError(
                f"a key, its value and both again need {4 * self.longest} tokens, the length is {self.length}"
            )


def build(config: FuzzyRecallConfig, seed: int) -> Examples:
    """The examples of a seed.

    A row of units fills an example. A key's tokens are distinct, a value's too; all of a length are alike.
    Where a key comes again, with all its tokens, it has the value that it had, and each token of it is
    labelled. The last unit is one that came before. What is left is filled up, at the end.
    ``slices["tokens"]`` is how many tokens the key has.
    """
    rng = generator(seed)
    parts = [_rows(rng, config) for _ in range(0, config.examples, ROWS)]
    inputs, labels, tokens = (np.concatenate(column)[: config.examples] for column in zip(*parts, strict=True))
    return Examples(inputs, labels, {"tokens": tokens})


def _rows(rng: np.random.Generator, config: FuzzyRecallConfig) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Inputs, labels and the slice of `ROWS` examples, ``[ROWS, N]`` each."""
    most = config.length // 2  # units of the shortest kind
    half = (config.vocab_size - 1) // 2
    keys, key_size = _motifs(rng, (ROWS, most), np.arange(half), config.longest, config.short_keys)
    values, value_size = _motifs(rng, (ROWS, most), np.arange(half, config.vocab_size - 1), config.longest, True)
    counts = np.arange(config.longest) < key_size[..., None]
    codes = (np.where(counts, keys + 1, 0) * (half + 1) ** np.arange(config.longest)).sum(axis=2)
    first = (codes[:, :, None] == codes[:, None, :]).argmax(axis=2)  # the earliest unit of the same key
    known = first < np.arange(most)
    values = np.take_along_axis(values, first[..., None], axis=1)
    value_size = np.take_along_axis(value_size, first, axis=1)
    ends = np.cumsum(key_size + value_size, axis=1)
    # As many units as leave room for the last one, which is as long as the longest may be.
    count = np.maximum(1, (ends <= config.length - 2 * config.longest).sum(axis=1))
    rows = np.arange(ROWS)
    again = (rng.random(ROWS) * count).astype(np.int64)
    for part in (keys, key_size, values, value_size):
        part[rows, count] = part[rows, again]
    known[rows, count] = True
    sizes = key_size + value_size
    starts = np.cumsum(sizes, axis=1) - sizes
    inputs = np.full((ROWS, config.length), config.vocab_size - 1, dtype=np.int32)
    labels = np.full_like(inputs, IGNORED)
    tokens = np.zeros_like(inputs)
    used = np.arange(most) <= count[:, None]
    for place in range(config.longest):
        row, unit = np.nonzero(used & (place < key_size))
        inputs[row, starts[row, unit] + place] = keys[row, unit, place]
        row, unit = np.nonzero(used & (place < value_size))
        at = starts[row, unit] + key_size[row, unit] + place
        inputs[row, at] = values[row, unit, place]
        labels[row, at] = np.where(known[row, unit], values[row, unit, place], IGNORED)
        tokens[row, at] = np.where(known[row, unit], key_size[row, unit], 0)
    return inputs, labels, tokens


def _motifs(
    rng: np.random.Generator, shape: tuple[int, int], vocabulary: np.ndarray, longest: int, shorter: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Distinct tokens of the vocabulary, ``[*shape, M]``, and how many of them count, ``shape``."""
    order = rng.random((*shape, len(vocabulary))).argsort(axis=-1)[..., :longest]
    size = rng.integers(1, longest + 1, shape) if shorter else np.full(shape, longest)
    return vocabulary[order], size
