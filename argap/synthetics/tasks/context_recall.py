"""Recall from a sequence of key-value pairs: MAD's in-context and noisy recall, and the original associative recall.

Legend: E examples, N tokens, P = N / 2 pairs, V vocabulary.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from argap.errors import ArgapError
from argap.synthetics.tasks.examples import IGNORED, Examples, TaskConfig, generator


@dataclass(frozen=True)
class ContextRecallConfig(TaskConfig):
    """One data set; the defaults are MAD's in-context recall (arXiv 2403.17844, section 3).

    MAD's noisy recall is ``vocab_size=32, noise_vocab_size=16, noise=0.2``; the original associative recall
    (arXiv 2212.14052, section 3.1) is ``asked="last"``. Raises `ArgapError` for inconsistent sizes.
    """

    length: int = 128
    """N, an even number."""
    vocab_size: int = 16
    """V: keys, as many values (one more if the remainder is odd), and finally the noise tokens."""
    noise_vocab_size: int = 0
    noise: float = 0.0
    """Probability that a pair is replaced by two noise tokens."""
    asked: Literal["repeats", "last"] = "repeats"
    """Label the value of every repeated key, or of the last key only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 4 or self.length % 2:
            raise ArgapError(f"length {self.length}; expected an even number of at least 4")
        if self.noise_vocab_size < 0 or self.keys < 1:
            raise ArgapError(
                f"vocab_size {self.vocab_size}, noise_vocab_size {self.noise_vocab_size}; expected at least 0 noise "
                "tokens and 2 further tokens, a key and its value"
            )
        if not 0 <= self.noise < 1 or (self.noise > 0 and self.noise_vocab_size < 1):
            raise ArgapError(
                f"context recall: noise {self.noise} of {self.noise_vocab_size} tokens; expected a probability below "
                "1 and at least one noise token"
            )

    @property
    def keys(self) -> int:
        """Number of keys. Keys are the first tokens of the vocabulary; the values follow them."""
        return (self.vocab_size - self.noise_vocab_size) // 2


def build(config: ContextRecallConfig, seed: int) -> Examples:
    """Build the examples of a seed: a sequence of pairs whose keys are drawn with replacement.

    Each example assigns every key a value, drawn independently, so two keys may share one. The key of the last
    pair has occurred before. ``slices["occurrences"]`` is the number of earlier pairs with the same key.
    """
    rng = generator(seed)
    shape = (config.examples, config.length // 2)
    values = config.vocab_size - config.noise_vocab_size - config.keys
    value_of = config.keys + rng.integers(0, values, (config.examples, config.keys))
    keys = rng.integers(0, config.keys, shape)
    noisy = rng.random(shape) < config.noise
    noisy[np.arange(config.examples), rng.integers(0, shape[1] - 1, config.examples)] = False  # at least one pair
    noisy[:, -1] = False
    counts = _earlier_occurrences(keys, noisy, config.keys)
    seen = counts[:, -1] > 0
    keys[:, -1] = np.where(seen, rng.random(seen.shape), -1).argmax(axis=1)
    before = np.take_along_axis(counts, keys[..., None], axis=2)[..., 0]
    inputs = np.stack([keys, np.take_along_axis(value_of, keys, axis=1)], axis=2)
    first_noise = config.vocab_size - config.noise_vocab_size
    if noisy.any():
        inputs[noisy] = rng.integers(first_noise, config.vocab_size, (int(noisy.sum()), 2))
    labelled = (before > 0) & ~noisy
    if config.asked == "last":
        labelled[:, :-1] = False
    labels = np.full_like(inputs, IGNORED)
    occurrences = np.zeros_like(inputs)
    labels[labelled, 1] = inputs[labelled, 1]
    occurrences[labelled, 1] = before[labelled]
    flat = (x.reshape(config.examples, config.length).astype(np.int32) for x in (inputs, labels, occurrences))
    inputs, labels, occurrences = flat
    return Examples(inputs, labels, {"occurrences": occurrences})


def _earlier_occurrences(keys: np.ndarray, noisy: np.ndarray, count: int) -> np.ndarray:
    """Count how often each key occurs in the earlier pairs, noise excluded, ``[E, P, keys]``."""
    here = (keys[..., None] == np.arange(count)) & ~noisy[..., None]
    return np.cumsum(here, axis=1, dtype=np.int32) - here
