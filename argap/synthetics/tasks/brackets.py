"""Stacks: which bracket closes here (Dyck languages of bounded depth), and what was pushed (a stack machine).

Legend: E examples, N tokens, V vocabulary, k kinds of brackets, m depth, S stacks.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from msgspec import Meta

from argap.errors import ArgapError
from argap.files.configs import Count
from argap.synthetics.tasks.examples import IGNORED, Examples, TaskConfig, generator
from argap.synthetics.tasks.recall.scatter import check_fewest, draw_sizes


@dataclass(frozen=True)
class BracketsConfig(TaskConfig):
    """One data set of `build_brackets`. Raises `ArgapError` for sizes that do not fit."""

    length: Annotated[int, Meta(ge=4, le=2**24)] = 128
    kinds: Annotated[int, Meta(ge=2, le=2**20)] = 8
    """k."""
    depth: Annotated[int, Meta(ge=2, le=2**12)] = 8
    """m: most brackets that are open at once."""
    shortest: Count | None = 4
    """Fewest tokens; all even sizes up to N are equally likely. None: always the largest of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fewest("shortest", self.shortest, self.length, 4)

    @property
    def vocab_size(self) -> int:
        """V: k opening brackets, the closing ones in the same order, and a token that fills."""
        return 2 * self.kinds + 1


def build_brackets(config: BracketsConfig, seed: int) -> Examples:
    """Build the examples of a seed: balanced brackets of k kinds and depth m, as in Dyck-(k, m), arXiv 2010.07515.

    Two brackets open first; then the next one opens or closes with equal chances where both are possible. A closing
    bracket is labelled unless it follows its opening one, which would tell its kind. ``slices["depth"]`` is the number
    of open brackets before it, ``slices["distance"]`` how far it is from the opening one.
    """
    rng = generator(seed)
    sizes = 2 * draw_sizes(
        rng, None if config.shortest is None else -(-config.shortest // 2), config.length // 2, config.examples
    )
    shape = (config.examples, config.length)
    inputs = np.full(shape, 2 * config.kinds, dtype=np.int32)
    labels = np.full(shape, IGNORED, dtype=np.int32)
    distance, nested = np.zeros((2, *shape), dtype=np.int32)
    kind = rng.integers(0, config.kinds, shape)
    wish = rng.random(shape) < 0.5
    rows = np.arange(config.examples)
    depth = np.zeros(config.examples, dtype=np.int64)
    opened = np.zeros((config.examples, config.depth), dtype=np.int64)  # positions of the open brackets
    for t in range(2 * (config.length // 2)):
        must_close = (depth == config.depth) | (depth >= sizes - t)
        opens = (t < sizes) & ((depth == 0) | (t < 2) | (wish[:, t] & ~must_close))
        closes = (t < sizes) & ~opens
        inputs[opens, t] = kind[opens, t]
        opened[rows[opens], depth[opens]] = t
        start = opened[rows[closes], depth[closes] - 1]
        inputs[closes, t] = config.kinds + inputs[rows[closes], start]
        far = t - start > 1
        asked = rows[closes][far]
        labels[asked, t] = inputs[asked, t]
        distance[asked, t], nested[asked, t] = (t - start)[far], depth[asked]
        depth += opens.astype(np.int64) - closes
    return Examples(inputs, labels, {"depth": nested, "distance": distance})


@dataclass(frozen=True)
class StackMachineConfig(TaskConfig):
    """One data set of `build_stack_machine`. Raises `ArgapError` for sizes that do not fit."""

    length: Annotated[int, Meta(ge=4, le=2**24)] = 128
    """N: an operation has two tokens."""
    stacks: Count = 4
    """S."""
    depth: Annotated[int, Meta(ge=1, le=2**12)] = 8
    """Most values on a stack."""
    vocab_size: int = 40
    """V: a push and a pop for each stack; the values; and a token that fills."""
    shortest: Count | None = 2
    """Fewest operations; all numbers up to N / 2 are equally likely. None: always N / 2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fewest("shortest", self.shortest, self.length // 2, 2)
        if self.values < 2:
            raise ArgapError(
                f"{self.stacks} stacks and 2 values need a vocabulary of at least "
                f"{2 * self.stacks + 3} tokens, it has {self.vocab_size}"
            )

    @property
    def values(self) -> int:
        """Number of values. They follow the pushes and pops in the vocabulary."""
        return self.vocab_size - 2 * self.stacks - 1


def build_stack_machine(config: StackMachineConfig, seed: int) -> Examples:
    """Build the examples of a seed: pushes ``(push s, value)`` and pops ``(pop s, value)`` of S stacks.

    After the task of that name in Kimi Linear (arXiv 2510.26692). The value of a pop, the last one on its
    stack, is labelled. A stack is drawn for each operation, which pushes or pops with equal chances where both are
    possible; the last operation pops if a stack has a value. ``slices["depth"]`` is the number of values on the stack
    before the pop, ``slices["distance"]`` how far the answer is from the push of its value.
    """
    rng = generator(seed)
    count = config.length // 2
    sizes = draw_sizes(rng, config.shortest, count, config.examples)
    shape = (config.examples, config.length)
    inputs = np.full(shape, config.vocab_size - 1, dtype=np.int32)
    labels = np.full(shape, IGNORED, dtype=np.int32)
    distance, held = np.zeros((2, *shape), dtype=np.int32)
    stack = rng.integers(0, config.stacks, (config.examples, count))
    value = 2 * config.stacks + rng.integers(0, config.values, (config.examples, count))
    wish = rng.random((config.examples, count)) < 0.5
    rows = np.arange(config.examples)
    depth = np.zeros((config.examples, config.stacks), dtype=np.int64)
    pushed = np.zeros((config.examples, config.stacks, config.depth), dtype=np.int64)  # positions of the values
    for step in range(count):
        last = (step == sizes - 1) & depth.any(axis=1)
        some = np.where(depth > 0, rng.random(depth.shape), -1.0).argmax(axis=1)  # a stack that has a value
        on = np.where(last, some, stack[:, step])
        size = depth[rows, on]
        pushes = ~last & ((size == 0) | (wish[:, step] & (size < config.depth)))
        for chosen, sign in (((step < sizes) & pushes, 1), ((step < sizes) & ~pushes, -1)):
            who, which, at = rows[chosen], on[chosen], 2 * step + 1
            inputs[who, at - 1] = which + (0 if sign == 1 else config.stacks)
            if sign == 1:
                inputs[who, at] = value[chosen, step]
                pushed[who, which, size[chosen]] = at
            else:
                source = pushed[who, which, size[chosen] - 1]
                inputs[who, at] = labels[who, at] = inputs[who, source]
                distance[who, at], held[who, at] = at - source, size[chosen]
            depth[who, which] += sign
    return Examples(inputs, labels, {"depth": held, "distance": distance})
