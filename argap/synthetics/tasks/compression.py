"""Compression: the hidden state at the last position must encode all tokens (MAD, arXiv 2403.17844, section 3)."""

from dataclasses import dataclass

import numpy as np

from argap.errors import ArgapError
from argap.synthetics.tasks.examples import IGNORED, Examples, check_examples, generator


@dataclass(frozen=True)
class CompressionConfig:
    """One data set. Raises `ArgapError` for sizes that are too small."""

    examples: int
    length: int = 32
    vocab_size: int = 16
    """The last token of the vocabulary ends the sequence."""

    def __post_init__(self) -> None:
        check_examples(self.examples)
        if self.length < 2 or self.vocab_size < 3:
            raise ArgapError(
                f"length {self.length}, vocab_size {self.vocab_size}; expected at least length 2 and vocab_size 3"
            )


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
