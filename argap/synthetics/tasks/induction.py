"""Induction heads: which token followed the special token the first time?

Source: arXiv 2209.11895; as a separate task, arXiv 2212.14052, section 3.1.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from argap.synthetics.tasks.examples import IGNORED, Examples, TaskConfig, generator


@dataclass(frozen=True)
class InductionConfig(TaskConfig):
    """One data set."""

    length: Annotated[int, Meta(ge=4)] = 32
    vocab_size: Annotated[int, Meta(ge=2)] = 20
    """The last token of the vocabulary is the special one."""


def build(config: InductionConfig, seed: int) -> Examples:
    """Build the examples of a seed: random tokens with the special token once among them and once more before the end.

    The last token repeats the one that followed the first special token; it is the only label.
    ``slices["distance"]`` is the distance between the two special tokens.
    """
    rng = generator(seed)
    special = config.vocab_size - 1
    inputs = rng.integers(0, special, (config.examples, config.length), dtype=np.int32)
    first = rng.integers(0, config.length - 3, config.examples)
    rows = np.arange(config.examples)
    inputs[rows, first] = inputs[:, -2] = special
    inputs[:, -1] = inputs[rows, first + 1]
    labels = np.full_like(inputs, IGNORED)
    labels[:, -1] = inputs[:, -1]
    distance = np.zeros_like(inputs)
    distance[:, -1] = config.length - 2 - first
    return Examples(inputs, labels, {"distance": distance})
