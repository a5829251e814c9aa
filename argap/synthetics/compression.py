"""Compression: the last position's vector must hold all tokens (MAD, arXiv 2403.17844, section 3)."""

from dataclasses import dataclass

import numpy as np

from argap.errors import ArgapError
from argap.synthetics.examples import IGNORED, Examples, generator


@dataclass(frozen=True)
class CompressionConfig:
    """One data set. Raises `ArgapError` for sizes that leave no room."""

    examples: int
    length: int = 32
    vocab_size: int = 16
    """The last token ends the sequence."""

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ArgapError(f"{self.examples} examples; expected at least 1")
        if self.length < 2 or self.vocab_size < 3:
            raise ArgapError(
                f"length {self.length}, vocab_size {self.vocab_size}; expected a length from 2, a vocabulary from 3"
            )


def build(config: CompressionConfig, seed: int) -> Examples:
    """The examples of a seed: random tokens and the one that ends the sequence.

    Unlike the other tasks' labels these are not next tokens: the label at t is the input at t, to be decoded
    from t and the *last* position's vector alone. ``slices["position"]`` is t, plus 1.
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
