"""Recall of pairs that come in a row: the older associative recall, and MAD's in-context and noisy recall.

Legend: E examples, N tokens, P = N / 2 pairs, V vocabulary.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from argap.errors import ArgapError
from argap.synthetics.examples import IGNORED, Examples, generator


@dataclass(frozen=True)
class ContextRecallConfig:
    """One data set; by default MAD's in-context recall (arXiv 2403.17844, section 3). Its noisy recall has
    ``vocab_size`` 32, ``noise_vocab_size`` 16, ``noise`` 0.2; the older associative recall (arXiv 2212.14052,
    section 3.1) asks for the ``last`` alone.

    Raises `ArgapError` for sizes that do not fit each other.
    """

    examples: int
    length: int = 128
    """N: an even number."""
    vocab_size: int = 16
    """V: keys, as many values (one more if the rest is odd), and at the end the noise tokens."""
    noise_vocab_size: int = 0
    noise: float = 0.0
    """The chance of a pair to be two noise tokens instead."""
    asked: Literal["repeats", "last"] = "repeats"
    """The value of every key that came before; or of the last key alone."""

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ArgapError(f"{self.examples} examples; expected at least 1")
        if self.length < 4 or self.length % 2:
            raise ArgapError(f"length {self.length}; expected an even one from 4")
        if self.noise_vocab_size < 0 or self.keys < 1:
            raise ArgapError(
                f"vocab_size {self.vocab_size}, noise_vocab_size {self.noise_vocab_size}; expected noise tokens from "
                "0, and 2 tokens more for a key and its value"
            )
        if not 0 <= self.noise < 1 or (self.noise > 0 and self.noise_vocab_size < 1):
            raise ArgapError(
                f"context recall: noise {self.noise} of {self.noise_vocab_size} tokens; expected a chance below 1, "
                "and tokens to draw from"
            )

    @property
    def keys(self) -> int:
        """How many keys there are: tokens 0 to this number; values lie behind them."""
        return (self.vocab_size - self.noise_vocab_size) // 2


def build(config: ContextRecallConfig, seed: int) -> Examples:
    """The examples of a seed.

    In each example every key has a value, drawn independently (two keys may share one). A row of pairs
    follows, keys drawn anew each time. The last pair is of a key that came before. ``slices["occurrences"]``
    is how often the key came before its label.
    """
    rng = generator(seed)
    shape = (config.examples, config.length // 2)
    values = config.vocab_size - config.noise_vocab_size - config.keys
    means = config.keys + rng.integers(0, values, (config.examples, config.keys))
    keys = rng.integers(0, config.keys, shape)
    noisy = rng.random(shape) < config.noise
    noisy[np.arange(config.examples), rng.integers(0, shape[1] - 1, config.examples)] = False  # a pair there is
    noisy[:, -1] = False
    came = _came_before(keys, noisy, config.keys)
    presented = came[:, -1] > 0
    keys[:, -1] = np.where(presented, rng.random(presented.shape), -1).argmax(axis=1)
    before = np.take_along_axis(came, keys[..., None], axis=2)[..., 0]
    inputs = np.stack([keys, np.take_along_axis(means, keys, axis=1)], axis=2)
    first_noise = config.vocab_size - config.noise_vocab_size
    if noisy.any():
        inputs[noisy] = rng.integers(first_noise, config.vocab_size, (int(noisy.sum()), 2))
    asked = (before > 0) & ~noisy
    if config.asked == "last":
        asked[:, :-1] = False
    labels = np.full_like(inputs, IGNORED)
    occurrences = np.zeros_like(inputs)
    labels[asked, 1] = inputs[asked, 1]
    occurrences[asked, 1] = before[asked]
    flat = (x.reshape(config.examples, config.length).astype(np.int32) for x in (inputs, labels, occurrences))
    inputs, labels, occurrences = flat
    return Examples(inputs, labels, {"occurrences": occurrences})


def _came_before(keys: np.ndarray, noisy: np.ndarray, count: int) -> np.ndarray:
    """How often each key stands in the pairs before, ``[E, P, keys]``; noise holds none."""
    here = (keys[..., None] == np.arange(count)) & ~noisy[..., None]
    return np.cumsum(here, axis=1, dtype=np.int32) - here
