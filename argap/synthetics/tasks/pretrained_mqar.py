"""Multi-query associative recall for models pretrained on text, in their own vocabulary (arXiv 2312.04927, appendix G).

Legend: E examples, N tokens, D KV pairs.
"""

from itertools import chain, islice, repeat

import numpy as np

from argap.errors import ArgapError
from argap.synthetics.tasks.examples import IGNORED, Examples, generator
from argap.synthetics.tasks.mqar import MqarConfig, draw_slots


def layout(examples: int, pairs: int, *, length: int = 1024, alpha: float = 0.1) -> MqarConfig:
    """Return the placement of the pairs: the same task in the smallest vocabulary that fits.

    The paper has 16 to 256 pairs.
    """
    return MqarConfig(examples, length, pairs, vocab_size=4 * pairs, alpha=alpha)


def build(
    config: MqarConfig,
    seed: int,
    *,
    vocabulary: np.ndarray,
    fill: int | None = None,
    text: np.ndarray | None = None,
) -> Examples:
    """Build the examples of a seed, laid out as `layout` says.

    Keys and values are ids from ``vocabulary`` (all tokens of a tokenizer but its special ones), distinct within an
    example. All other positions hold the token ``fill`` or a window of ``text``, the token ids of real text, at a
    random offset per example; a key or value never occurs in the window of its example. ``slices["distance"]`` is the
    distance from the key to the query.

    Raises `ArgapError` unless exactly one of ``fill`` and ``text`` is given, if the text is shorter than N, and if the
    vocabulary leaves fewer than 2·D tokens.
    """
    if (fill is None) == (text is None):
        raise ArgapError("mqar for a pretrained model: expected either a fill token or a text")
    if text is not None and len(text) < config.length:
        raise ArgapError(f"mqar in a text: the text has {len(text)} tokens; expected at least {config.length}")
    rng = generator(seed)
    shape = (config.examples, config.length)
    inputs = np.empty(shape, dtype=np.int32)
    labels = np.full(shape, IGNORED, dtype=np.int32)
    distance = np.zeros(shape, dtype=np.int32)
    first = 2 * np.arange(config.pairs)
    slots = chain.from_iterable(draw_slots(rng, config) for _ in repeat(None))
    for row, slot in enumerate(islice(slots, config.examples)):
        if fill is not None:
            inputs[row] = fill
        elif text is not None:
            start = int(rng.integers(0, len(text) - config.length + 1))
            inputs[row] = text[start : start + config.length]
        free = np.setdiff1d(vocabulary, inputs[row])
        if len(free) < 2 * config.pairs:
            raise ArgapError(
                f"mqar for a pretrained model: {len(free)} tokens of the vocabulary are neither the fill token nor in "
                f"the text; {config.pairs} pairs need {2 * config.pairs}"
            )
        keys, values = rng.permutation(free)[: 2 * config.pairs].reshape(2, config.pairs)
        again = 2 * config.pairs + 2 * slot
        inputs[row, first], inputs[row, first + 1] = keys, values
        inputs[row, again], inputs[row, again + 1] = keys, values
        labels[row, again + 1] = values
        distance[row, again + 1] = again - first
    return Examples(inputs, labels, {"distance": distance})
