"""Multi-query associative recall for a model that was trained on text: in its own vocabulary, among its own kind
of tokens (arXiv 2312.04927, appendix G).

Legend: E examples, N tokens, D pairs.
"""

from dataclasses import dataclass
from itertools import chain, islice, repeat

import numpy as np

from argap.errors import ArgapError
from argap.synthetics.examples import IGNORED, Examples, generator
from argap.synthetics.mqar import MqarConfig, draw_slots


@dataclass(frozen=True)
class PretrainedConfig:
    """One data set. Raises `ArgapError` for sizes that do not fit each other."""

    examples: int
    pairs: int
    """D: from 16 to 256 in the paper."""
    length: int = 1024
    alpha: float = 0.1
    """As in `MqarConfig`."""

    def __post_init__(self) -> None:
        MqarConfig(self.examples, self.length, self.pairs, vocab_size=4 * self.pairs, alpha=self.alpha)


def build(
    config: PretrainedConfig,
    seed: int,
    *,
    vocabulary: np.ndarray,
    fill: int | None = None,
    text: np.ndarray | None = None,
) -> Examples:
    """The examples of a seed, laid out as `argap.synthetics.mqar.build` lays them out.

    Keys and values are any ids of ``vocabulary`` (those of a tokenizer but its special ones), distinct within
    an example. All else is the token ``fill``, or else a window of ``text``, the ids of a real one, from a random
    place for each example; no key and no value of the example occurs in its window. ``slices["distance"]`` is
    the distance from the key to its return.

    Raises `ArgapError` unless exactly one of ``fill`` and ``text`` is given, for a text shorter than N, and
    where the vocabulary leaves fewer than 2·D tokens.
    """
    if (fill is None) == (text is None):
        raise ArgapError("mqar for a pretrained model: expected a fill token or a text, one of the two")
    if text is not None and len(text) < config.length:
        raise ArgapError(f"mqar in a text: {len(text)} tokens of text; expected at least {config.length}")
    rng = generator(seed)
    shape = (config.examples, config.length)
    inputs = np.empty(shape, dtype=np.int32)
    labels = np.full(shape, IGNORED, dtype=np.int32)
    distance = np.zeros(shape, dtype=np.int32)
    ids = np.unique(vocabulary)
    first = 2 * np.arange(config.pairs)
    layout = MqarConfig(config.examples, config.length, config.pairs, vocab_size=4 * config.pairs, alpha=config.alpha)
    slots = chain.from_iterable(draw_slots(rng, layout) for _ in repeat(None))
    for row, slot in enumerate(islice(slots, config.examples)):
        if fill is not None:
            inputs[row] = fill
        elif text is not None:
            start = int(rng.integers(0, len(text) - config.length + 1))
            inputs[row] = text[start : start + config.length]
        free = np.setdiff1d(ids, inputs[row])
        if len(free) < 2 * config.pairs:
            raise ArgapError(
                f"mqar for a pretrained model: {len(free)} tokens of the vocabulary are neither fill nor in the "
                f"text; {config.pairs} pairs need {2 * config.pairs}"
            )
        keys, values = rng.permutation(free)[: 2 * config.pairs].reshape(2, config.pairs)
        again = 2 * config.pairs + 2 * slot
        inputs[row, first], inputs[row, first + 1] = keys, values
        inputs[row, again], inputs[row, again + 1] = keys, values
        labels[row, again + 1] = values
        distance[row, again + 1] = again - first
    return Examples(inputs, labels, {"distance": distance})
