"""Memorization: the same key-value pairs in every example, to be stored in the weights.

Source: MAD, arXiv 2403.17844, section 3.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from argap.errors import ArgapError
from argap.files.configs import Seed
from argap.synthetics.tasks.examples import IGNORED, Examples, TaskConfig, generator


@dataclass(frozen=True)
class MemorizationConfig(TaskConfig):
    """One data set. Also raises `ArgapError` for an odd length."""

    length: Annotated[int, Meta(ge=2)] = 32
    vocab_size: Annotated[int, Meta(ge=3)] = 256
    """The last token marks the positions of the values. Of the others, the first half are keys, the rest values."""
    facts_seed: Seed = 0
    """Assigns a value to each key, in training and test alike; independent of the seed of the examples."""
    read_at: Literal["insert", "key"] = "insert"
    """The token whose output is the answer: the marker after the key, as in MAD (athms/mad-lab, mad/data/instances.py,
    which does not shift its targets), so that a mixer must carry the key one position further; or the key itself, at
    which a model without any mixing can answer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length % 2:
            raise ArgapError(f"length {self.length}; expected an even number")

    @property
    def facts(self) -> np.ndarray:
        """Return the value of each key. Values are distinct and assigned by ``facts_seed``."""
        keys = (self.vocab_size - 1) // 2
        values = np.arange(keys, self.vocab_size - 1, dtype=np.int32)
        return generator(self.facts_seed).permutation(values)[:keys]


def build(config: MemorizationConfig, seed: int) -> Examples:
    """Build the examples of a seed: keys, each followed by the last token of the vocabulary in place of its value.

    The label there is the value, which never occurs in the inputs: it is the output *at* its own position, not at the
    one before as in the other tasks (`MemorizationConfig.read_at`). ``slices["key"]`` is the key + 1.
    """
    rng = generator(seed)
    facts = config.facts
    keys = rng.integers(0, len(facts), (config.examples, config.length // 2), dtype=np.int32)
    inputs = np.full((config.examples, config.length), config.vocab_size - 1, dtype=np.int32)
    labels = np.full_like(inputs, IGNORED)
    key = np.zeros_like(inputs)
    inputs[:, ::2], labels[:, 1::2], key[:, 1::2] = keys, facts[keys], keys + 1
    return Examples(inputs, labels, {"key": key})
