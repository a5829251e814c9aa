"""Multi-query associative recall (MQAR): key-value (KV) pairs, then every key a second time as a query.

Source: arXiv 2312.04927, section 3.2 and algorithm 1.

Legend: E examples, N tokens, V vocabulary, D KV pairs, S slots.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from argap.errors import ArgapError
from argap.files.configs import Count, Length, Positive, Vocabulary
from argap.synthetics.tasks.examples import IGNORED, Examples, TaskConfig, generator

ROWS = 1024
"""Examples built at once, so that intermediate arrays fit the cache. Changing it changes the data of a seed."""
ROUNDS = 4
"""Rounds of rejection sampling of a slot before it is drawn from the free slots directly."""


@dataclass(frozen=True)
class MqarConfig(TaskConfig):
    """One data set. Raises `ArgapError` for inconsistent sizes."""

    length: Length
    """N: tokens per example."""
    pairs: Count
    """D: KV pairs per example. They take 2·D tokens, and their second occurrences another 2·D."""
    vocab_size: Vocabulary = 8192
    """V: keys come from the first half of the vocabulary, values from the second."""
    alpha: Positive = 0.1
    """Exponent of the distribution of distances, p(d) ∝ d^(α − 1): near 0 favours short distances, 1 is uniform."""
    fill: int | None = None
    """Token at all other positions; if None, noise: tokens that are neither a key nor a value of the example."""
    layout: Literal["paper", "zoology"] = "paper"
    """``zoology`` reproduces the layout of the paper's public code, for comparison with its numbers: the
    distribution is over the distance from the end of the pairs, the same for every pair; the value does not
    follow the query in the inputs; noise may be any token, including an unlabelled key; token 0 is never a key."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length < 4 * self.pairs:
            raise ArgapError(
                f"mqar: {self.pairs} pairs and their second occurrences need {4 * self.pairs} tokens, "
                f"the length is {self.length}"
            )
        if self.fill is not None and not 0 <= self.fill < self.vocab_size:
            raise ArgapError(f"mqar: fill {self.fill}; expected a token from 0 to {self.vocab_size - 1}")
        noise = self.length > 4 * self.pairs and self.fill is None and self.layout == "paper"
        if min(len(self.keys), len(self.values)) < self.pairs or (noise and self.vocab_size == 2 * self.pairs):
            raise ArgapError(
                f"mqar: a vocabulary of {self.vocab_size} tokens is too small for {self.pairs} keys, as many values "
                "and noise"
            )

    @property
    def keys(self) -> np.ndarray:
        """Return the tokens that may be keys."""
        return self._without_fill(1 if self.layout == "zoology" else 0, self.vocab_size // 2)

    @property
    def values(self) -> np.ndarray:
        """Return the tokens that may be values."""
        return self._without_fill(self.vocab_size // 2, self.vocab_size)

    def _without_fill(self, start: int, stop: int) -> np.ndarray:
        tokens = np.arange(start, stop, dtype=np.int32)
        return tokens if self.fill is None else tokens[tokens != self.fill]


def build(config: MqarConfig, seed: int) -> Examples:
    """Build the examples of a seed.

    An example starts with D pairs of distinct keys and distinct values. The rest is divided into slots of two tokens.
    One after the other, the pairs take a free slot for their second occurrence, with probability proportional to d^(α −
    1), where d is the distance from the key to the query, its second occurrence. The distribution is thus the same for
    every pair, wherever it is. The label is the value after the query; the inputs contain it as well, as text contains
    its own next token. Noise is drawn from the tokens that are neither a key nor a value of the example, so a key is
    always followed by its value. (`MqarConfig.layout` says what "zoology" changes.)

    ``slices["distance"]`` is d at each label.
    """
    rng = generator(seed)
    shape = (config.examples, config.length)
    inputs = np.empty(shape, dtype=np.int32)
    labels = np.full(shape, IGNORED, dtype=np.int32)
    distance = np.zeros(shape, dtype=np.int32)
    first = 2 * np.arange(config.pairs, dtype=np.int32)  # positions of the keys
    all_keys = draw_without_replacement(rng, config.keys, config.pairs)
    all_values = draw_without_replacement(rng, config.values, config.pairs)
    for start in range(0, config.examples, ROWS):
        part = slice(start, start + ROWS)
        keys, values = next(all_keys), next(all_values)
        again = 2 * config.pairs + 2 * draw_slots(rng, config)
        tokens = _noise(rng, config, keys, values)
        tokens[:, first], tokens[:, first + 1] = keys, values
        rows = np.arange(ROWS)[:, None]
        tokens[rows, again] = keys
        if config.layout == "paper":
            tokens[rows, again + 1] = values
        count = len(inputs[part])  # fewer than ROWS in the last block
        inputs[part] = tokens[:count]
        np.put_along_axis(labels[part], again[:count] + 1, values[:count], axis=1)
        np.put_along_axis(distance[part], again[:count] + 1, (again - first)[:count], axis=1)
    return Examples(inputs, labels, {"distance": distance})


def slot_probabilities(config: MqarConfig, pair: int) -> np.ndarray:
    """Return the probability of each slot ``[S]`` for a pair's second occurrence if all are free: ∝ d^(α − 1)."""
    slots = np.arange((config.length - 2 * config.pairs) // 2)
    distances = slots + 1 if config.layout == "zoology" else config.pairs + slots - pair  # in slots of two tokens
    weights = distances.astype(np.float64) ** (config.alpha - 1)
    return weights / weights.sum()


def draw_slots(rng: np.random.Generator, config: MqarConfig) -> np.ndarray:
    """Draw the slots of the pairs of `ROWS` examples, ``[ROWS, D]``, pair by pair from the free slots.

    The draws follow `slot_probabilities`, restricted to the free slots, by rejection sampling. A pair without a
    slot after `ROUNDS` rounds draws from the renormalized probabilities of the free slots.
    """
    chosen = np.empty((ROWS, config.pairs), dtype=np.int64)
    probabilities = np.stack([slot_probabilities(config, pair) for pair in range(config.pairs)])
    taken = np.zeros((ROWS, probabilities.shape[1]), dtype=bool)
    for pair, law in enumerate(probabilities):
        cumulative = np.cumsum(law)
        pending = np.arange(ROWS)
        for _ in range(ROUNDS):
            drawn = np.searchsorted(cumulative[:-1], rng.random(len(pending)), side="right")
            free = ~taken[pending, drawn]
            chosen[pending[free], pair] = drawn[free]
            pending = pending[~free]
        left = np.cumsum(np.where(taken[pending], 0.0, law), axis=1)
        aim = rng.random((len(pending), 1)) * left[:, -1:]
        chosen[pending, pair] = (left <= aim).sum(axis=1)
        taken[np.arange(ROWS), chosen[:, pair]] = True
    return chosen


def draw_without_replacement(rng: np.random.Generator, tokens: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """Yield arrays ``[ROWS, count]`` of distinct ``tokens`` per row, endlessly; all orders are equally likely.

    This is a Fisher-Yates shuffle stopped after ``count`` steps. The pool need not be reset between draws
    because the shuffle is uniform from any initial order.
    """
    pool = np.tile(tokens, (ROWS, 1))
    rows = np.arange(ROWS)
    while True:
        for step in range(count):
            other = rng.integers(step, len(tokens), ROWS)
            pool[rows, step], pool[rows, other] = pool[rows, other], pool[rows, step]
        yield pool[:, :count].copy()


def _noise(rng: np.random.Generator, config: MqarConfig, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the fill token, or tokens that are neither a key nor a value of their row, ``[ROWS, N]``."""
    shape = (ROWS, config.length)
    if config.fill is not None:
        return np.full(shape, config.fill, dtype=np.int32)
    noise = rng.integers(0, config.vocab_size, shape, dtype=np.int32)
    if config.layout == "zoology" or config.length == 4 * config.pairs:  # anything is allowed, or all is overwritten
        return noise
    rows = np.arange(ROWS)[:, None]
    own = np.zeros((ROWS, config.vocab_size), dtype=bool)
    own[rows, keys] = own[rows, values] = True
    row, column = np.nonzero(own[rows, noise])
    while len(row):
        noise[row, column] = rng.integers(0, config.vocab_size, len(row), dtype=np.int32)
        again = own[row, noise[row, column]]
        row, column = row[again], column[again]
    return noise
