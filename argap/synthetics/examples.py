"""What every synthetic task builds: sequences, what is to be predicted, and how to slice the answers."""

from typing import NamedTuple

import numpy as np

IGNORED = -100
"""A label that asks for nothing: what torch's cross-entropy ignores."""


class Examples(NamedTuple):
    """Examples of one task. Legend: E examples, N tokens each; all arrays are int32."""

    inputs: np.ndarray
    """Token ids ``[E, N]``."""
    labels: np.ndarray
    """``[E, N]``: the token to be predicted *at* this position, from the inputs before it, or `IGNORED`: so
    ``model(inputs, labels=labels).loss`` of a causal language model is the task's loss."""
    slices: dict[str, np.ndarray]
    """By name ``[E, N]``: a number that tells the answers of one kind from those of another (a distance,
    say), 0 where nothing is asked."""


def generator(seed: int) -> np.random.Generator:
    """The one source of randomness of a data set: PCG64, the same on every platform."""
    return np.random.Generator(np.random.PCG64(seed))


def accuracy(predicted: np.ndarray, labels: np.ndarray) -> float:
    """Share of the labels that ``predicted [E, N]`` meets, of those that ask for something."""
    asked = labels != IGNORED
    return float((predicted == labels)[asked].mean())
