"""Chains of pairs: an answer is the key of the next pair. Stacked MQAR asks for each step, multi-hop for the end.

Legend: E examples, N tokens, V vocabulary, P chains, H hops: a chain is H + 1 tokens and H pairs.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from argap.files.configs import Count, Length, Positive, Vocabulary
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
class ChainsConfig(TaskConfig):
    """One data set of `build`. Raises `ArgapError` for sizes that do not fit."""

    length: Length = 128
    chains: Count = 8
    """Most chains P."""
    fewest: Count | None = 2
    """Fewest chains; all numbers up to ``chains`` are equally likely. None: always ``chains``."""
    hops: Count = 3
    """H."""
    asked: Literal["path", "end"] = "end"
    """``path``: the question is the first token of a chain, and every further token is an answer. ``end``: it is the
    first token and a number of hops; the answer is the token so many hops away, and the tokens between are not
    given."""
    vocab_size: Vocabulary = 256
    """V: the tokens of chains, then one for each number of hops, and the last token fills."""
    alpha: Positive = 0.1
    """Exponent of the distances, as in MQAR."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_fewest("fewest", self.fewest, self.chains)
        what = f"{self.chains} chains of {self.hops + 1} tokens"
        check_vocabulary(self.vocab_size, what, (self.chains + 1) * (self.hops + 1))
        check_room(self.length, f"{what} and their questions", self.chains * (2 * self.hops + self.width))

    @property
    def symbols(self) -> int:
        """Number of tokens that may be in a chain."""
        return self.vocab_size - self.hops - 1

    @property
    def width(self) -> int:
        """Tokens of a question with its answers."""
        return self.hops + 1 if self.asked == "path" else 3


def build(config: ChainsConfig, seed: int) -> Examples:
    """Build the examples of a seed: the pairs (a₀, a₁), (a₁, a₂) … of all chains, shuffled; then one question each.

    No token is in two chains. ``slices["hops"]`` is how far the answer is from the chain's first token; along a
    ``path`` each answer is one hop from the token before. ``slices["pairs"]`` is the number of pairs. The distance
    counts from the pair that has the answer as its value.
    """
    rng = generator(seed)
    examples, most, hops = config.examples, config.chains, config.hops
    sizes = draw_sizes(rng, config.fewest, most, examples)
    chains = distinct(rng, np.arange(config.symbols), most * (hops + 1), examples).reshape(examples, most, hops + 1)
    records = np.stack([chains[..., :-1], chains[..., 1:]], axis=3).reshape(examples, most * hops, 2)
    order = in_random_order(rng, np.repeat(np.arange(most) < sizes[:, None], hops, axis=1))
    place = order.argsort(axis=1).reshape(examples, most, hops)  # of each pair in the context
    context = np.take_along_axis(records, order[..., None], axis=1).reshape(examples, -1)
    pairs = np.broadcast_to((hops * sizes)[:, None], (examples, most))
    if config.asked == "path":
        asked = chains
        sources = np.concatenate([np.full((examples, most, 1), -1), 2 * place], axis=2)
        steps = np.zeros_like(pairs)
    else:
        steps = rng.integers(1, hops + 1, (examples, most))
        ends = np.take_along_axis(chains, steps[..., None], axis=2)[..., 0]
        asked = np.stack([chains[..., 0], config.symbols + steps - 1, ends], axis=2)
        sources = np.full(asked.shape, -1)
        sources[..., 2] = 2 * np.take_along_axis(place, steps[..., None] - 1, axis=2)[..., 0]
    questions = Questions(asked, np.arange(most) < sizes[:, None], sources, {"hops": steps, "pairs": pairs})
    context = Context(context, 2 * hops * sizes)
    built = scatter(rng, context, questions, config.length, config.alpha, config.vocab_size - 1)
    if config.asked == "path":
        _number_steps(built, hops)
    return built


def _number_steps(built: Examples, hops: int) -> None:
    """Set the hops of each path's answers, in place: they follow each other, H to a question."""
    rows, columns = np.nonzero(built.labels >= 0)
    built.slices["hops"][rows, columns] = np.arange(len(rows)) % hops + 1
