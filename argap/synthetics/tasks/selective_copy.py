"""Selective copying: repeat the tokens scattered among blanks, in order (MAD, arXiv 2403.17844, section 3)."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from argap.errors import ArgapError
from argap.files.configs import Count
from argap.synthetics.tasks.examples import IGNORED, Examples, TaskConfig, generator


@dataclass(frozen=True)
class SelectiveCopyConfig(TaskConfig):
    """One data set. Also raises `ArgapError` for a length without room for the copy."""

    length: int = 256
    tokens: Count = 16
    """Number of tokens to copy."""
    vocab_size: Annotated[int, Meta(ge=3)] = 16
    """The last token of the vocabulary asks for the copy, the one before it is the blank."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 2 * self.tokens + 1:
            raise ArgapError(
                f"{self.tokens} tokens and their copy need {2 * self.tokens + 1} positions, the length is {self.length}"
            )


def build(config: SelectiveCopyConfig, seed: int) -> Examples:
    """Build the examples of a seed: tokens at random positions among blanks, the copy token, then blanks.

    The positions after the copy token are labelled with the tokens in order; the inputs do not contain the copy.
    All sets of positions are equally likely. ``slices["order"]`` numbers the copied tokens from 1.
    """
    rng = generator(seed)
    blank, copy = config.vocab_size - 2, config.vocab_size - 1
    context = config.length - config.tokens - 1
    tokens = rng.integers(0, blank, (config.examples, config.tokens), dtype=np.int32)
    positions = np.sort(rng.random((config.examples, context)).argsort(axis=1)[:, : config.tokens], axis=1)
    inputs = np.full((config.examples, config.length), blank, dtype=np.int32)
    np.put_along_axis(inputs, positions, tokens, axis=1)
    inputs[:, context] = copy
    labels = np.full_like(inputs, IGNORED)
    labels[:, context + 1 :] = tokens
    order = np.zeros_like(inputs)
    order[:, context + 1 :] = np.arange(1, config.tokens + 1)
    return Examples(inputs, labels, {"order": order})
