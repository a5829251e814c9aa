"""Selective copying: give back the tokens that stood among blanks, in their order (MAD, arXiv 2403.17844,
section 3)."""

from dataclasses import dataclass

import numpy as np

from argap.errors import ArgapError
from argap.synthetics.examples import IGNORED, Examples, generator


@dataclass(frozen=True)
class SelectiveCopyConfig:
    """One data set. Raises `ArgapError` for sizes that do not fit each other."""

    examples: int
    length: int = 256
    tokens: int = 16
    """How many are to be copied."""
    vocab_size: int = 16
    """The last token asks for the copy, the last but one is the blank."""

    def __post_init__(self) -> None:
        if self.examples < 1:
            raise ArgapError(f"{self.examples} examples; expected at least 1")
        if self.tokens < 1 or self.vocab_size < 3:
            raise ArgapError(
                f"tokens {self.tokens}, vocab_size {self.vocab_size}; expected at least 1 token, a vocabulary from 3"
            )
        if self.length < 2 * self.tokens + 1:
            raise ArgapError(
                f"{self.tokens} tokens and their copy need {2 * self.tokens + 1} places, the length is {self.length}"
            )


def build(config: SelectiveCopyConfig, seed: int) -> Examples:
    """The examples of a seed: tokens at random places among blanks, the token that asks, and blanks.

    The copy is labelled there, right behind the token that asks; it is not in the inputs. All sets of places
    are alike. ``slices["order"]`` is which token it is, from 1.
    """
    rng = generator(seed)
    blank, copy = config.vocab_size - 2, config.vocab_size - 1
    context = config.length - config.tokens - 1
    tokens = rng.integers(0, blank, (config.examples, config.tokens), dtype=np.int32)
    places = np.sort(rng.random((config.examples, context)).argsort(axis=1)[:, : config.tokens], axis=1)
    inputs = np.full((config.examples, config.length), blank, dtype=np.int32)
    np.put_along_axis(inputs, places, tokens, axis=1)
    inputs[:, context] = copy
    labels = np.full_like(inputs, IGNORED)
    labels[:, context + 1 :] = tokens
    order = np.zeros_like(inputs)
    order[:, context + 1 :] = np.arange(1, config.tokens + 1)
    return Examples(inputs, labels, {"order": order})
