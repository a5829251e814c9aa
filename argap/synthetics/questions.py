"""The examples of a run as a model is trained on them: the answers alone pass through its head.

Legend: E examples, N tokens, M the most answers of an example.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch

from argap.synthetics.examples import IGNORED, Examples, generator
from argap.synthetics.mqar import MqarConfig, build
from argap.synthetics.protocol import RunConfig

STREAMS = ("train", "validation", "test", "order")
"""What is drawn from a run's seed, each from random numbers of its own."""


class Questions(NamedTuple):
    """Of one split."""

    inputs: torch.Tensor
    """Token ids ``[E, N]``, int32."""
    places: torch.Tensor
    """``[E, M]`` int64: the position whose output is to predict the answer, the one before the label's."""
    answers: torch.Tensor
    """``[E, M]`` int64, `IGNORED` where an example has fewer than M."""
    slices: dict[str, np.ndarray]
    """By name ``[E, M]``: what tells the answers of one kind from those of another."""

    def to(self, device: torch.device) -> "Questions":
        """The tensors on a device; the slices stay."""
        return Questions(self.inputs.to(device), self.places.to(device), self.answers.to(device), self.slices)


def ask(examples: Examples) -> Questions:
    """The labelled positions of each example, first to last."""
    asked = examples.labels != IGNORED
    counts = asked.sum(axis=1)
    most = int(counts.max())
    order = np.argsort(~asked, axis=1, kind="stable")[:, :most]  # the labelled positions come first
    there = np.arange(most) < counts[:, None]
    answers = np.where(there, np.take_along_axis(examples.labels, order, axis=1), IGNORED)
    places = np.where(there, order - 1, 0)
    slices = {
        name: np.where(there, np.take_along_axis(values, order, axis=1), 0) for name, values in examples.slices.items()
    }
    return Questions(
        torch.from_numpy(examples.inputs),
        torch.from_numpy(places.astype(np.int64)),
        torch.from_numpy(answers.astype(np.int64)),
        slices,
    )


def stream(seed: int, name: str) -> int:
    """The seed of one of `STREAMS`, no two alike; up to 65,535 may be added, for numbers of pairs."""
    return (seed * len(STREAMS) + STREAMS.index(name)) * 2**16


def questions(config: RunConfig, split: str) -> Questions:
    """The training, validation or test examples of a run: three streams of random numbers from one seed.

    With several numbers of pairs each has an equal share, and ``slices["pairs"]`` tells which.
    """
    total = {"train": config.train_examples, "validation": config.validation_examples, "test": config.test_examples}
    parts = []
    for number, pairs in enumerate(config.pairs):
        size = total[split] // len(config.pairs) + (number < total[split] % len(config.pairs))
        if size:
            parts.append((config.task(size, pairs), stream(config.seed, split) + pairs))
    return _asked(tuple(parts))


@lru_cache(maxsize=6)
def _asked(parts: tuple[tuple[MqarConfig, int], ...]) -> Questions:
    """The examples of several tasks and seeds, one after the other; kept for the next model on the same data."""
    made = []
    for task, seed in parts:
        built = build(task, seed)
        pairs = np.where(built.labels != IGNORED, np.int32(task.pairs), np.int32(0))
        made.append(built._replace(slices=built.slices | {"pairs": pairs}))
    return ask(
        Examples(
            np.concatenate([part.inputs for part in made]),
            np.concatenate([part.labels for part in made]),
            {name: np.concatenate([part.slices[name] for part in made]) for name in made[0].slices},
        )
    )


def orders(config: RunConfig) -> torch.Tensor:
    """Which examples each step sees, ``[steps, batch]`` int64: every epoch in an order of its own, of which
    the rows that fill no batch are left out."""
    rng = generator(stream(config.seed, "order"))
    used = config.steps_an_epoch * config.examples_a_step
    epochs = [rng.permutation(config.train_examples)[:used] for _ in range(config.epochs)]
    return torch.from_numpy(np.concatenate(epochs).reshape(config.steps, config.examples_a_step))
