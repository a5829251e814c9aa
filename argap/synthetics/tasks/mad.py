"""Three tasks of MAD (arXiv 2403.17844, section 3): compression, memorization and selective copying."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from argap.errors import ArgapError
from argap.files.configs import Count, Seed
from argap.synthetics.tasks.examples import IGNORED, Examples, TaskConfig, generator


@dataclass(frozen=True)
class CompressionConfig(TaskConfig):
    """One data set."""

    length: Annotated[int, Meta(ge=2)] = 32
    vocab_size: Annotated[int, Meta(ge=3)] = 16
    """The last token of the vocabulary ends the sequence."""


def build_compression(config: CompressionConfig, seed: int) -> Examples:
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


def build_memorization(config: MemorizationConfig, seed: int) -> Examples:
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


def build_selective_copy(config: SelectiveCopyConfig, seed: int) -> Examples:
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
