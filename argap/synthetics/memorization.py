"""Memorisation: pairs that are the same in every example, so that the weights must hold them (MAD, arXiv
2403.17844, section 3)."""

from dataclasses import dataclass

import numpy as np

from argap.errors import ArgapError
from argap.synthetics.examples import IGNORED, Examples, generator


@dataclass(frozen=True)
class MemorizationConfig:
    """One data set. Raises `ArgapError` for sizes that leave no room."""

    examples: int
    length: int = 32
    vocab_size: int = 256
    """The first half of what lies before the last token are keys, the second values; the last token stands
    where a value is asked."""
    facts_seed: int = 0
    """Which value a key has, in training and in test: not the seed of the examples."""

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ArgapError(f"{self.examples} examples; expected at least 1")
        if self.length < 2 or self.length % 2 or self.vocab_size < 3:
            raise ArgapError(
                f"length {self.length}, vocab_size {self.vocab_size}; expected an even length from 2, "
                "a vocabulary from 3"
            )
        if self.facts_seed < 0:
            raise ArgapError(f"facts_seed {self.facts_seed}; expected 0 or more")

    @property
    def facts(self) -> np.ndarray:
        """The value of each key: distinct values, in an order that ``facts_seed`` decides."""
        keys = (self.vocab_size - 1) // 2
        values = np.arange(keys, self.vocab_size - 1, dtype=np.int32)
        return generator(self.facts_seed).permutation(values)[:keys]


def build(config: MemorizationConfig, seed: int) -> Examples:
    """The examples of a seed: keys, and after each the last token of the vocabulary in its value's place.

    The label there is the value; it is never in the inputs. ``slices["key"]`` is the key, plus 1.
    """
    rng = generator(seed)
    facts = config.facts
    keys = rng.integers(0, len(facts), (config.examples, config.length // 2), dtype=np.int32)
    inputs = np.full((config.examples, config.length), config.vocab_size - 1, dtype=np.int32)
    labels = np.full_like(inputs, IGNORED)
    key = np.zeros_like(inputs)
    inputs[:, ::2], labels[:, 1::2], key[:, 1::2] = keys, facts[keys], keys + 1
    return Examples(inputs, labels, {"key": key})
