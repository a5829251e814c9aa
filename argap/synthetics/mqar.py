"""Multi-query associative recall: pairs of key and value, and later each key again (arXiv 2312.04927, section
3.2 and algorithm 1).

Legend: E examples, N tokens, V vocabulary, D pairs, S slots.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from argap.errors import ArgapError
from argap.synthetics.examples import IGNORED, Examples, generator

ROWS = 1024
"""Examples made at once: their tables fit a cache. The bytes of a seed depend on it."""
ROUNDS = 4
"""Draws of a slot by rejection before the free ones are weighed one by one."""


@dataclass(frozen=True)
class MqarConfig:
    """One data set. Raises `ArgapError` for sizes that do not fit each other."""

    examples: int
    length: int
    """N: tokens of an example."""
    pairs: int
    """D: an example holds 2·D tokens of pairs, and as many of their second occurrences."""
    vocab_size: int = 8192
    """V: keys are drawn from its first half, values from its second."""
    alpha: float = 0.1
    """The nearer to 0, the nearer the second occurrences: p(d) ∝ d^(α − 1); 1 is uniform."""
    fill: int | None = None
    """The token of all other positions; None: drawn from those that are no key and no value there."""
    layout: Literal["paper", "zoology"] = "paper"
    """``zoology``: as the paper's public code lays examples out, for comparison with its numbers. There a
    slot's probability falls with its distance from the end of the pairs, the same for every pair; the value
    does not follow the query in the inputs; noise is any token, a key without a label too; and 0 is no key."""

    def __post_init__(self) -> None:
        if min(self.examples, self.pairs) < 1 or self.alpha <= 0:
            raise ArgapError(
                f"mqar: {self.examples} examples, {self.pairs} pairs, alpha {self.alpha}; expected more than 0"
            )
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
                f"mqar: a vocabulary of {self.vocab_size} is too small for {self.pairs} keys, "
                "as many values and the rest"
            )

    @property
    def keys(self) -> np.ndarray:
        """The tokens that keys are drawn from."""
        return self._without_fill(1 if self.layout == "zoology" else 0, self.vocab_size // 2)

    @property
    def values(self) -> np.ndarray:
        """The tokens that values are drawn from."""
        return self._without_fill(self.vocab_size // 2, self.vocab_size)

    def _without_fill(self, start: int, stop: int) -> np.ndarray:
        tokens = np.arange(start, stop, dtype=np.int32)
        return tokens if self.fill is None else tokens[tokens != self.fill]


def build(config: MqarConfig, seed: int) -> Examples:
    """The examples of a seed, the same bytes on any platform.

    Each begins with D pairs: distinct keys, each with a value of its own. The rest is cut into slots of two
    tokens. One pair after the other takes a free slot for its second occurrence, with a probability
    proportional to d^(α − 1), d being the distance from the key to its return, the query. So the law is one
    over distances, whatever the place of the pair. The value after the query is labelled; it stands in the
    inputs too, as the next token of a text does. Noise is drawn from the tokens that are neither key nor
    value of the example: after a key comes its value, always. (``layout`` says what "zoology" changes.)

    ``slices["distance"]`` is d at each label.
    """
    rng = generator(seed)
    shape = (config.examples, config.length)
    inputs = np.empty(shape, dtype=np.int32)
    labels = np.full(shape, IGNORED, dtype=np.int32)
    distance = np.zeros(shape, dtype=np.int32)
    first = 2 * np.arange(config.pairs, dtype=np.int32)  # where the keys stand
    all_keys = drawn_without_replacement(rng, config.keys, config.pairs)
    all_values = drawn_without_replacement(rng, config.values, config.pairs)
    for start in range(0, config.examples, ROWS):
        part = slice(start, min(start + ROWS, config.examples))
        keys, values = next(all_keys), next(all_values)
        again = 2 * config.pairs + 2 * draw_slots(rng, config)
        tokens = _noise(rng, config, keys, values)
        tokens[:, first], tokens[:, first + 1] = keys, values
        rows = np.arange(ROWS)[:, None]
        tokens[rows, again] = keys
        if config.layout == "paper":
            tokens[rows, again + 1] = values
        count = part.stop - part.start
        inputs[part] = tokens[:count]
        np.put_along_axis(labels[part], again[:count] + 1, values[:count], axis=1)
        np.put_along_axis(distance[part], again[:count] + 1, (again - first)[:count], axis=1)
    return Examples(inputs, labels, {"distance": distance})


def slot_law(config: MqarConfig, pair: int) -> np.ndarray:
    """p of each slot ``[S]`` for a pair's second occurrence, were all of them free: ∝ d^(α − 1)."""
    slots = np.arange((config.length - 2 * config.pairs) // 2)
    distances = slots + 1 if config.layout == "zoology" else config.pairs + slots - pair  # in slots of two tokens
    weights = distances.astype(np.float64) ** (config.alpha - 1)
    return weights / weights.sum()


def draw_slots(rng: np.random.Generator, config: MqarConfig) -> np.ndarray:
    """The slots of `ROWS` examples' pairs, ``[ROWS, D]``: pair after pair, by `slot_law` among the free ones.

    A slot that is taken is drawn again: what is kept then follows the law among the free ones. Where a few
    rounds find none, the free slots are weighed directly.
    """
    chosen = np.empty((ROWS, config.pairs), dtype=np.int64)
    laws = np.stack([slot_law(config, pair) for pair in range(config.pairs)])
    taken = np.zeros((ROWS, laws.shape[1]), dtype=bool)
    for pair, law in enumerate(laws):
        cumulative = np.cumsum(law)
        pending = np.arange(ROWS)
        for _ in range(ROUNDS):
            drawn = np.searchsorted(cumulative[:-1], rng.random(len(pending)), side="right")
            free = ~taken[pending, drawn]
            chosen[pending[free], pair] = drawn[free]
            pending = pending[~free]
            if not len(pending):
                break
        if len(pending):
            left = np.cumsum(np.where(taken[pending], 0.0, law), axis=1)
            aim = rng.random((len(pending), 1)) * left[:, -1:]
            chosen[pending, pair] = (left <= aim).sum(axis=1)
        taken[np.arange(ROWS), chosen[:, pair]] = True
    return chosen


def drawn_without_replacement(rng: np.random.Generator, tokens: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """Time and again ``count`` distinct ``tokens`` for each of `ROWS` rows, ``[ROWS, count]``, all orders alike.

    Fisher and Yates' shuffle, stopped after ``count`` steps; it needs no fresh start, because it does not
    matter in which order the tokens lie before."""
    pool = np.tile(tokens, (ROWS, 1))
    rows = np.arange(ROWS)
    while True:
        for place in range(count):
            other = rng.integers(place, len(tokens), ROWS)
            pool[rows, place], pool[rows, other] = pool[rows, other], pool[rows, place]
        yield pool[:, :count].copy()


def _noise(rng: np.random.Generator, config: MqarConfig, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """``[ROWS, N]`` of the fill token, or of tokens that are no key and no value of their row."""
    shape = (ROWS, config.length)
    if config.fill is not None:
        return np.full(shape, config.fill, dtype=np.int32)
    noise = rng.integers(0, config.vocab_size, shape, dtype=np.int32)
    if config.layout == "zoology" or config.length == 4 * config.pairs:  # all may stay, or none will
        return noise
    rows = np.arange(ROWS)[:, None]
    own = np.zeros((ROWS, config.vocab_size), dtype=bool)
    own[rows, keys] = own[rows, values] = True
    row, place = np.nonzero(own[rows, noise])
    while len(row):
        noise[row, place] = rng.integers(0, config.vocab_size, len(row), dtype=np.int32)
        again = own[row, noise[row, place]]
        row, place = row[again], place[again]
    return noise
