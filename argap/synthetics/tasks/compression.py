"""Compression: the hidden state at the last position must encode all tokens (MAD, arXiv 2403.17844, section 3)."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from argap.synthetics.tasks.examples import IGNORED, Examples, TaskConfig, generator


@dataclass(frozen=True)
class CompressionConfig(TaskConfig):
    """One data set."""

    length: Annotated[int, Meta(ge=2)] = 32
    vocab_size: Annotated[int, Meta(ge=3)] = 16
    """The last token of the vocabulary ends the sequence."""


def build(config: CompressionConfig, seed: int) -> Examples:
    """Build the examples of a seed: random tokens followed by the end token.

    Unlike in the other tasks, the labels are not next tokens: the label at t is the input at t, to be decoded
    from t and the hidden state at the *last* position alone. ``slices["position"]`` is t + 1.
    """
    rng = generator(seed)
    end = config.vocab_size - 1
    inputs = rng.integers(0, end, (config.examples, config.length), dtype=np.int32)
    inputs[:, -1] = end
    labels = inputs.copy()
    labels[:, -1] = IGNORED
    position = np.broadcast_to(np.arange(1, config.length + 1, dtype=np.int32), inputs.shape).copy()
    position[:, -1] = 0
    return Examples(inputs, labels, {"position": position})
