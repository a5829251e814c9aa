"""Lay out an example: what is to be remembered, then the questions at random distances.

Legend: E examples, N tokens, C tokens of the longest context, Q questions, W tokens of a question, V vocabulary.
"""

from typing import NamedTuple

import numpy as np

from argap.errors import ArgapError
from argap.synthetics.tasks.examples import IGNORED, Examples
from argap.synthetics.tasks.mqar import ROWS, draw_without_replacement


class Context(NamedTuple):
    """What comes before the questions."""

    tokens: np.ndarray
    """``[E, C]``."""
    sizes: np.ndarray
    """``[E]``: how many of the tokens belong to the example; the questions follow them."""


class Questions(NamedTuple):
    """Questions with their answers. Absent ones (an example may have fewer than Q) come last."""

    tokens: np.ndarray
    """``[E, Q, W]``."""
    present: np.ndarray
    """``[E, Q]`` bool."""
    sources: np.ndarray
    """``[E, Q, W]``: at an answer, the position in the context of the key that it belongs to; −1 at all other tokens,
    which are not labelled."""
    slices: dict[str, np.ndarray]
    """Name to ``[E, Q]``: a property of each question."""


def scatter(
    rng: np.random.Generator, context: Context, questions: Questions, length: int, alpha: float, fill: int
) -> Examples:
    """Put each question in a slot of W tokens after its context, and ``fill`` in all other places.

    The slots are drawn without replacement with p(s) ∝ s^(α − 1), s = 1, 2, … from the end of the context, as in
    Zoology's code for MQAR. Examples with a smaller context end earlier: lengths mix as contexts do.
    ``slices["distance"]`` is the distance from the answer's key in the context to the last token of the question.
    """
    examples, count, width = questions.tokens.shape
    slots = (length - context.tokens.shape[1]) // width
    chosen = draw_slots(rng, examples, count, slots, alpha)
    inputs = np.full((examples, length), fill, dtype=np.int32)
    labels = np.full_like(inputs, IGNORED)
    slices = {name: np.zeros_like(inputs) for name in ("distance", *questions.slices)}
    inside = np.arange(context.tokens.shape[1]) < context.sizes[:, None]
    inputs[:, : inside.shape[1]] = np.where(inside, context.tokens, fill)
    positions = context.sizes[:, None, None] + width * chosen[..., None] + np.arange(width)  # [E, Q, W]
    rows = np.broadcast_to(np.arange(examples)[:, None, None], positions.shape)
    here = np.broadcast_to(questions.present[..., None], positions.shape)
    inputs[rows[here], positions[here]] = questions.tokens[here]
    asked = here & (questions.sources >= 0)
    where = rows[asked], positions[asked]
    labels[where] = questions.tokens[asked]
    slices["distance"][where] = positions[asked] - 1 - questions.sources[asked]
    for name, values in questions.slices.items():
        slices[name][where] = np.broadcast_to(values[..., None], positions.shape)[asked]
    return Examples(inputs, labels, slices)


def draw_slots(rng: np.random.Generator, examples: int, count: int, slots: int, alpha: float) -> np.ndarray:
    """Draw ``count`` of the slots for each example without replacement, ``[E, count]``, with p(s) ∝ (s + 1)^(α − 1).

    The largest of log p(s) plus Gumbel noise are a sample without replacement in the order in which it is drawn.
    """
    log_law = (alpha - 1) * np.log(np.arange(1, slots + 1))
    chosen = np.empty((examples, count), dtype=np.int64)
    for start in range(0, examples, ROWS):
        part = chosen[start : start + ROWS]
        chosen[start : start + ROWS] = (-(log_law + rng.gumbel(size=(len(part), slots)))).argsort(axis=1)[:, :count]
    return chosen


def distinct(rng: np.random.Generator, tokens: np.ndarray, count: int, examples: int) -> np.ndarray:
    """Draw ``count`` distinct ``tokens`` for each example, ``[E, count]``; all orders are equally likely."""
    draws = draw_without_replacement(rng, tokens.astype(np.int32), count)
    return np.concatenate([next(draws) for _ in range(-(-examples // ROWS))])[:examples]


def in_random_order(rng: np.random.Generator, present: np.ndarray) -> np.ndarray:
    """Return for each example an order ``[E, M]`` of its M items: the ``present`` ones first, shuffled."""
    return np.where(present, rng.random(present.shape), 2.0).argsort(axis=1)


def draw_sizes(rng: np.random.Generator, fewest: int | None, most: int, examples: int) -> np.ndarray:
    """Draw a size for each example, ``[E]``: all from ``fewest`` to ``most`` are equally likely. None: always most."""
    return rng.integers(most if fewest is None else fewest, most + 1, examples)


def check_fewest(what: str, fewest: int | None, most: int, least: int = 1) -> None:
    """Raise `ArgapError` unless a mixture of sizes lies between ``least`` and ``most``. None: always ``most``."""
    if not least <= (most if fewest is None else fewest) <= most:
        raise ArgapError(f"{what}: from {most if fewest is None else fewest} to {most}; expected {least} to {most}")


def check_room(length: int, what: str, needed: int) -> None:
    """Raise `ArgapError` if ``what`` needs more tokens than an example has."""
    if length < needed:
        raise ArgapError(f"{what} need {needed} tokens, the length is {length}")


def check_vocabulary(vocab_size: int, what: str, needed: int) -> None:
    """Raise `ArgapError` if ``what`` needs more tokens than the vocabulary has."""
    if vocab_size < needed:
        raise ArgapError(f"{what} need a vocabulary of at least {needed} tokens, it has {vocab_size}")
