"""Grow a tree of conditions that separates the tokens on which a model is behind, or ahead, from all tokens.

Each node has a share p of the tokens and a share g of ΔNLL, negative where the model is ahead. The tree splits where
the distributions of tokens, of losses and of gains differ most, by the Gini impurity 2pg / (p + g) of each sign
(scikit-learn has no such criterion). A regression tree, which minimises the squared error of ΔNLL, prefers ever
smaller sets of extreme tokens to conditions that explain much of the gap. The features are binned first, so that the
tree needs only sums by cell, however many tokens there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np


class Feature(NamedTuple):
    """A column in bins ``0 … len(highs)``; the tree can split between any two of them."""

    column: str
    """Column of `argap.tokens.table`; for a flag, the condition under which it is 1."""
    highs: tuple[int | str, ...] = ()
    """The highest value of each bin but the last, text quoted as in SQL; empty for a flag."""
    negated: str = ""
    """For a flag, the condition under which it is 0, by default NOT ``column``."""
    whole: bool = True
    """Whether all values are whole numbers."""

    @property
    def bins(self) -> int:
        return len(self.highs) + 1 if self.highs else 2

    @property
    def bin(self) -> str:
        """Return SQL for the bin of a token."""
        above = " + ".join(f"({self.column} > {high})::INT" for high in self.highs)
        return above or f"({self.column})::INT"

    def sql(self, low: int, high: int) -> str:
        """Return the condition for the bins ``low … high``, which must not be all of them.

        >>> Feature("train_count", (0, 10, 100)).sql(1, 2), Feature("train_count", (0, 10, 100)).sql(0, 0)
        ('train_count BETWEEN 1 AND 100', 'train_count <= 0')
        """
        if not self.highs:
            return self.column if low else self.negated or f"NOT {self.column}"
        if low == 0:
            return f"{self.column} <= {self.highs[high]}"
        if high == len(self.highs):
            return f"{self.column} > {self.highs[low - 1]}"
        below, last = self.highs[low - 1], self.highs[high]
        if self.whole:
            return f"{self.column} BETWEEN {int(below) + 1} AND {last}"
        return f"{self.column} > {below} AND {self.column} <= {last}"


@dataclass(frozen=True)
class Node:
    """A condition: a range of bins of each of some features."""

    depth: int
    rows: np.ndarray = field(repr=False)
    """int ``[K]``: its cells."""
    bins: dict[int, tuple[int, int]]
    """The lowest and highest bin by feature."""
    leaf: bool = True

    def sql(self, features: Sequence[Feature]) -> str:
        return " AND ".join(features[k].sql(*ends) for k, ends in self.bins.items()) or "true"

    def holds(self, codes: np.ndarray) -> np.ndarray:
        """Return bool ``[C]``: which of the cells ``codes [C, F]`` are in the node."""
        inside = np.ones(len(codes), dtype=bool)
        for k, (low, high) in self.bins.items():
            inside &= (codes[:, k] >= low) & (codes[:, k] <= high)
        return inside


class _Split(NamedTuple):
    gain: float
    feature: int
    bin: int


def grow(
    codes: np.ndarray,
    n: np.ndarray,
    lost: np.ndarray,
    features: Sequence[Feature],
    *,
    depth: int,
    min_share: float,
    leaves: int,
) -> list[Node]:
    """Return all nodes of the tree, leaves and inner ones, except the root.

    ``codes [C, F]``: the bin of each feature; ``n [C]``: tokens; ``lost [C]``: ΔNLL's sum, in nats. ``depth``:
    the longest chain of conditions; ``min_share``: the least share of the tokens in a leaf; ``leaves``: the
    maximum number of leaves. The splits with the largest gain come first. Without tokens there are none.
    """
    if not len(n):
        return []
    share, gap = n / n.sum(), lost / _most(codes, lost, features)

    def best(node: Node) -> _Split | None:
        return _best_split(codes[node.rows], share[node.rows], gap[node.rows], features, min_share)

    root = Node(0, np.arange(len(n)), {})
    nodes: list[Node] = [root]
    queue: list[tuple[float, int, _Split]] = []

    def consider(index: int) -> None:
        if nodes[index].depth < depth and (split := best(nodes[index])) is not None:
            heappush(queue, (-split.gain, index, split))

    consider(0)
    count = 1
    while queue and count < leaves:
        _, index, split = heappop(queue)
        parent = nodes[index]
        nodes[index] = Node(parent.depth, parent.rows, parent.bins, leaf=False)
        low, high = parent.bins.get(split.feature, (0, features[split.feature].bins - 1))
        below = codes[parent.rows, split.feature] <= split.bin
        for ends, rows in (((low, split.bin), below), ((split.bin + 1, high), ~below)):
            nodes.append(Node(parent.depth + 1, parent.rows[rows], parent.bins | {split.feature: ends}))
            consider(len(nodes) - 1)
        count += 1
    return nodes[1:]


def _best_split(
    codes: np.ndarray, share: np.ndarray, gap: np.ndarray, features: Sequence[Feature], min_share: float
) -> _Split | None:
    """Return the split that best separates ΔNLL from the tokens, on ties the first feature; None if none helps."""
    best: _Split | None = None
    for k, feature in enumerate(features):
        p = np.cumsum(np.bincount(codes[:, k], share, minlength=feature.bins))
        g = np.cumsum(np.bincount(codes[:, k], gap, minlength=feature.bins))
        gain = np.zeros(len(p) - 1)
        for sign in (1, -1):
            below, above = np.maximum(sign * g[:-1], 0), np.maximum(sign * (g[-1] - g[:-1]), 0)
            gain += _impurity(p[-1], below + above) - _impurity(p[:-1], below) - _impurity(p[-1] - p[:-1], above)
        gain[(p[:-1] < min_share) | (p[-1] - p[:-1] < min_share)] = 0
        at = int(gain.argmax())
        if gain[at] > max(1e-9, (best.gain if best else 0) * (1 + 1e-9)):
            best = _Split(float(gain[at]), k, at)
    return best


def _most(codes: np.ndarray, lost: np.ndarray, features: Sequence[Feature]) -> float:
    """Return the largest sum of |ΔNLL| over the bins of one feature: |ΔNLL| itself if all bins go one way."""
    sums = (np.bincount(codes[:, k], lost, minlength=each.bins) for k, each in enumerate(features))
    return max(float(np.abs(each).sum()) for each in sums) or 1.0


def _impurity(share: np.ndarray | float, gap: np.ndarray) -> np.ndarray:
    """Return 2pg / (p + g), 0 if both are 0."""
    return np.divide(2 * share * gap, share + gap, out=np.zeros_like(gap), where=share + gap > 0)
