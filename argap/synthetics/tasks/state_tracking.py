"""State tracking: word problems of groups. Every token is an element, every answer the product so far.

Parity (Z2), addition modulo m (Zm), and the permutations S3, S5 and A5, as in arXiv 2404.08819 and arXiv 2411.12537.
A5 and S5 are not solvable: their word problem is complete for NC¹.

Legend: E examples, N tokens, G elements of the group.
"""

import itertools
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from argap.errors import ArgapError
from argap.synthetics.tasks.examples import IGNORED, Examples, TaskConfig, generator

LARGEST = 720
"""Most elements of a group: its table of products has as many squared."""


@dataclass(frozen=True)
class StateTrackingConfig(TaskConfig):
    """One data set. Raises `ArgapError` for an unknown group and for swaps that it does not have."""

    length: Annotated[int, Meta(ge=2)] = 64
    group: str = "S3"
    """``Zm`` (addition modulo m), ``Sn`` or ``An`` (all, or all even, permutations of n things), of at most 720
    elements."""
    elements: Literal["all", "swaps"] = "all"
    """Which elements are tokens: all, or the identity and the exchanges of two things. A swap is a reflection, one
    step of a delta rule whose β reaches 2; other permutations take several."""
    asked: Literal["all", "last"] = "all"
    """Label every position but the first, so that a window mixes all lengths up to N, or the last one only."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.elements == "swaps" and not re.fullmatch(r"S\d+", self.group):
            raise ArgapError(f"swaps of {self.group}; expected a group Sn")
        group_elements(self.group)

    @property
    def vocab_size(self) -> int:
        """V = G."""
        return len(group_elements(self.group))


@lru_cache
def group_elements(group: str) -> tuple[tuple[int, ...], ...]:
    """Return the elements of a group as permutations (``p[i]``: where thing i goes), the identity first.

    Addition modulo m is by rotations of m things. Raises `ArgapError` for an unknown or too large group.
    """
    match = re.fullmatch(r"([ASZ])([1-9]\d{0,3})", group)
    kind, n = (match[1], int(match[2])) if match else ("", 0)
    if kind == "Z" and 2 <= n <= LARGEST:
        return tuple(tuple((i + k) % n for i in range(n)) for k in range(n))
    if kind in "AS" and kind and 3 - (kind == "S") <= n <= 6:
        every = itertools.permutations(range(n))
        return tuple(p for p in every if kind == "S" or not _is_odd(p))
    raise ArgapError(f"group {group!r}; expected Z2 to Z{LARGEST}, S2 to S6, or A3 to A6")


@lru_cache
def products(group: str) -> np.ndarray:
    """Return the table ``[G, G]`` of numbers of elements: first ``a``, then ``b``, is ``table[a, b]``."""
    elements = group_elements(group)
    number = {element: k for k, element in enumerate(elements)}
    return np.array([[number[tuple(b[i] for i in a)] for b in elements] for a in elements], dtype=np.int32)


def _is_odd(permutation: tuple[int, ...]) -> bool:
    return sum(a > b for a, b in itertools.combinations(permutation, 2)) % 2 == 1


def tokens(config: StateTrackingConfig) -> np.ndarray:
    """Return the numbers of the elements that occur in the inputs."""
    elements = group_elements(config.group)
    moved = [sum(k != to for k, to in enumerate(element)) for element in elements]
    return np.array([k for k, n in enumerate(moved) if config.elements == "all" or n in (0, 2)], dtype=np.int32)


def build(config: StateTrackingConfig, seed: int) -> Examples:
    """Build the examples of a seed: random elements, each labelled with the product of those up to it.

    The label is the output *at* its own position. The first position has none: its answer would be its token.
    ``slices["steps"]`` is the number of factors.
    """
    rng = generator(seed)
    table, choices = products(config.group), tokens(config)
    inputs = choices[rng.integers(0, len(choices), (config.examples, config.length))]
    labels = np.empty_like(inputs)
    labels[:, 0] = inputs[:, 0]
    for t in range(1, config.length):
        labels[:, t] = table[labels[:, t - 1], inputs[:, t]]
    first = 1 if config.asked == "all" else config.length - 1
    labels[:, :first] = IGNORED
    steps = np.where(labels == IGNORED, 0, np.arange(1, config.length + 1)).astype(np.int32)
    return Examples(inputs, labels, {"steps": steps})
