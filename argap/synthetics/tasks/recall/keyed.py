"""MQAR with more than a key: keys of two parts, keys written again, and keys under a context.

Legend: E examples, N tokens, V vocabulary, P pairs of key and value, Q = P questions.
"""

from dataclasses import dataclass

import numpy as np

from argap.files.configs import Count, Length, Positive, Vocabulary, Whole
from argap.synthetics.tasks.examples import Examples, TaskConfig, generator
from argap.synthetics.tasks.recall.scatter import (
    Context,
    Questions,
    check_fewest,
    check_room,
    check_vocabulary,
    distinct,
    draw_sizes,
    in_random_order,
    scatter,
)


@dataclass(frozen=True)
class CompositionalConfig(TaskConfig):
    """One data set of `build_compositional`. Raises `ArgapError` for sizes that do not fit."""

    length: Length = 128
    grid: Count = 4
    """Most first parts g, and as many second parts: every one of their P = g² combinations has a value."""
    fewest: Count | None = 2
    """Fewest parts g; all g up to ``grid`` are equally likely. None: always ``grid``."""
    vocab_size: Vocabulary = 256
    """V: a third each for first parts, second parts and values; the last token fills."""
    alpha: Positive = 0.1
    """Exponent of the distances, as in MQAR."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fewest("fewest", self.fewest, self.grid)
        pairs = self.grid**2
        check_vocabulary(self.vocab_size, f"{pairs} values of {self.grid} x {self.grid} keys", 3 * pairs + 1)
        check_room(self.length, f"{pairs} keys of two parts, their values and questions", 6 * pairs)

    @property
    def part(self) -> int:
        """Number of tokens for each part of a key, and for values."""
        return (self.vocab_size - 1) // 3


def build_compositional(config: CompositionalConfig, seed: int) -> Examples:
    """Build the examples of a seed: keys of two tokens, of which neither alone tells the value.

    After HazyResearch/zoology (``compositional_ar.py``): g first parts and g second parts, all g² combinations in
    random order, each followed by a value of its own; then every combination again, followed by its value, the label.
    ``slices["pairs"]`` is P = g².
    """
    rng = generator(seed)
    examples, grid, part = config.examples, config.grid, config.part
    sizes = draw_sizes(rng, config.fewest, grid, examples)
    firsts, seconds = (distinct(rng, np.arange(part) + k * part, grid, examples) for k in (0, 1))
    values = distinct(rng, np.arange(part) + 2 * part, grid * grid, examples)
    row, column = np.divmod(np.arange(grid * grid), grid)
    present = (row < sizes[:, None]) & (column < sizes[:, None])
    order = in_random_order(rng, present)
    keys = np.stack([firsts[:, row], seconds[:, column]], axis=2)
    records = np.concatenate([np.take_along_axis(keys, order[..., None], axis=1), values[..., None]], axis=2)
    present = np.take_along_axis(present, order, axis=1)
    sources = np.full(records.shape, -1)
    sources[..., 2] = 3 * np.arange(grid * grid) + 1
    pairs = np.broadcast_to((sizes**2)[:, None], present.shape)
    context = Context(records.reshape(examples, -1), 3 * sizes**2)
    questions = Questions(records, present, sources, {"pairs": pairs})
    return scatter(rng, context, questions, config.length, config.alpha, config.vocab_size - 1)


@dataclass(frozen=True)
class ForgettingConfig(TaskConfig):
    """One data set of `build_forgetting`. Raises `ArgapError` for sizes that do not fit."""

    length: Length = 128
    pairs: Count = 16
    """Most keys P."""
    fewest: Count | None = 4
    """Fewest keys; all numbers up to ``pairs`` are equally likely. None: always ``pairs``."""
    updates: Whole = 8
    """Further writes to any of these keys; fewer in proportion in an example of fewer keys."""
    vocab_size: Vocabulary = 256
    """V: half keys, half values; the last token fills."""
    alpha: Positive = 0.1
    """Exponent of the distances, as in MQAR."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fewest("fewest", self.fewest, self.pairs)
        writes = self.pairs + self.updates
        check_vocabulary(self.vocab_size, f"{writes} writes to {self.pairs} keys", 2 * writes + 1)
        check_room(self.length, f"{writes} writes and {self.pairs} questions", 2 * (writes + self.pairs))

    @property
    def half(self) -> int:
        """Number of keys, and of values."""
        return (self.vocab_size - 1) // 2


def build_forgetting(config: ForgettingConfig, seed: int) -> Examples:
    """Build the examples of a seed: keys are written several times, and the last value counts.

    After HazyResearch/zoology (``forgetting_mqar.py``), where all first writes come before all updates; here the writes
    are shuffled, so that the place of a write does not tell whether it is the last. No value is written twice.
    ``slices["writes"]`` is how often the key was written, ``slices["pairs"]`` the number of keys; the distance counts
    from the last write.
    """
    rng = generator(seed)
    examples, most = config.examples, config.pairs
    count = most + config.updates
    sizes = draw_sizes(rng, config.fewest, most, examples)
    further = config.updates * sizes // most
    keys = distinct(rng, np.arange(config.half), most, examples)
    values = distinct(rng, np.arange(config.half) + config.half, count, examples)
    index = np.broadcast_to(np.arange(count), (examples, count)).copy()
    index[:, most:] = rng.integers(0, sizes[:, None], (examples, config.updates))
    slot = np.arange(count)
    present = np.where(slot < most, slot < sizes[:, None], slot - most < further[:, None])
    index = np.take_along_axis(index, in_random_order(rng, present), axis=1)
    last, writes = np.zeros((2, examples, most), dtype=np.int64)
    rows = np.arange(examples)
    for write in range(count):
        real = write < sizes + further
        last[rows[real], index[real, write]] = write
        writes[rows[real], index[real, write]] += 1
    index[slot >= (sizes + further)[:, None]] = 0  # beyond the end of the context
    context = np.stack([np.take_along_axis(keys, index, axis=1), values], axis=2).reshape(examples, -1)
    asked = np.stack([keys, np.take_along_axis(values, last, axis=1)], axis=2)
    sources = np.stack([np.full_like(last, -1), 2 * last], axis=2)
    slices = {"writes": writes, "pairs": np.broadcast_to(sizes[:, None], writes.shape)}
    questions = Questions(asked, np.arange(most) < sizes[:, None], sources, slices)
    return scatter(
        rng, Context(context, 2 * (sizes + further)), questions, config.length, config.alpha, config.vocab_size - 1
    )


@dataclass(frozen=True)
class JointRecallConfig(TaskConfig):
    """One data set of `build_joint`. Raises `ArgapError` for sizes that do not fit."""

    length: Length = 128
    contexts: Count = 4
    """Most contexts."""
    fewest: Count | None = 1
    """Fewest contexts; all numbers up to ``contexts`` are equally likely. None: always ``contexts``."""
    keys: Count = 4
    """Keys, the same under every context."""
    vocab_size: Vocabulary = 256
    """V: a quarter contexts, a quarter keys, half values; the last token fills."""
    alpha: Positive = 0.1
    """Exponent of the distances, as in MQAR."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fewest("fewest", self.fewest, self.contexts)
        pairs = self.contexts * self.keys
        needed = max(4 * max(self.contexts, self.keys), 2 * pairs) + 1
        check_vocabulary(self.vocab_size, f"{self.keys} keys under {self.contexts} contexts", needed)
        what = f"{self.contexts} contexts of {self.keys} keys, their values and questions"
        check_room(self.length, what, self.contexts + 5 * pairs)

    @property
    def quarter(self) -> int:
        """Number of contexts, and of keys; there are twice as many values."""
        return (self.vocab_size - 1) // 4


def build_joint(config: JointRecallConfig, seed: int) -> Examples:
    """Build the examples of a seed: a context, then keys and their values under it, and so on; then the questions.

    After joint recall (arXiv 2507.00449): the same keys occur under every context with other values, in another order.
    A question names a context and a key; its label is the value. Our layout names a context once, before its pairs.
    ``slices["contexts"]`` is the number of contexts.
    """
    rng = generator(seed)
    examples, most, count, quarter = config.examples, config.contexts, config.keys, config.quarter
    sizes = draw_sizes(rng, config.fewest, most, examples)
    contexts = distinct(rng, np.arange(quarter), most, examples)
    keys = distinct(rng, np.arange(quarter) + quarter, count, examples)
    values = distinct(rng, np.arange(2 * quarter) + 2 * quarter, most * count, examples).reshape(examples, most, count)
    order = rng.random((examples, most, count)).argsort(axis=2)
    shuffled = np.take_along_axis(np.broadcast_to(keys[:, None], order.shape), order, axis=2)
    width = 1 + 2 * count
    blocks = np.empty((examples, most, width), dtype=np.int32)
    blocks[..., 0], blocks[..., 1::2], blocks[..., 2::2] = contexts, shuffled, values
    named = np.broadcast_to(contexts[..., None], order.shape)
    asked = np.stack([named, shuffled, values], axis=3).reshape(examples, -1, 3)
    sources = np.full(asked.shape, -1)
    sources[..., 2] = (width * np.arange(most)[:, None] + 1 + 2 * np.arange(count)).ravel()
    present = np.repeat(np.arange(most) < sizes[:, None], count, axis=1)
    slices = {"contexts": np.broadcast_to(sizes[:, None], present.shape)}
    questions = Questions(asked, present, sources, slices)
    context = Context(blocks.reshape(examples, -1), width * sizes)
    return scatter(rng, context, questions, config.length, config.alpha, config.vocab_size - 1)
