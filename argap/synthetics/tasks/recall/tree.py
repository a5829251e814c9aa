"""Associative treecall: recall by place in a tree, where the tree follows from a grammar that the weights must hold.

After arXiv 2505.15105 (aryamanarora/tinylang, tinylang/language/pcfg.py): a sentence in which every head comes before
what it governs, then an item of it and a relation (parent, child, sibling); the answer is the item so related. There,
rules are random and several answers may be right. Here the grammar is which tokens are heads, each with two
dependents, so that a sentence has one tree and a question one answer.

Legend: E examples, N tokens, V vocabulary, D depth.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated

import numpy as np
from msgspec import Meta

from argap.files.configs import Count, Length, Seed, Vocabulary
from argap.synthetics.tasks.examples import Examples, TaskConfig, generator
from argap.synthetics.tasks.recall.scatter import Context, Questions, check_room, check_vocabulary, scatter

RELATIONS = ("parent", "child", "sibling")
"""``child`` is the first one."""


@dataclass(frozen=True)
class TreeConfig(TaskConfig):
    """One data set. Raises `ArgapError` for sizes that do not fit."""

    length: Length = 64
    depth: Annotated[int, Meta(ge=1, le=10)] = 4
    """D: a node less deep is a head with a probability of ½, the root always. Sentences have 3 to 2^(D + 1) − 1
    tokens."""
    questions: Count = 4
    """Questions per example, drawn with replacement."""
    vocab_size: Vocabulary = 128
    """V: half of the items are heads, half are leaves; then a token for each relation, and one that fills."""
    grammar_seed: Seed = 0
    """Assigns the items to heads and leaves, in training and test alike."""

    def __post_init__(self) -> None:
        super().__post_init__()
        nodes = 2 ** (self.depth + 1) - 1
        check_vocabulary(self.vocab_size, f"sentences of {nodes} items", nodes + 1 + 4)
        what = f"sentences of {nodes} items and {self.questions} questions"
        check_room(self.length, what, nodes + 3 * self.questions)

    @property
    def items(self) -> int:
        """Number of items, an even number."""
        return (self.vocab_size - 4) // 2 * 2

    @property
    def heads(self) -> frozenset[int]:
        """Return the items that are heads."""
        return _heads(self.items, self.grammar_seed)


@lru_cache
def _heads(items: int, seed: int) -> frozenset[int]:
    return frozenset(generator(seed).permutation(items)[: items // 2].tolist())


def build(config: TreeConfig, seed: int) -> Examples:
    """Build the examples of a seed: a sentence of distinct items, then questions: item, relation, answer.

    The relation is drawn first, then the item among those that have it. ``slices["relation"]`` is 1 for parent, 2 for
    child, 3 for sibling; ``slices["depth"]`` 1 + the depth of the item; the distance counts from the item's place in
    the sentence.
    """
    rng = generator(seed)
    heads = np.array(sorted(config.heads))
    leaves = np.setdiff1d(np.arange(config.items), heads)
    nodes = 2 ** (config.depth + 1) - 1
    shape = (config.examples, config.questions)
    context = np.zeros((config.examples, nodes), dtype=np.int64)
    sizes = np.empty(config.examples, dtype=np.int64)
    asked, sources = np.zeros((2, *shape, 3), dtype=np.int64)
    sources[...] = -1
    depths = np.empty(shape, dtype=np.int64)
    relations = rng.integers(0, len(RELATIONS), shape)
    picks = rng.random(shape)
    for row in range(config.examples):
        depth, parent = draw_tree(rng, config.depth)
        related = relatives(parent)
        governs = related[1] >= 0
        items = np.empty(len(parent), dtype=np.int64)
        items[governs] = rng.permutation(heads)[: governs.sum()]
        items[~governs] = rng.permutation(leaves)[: (~governs).sum()]
        context[row, : len(items)], sizes[row] = items, len(items)
        for question, relation in enumerate(relations[row]):
            having = np.flatnonzero(related[relation] >= 0)
            node = having[int(picks[row, question] * len(having))]
            answer = items[related[relation][node]]
            asked[row, question] = items[node], config.items + relation, answer
            sources[row, question, 2], depths[row, question] = node, 1 + depth[node]
    questions = Questions(asked, np.ones(shape, dtype=bool), sources, {"relation": relations + 1, "depth": depths})
    return scatter(rng, Context(context, sizes), questions, config.length, 0.1, config.vocab_size - 1)


def draw_tree(rng: np.random.Generator, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw a tree in which every head has two dependents; return each node's depth and parent, heads first."""
    depth, parent, waiting = [], [], [(0, -1)]
    governs = rng.random(2 ** (most + 1)) < 0.5
    while waiting:
        level, above = waiting.pop()
        node = len(depth)
        depth.append(level)
        parent.append(above)
        if level < most and (node == 0 or governs[node]):
            waiting += [(level + 1, node)] * 2
    return np.array(depth), np.array(parent)


def relatives(parent: np.ndarray) -> np.ndarray:
    """Return the parent, first child and sibling of each node, ``[3, nodes]``, or −1."""
    found = np.full((3, len(parent)), -1)
    found[0] = parent
    for node in range(len(parent) - 1, 0, -1):
        first = found[1, parent[node]]
        if first >= 0:
            found[2, [node, first]] = first, node
        found[1, parent[node]] = node
    return found


def share_of_leaves(depth: int) -> float:
    """Return how often a child or sibling that is asked for is a leaf.

    A tree of n heads has n + 1 leaves and 2n dependents, so this is E[(n + 1) / (2n)]; first and second children are
    alike.
    """
    below = np.array([1.0])  # distribution of the number of heads under a node at depth D
    for level in range(depth):
        both = np.concatenate([[0.0], np.convolve(below, below)])
        root = level == depth - 1
        below = both if root else 0.5 * both + 0.5 * np.eye(1, len(both))[0]
    heads = np.arange(1, len(below))
    return float((below[1:] * (heads + 1) / (2 * heads)).sum())
