"""The examples of a run as a model is trained on them: the answers alone pass through its head.

Legend: E examples, N tokens, M the most answers of an example.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from argap.synthetics.examples import IGNORED, Examples, generator
from argap.synthetics.mqar import MqarConfig, build
from argap.synthetics.protocol import RunConfig
from argap.synthetics.tasks import TASKS

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
    valid: torch.Tensor | None = None
    """``[E, M, V]`` bool, where one of several tokens may be right: which are."""

    def to(self, device: torch.device) -> "Questions":
        """The tensors on a device; the slices stay."""
        valid = None if self.valid is None else self.valid.to(device)
        return Questions(self.inputs.to(device), self.places.to(device), self.answers.to(device), self.slices, valid)


def ask(examples: Examples, valid: np.ndarray | None = None) -> Questions:
    """The labelled positions of each example, first to last; ``valid [E, N, V]``: what may stand at each."""
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
        None if valid is None else torch.from_numpy(np.take_along_axis(valid, order[..., None], axis=1)),
    )


def stream(seed: int, name: str) -> int:
    """The seed of one of `STREAMS`, no two alike; up to 65,535 may be added, for numbers of pairs."""
    return (seed * len(STREAMS) + STREAMS.index(name)) * 2**16


def questions(config: RunConfig, split: str) -> Questions:
    """The training, validation or test examples of a run: three streams of random numbers from one seed.

    With several numbers of pairs each has an equal share, and ``slices["pairs"]`` tells which.
    """
    total, seed = config.examples(split), stream(config.seed, split)
    if config.task is not None:
        return _of_task(config.task["name"], config.data(split), seed, split != "train")
    parts = []
    for number, pairs in enumerate(config.pairs):
        size = total // len(config.pairs) + (number < total % len(config.pairs))
        if size:
            parts.append((config.mqar(size, pairs), seed + pairs))
    return _asked(tuple(parts))


@lru_cache(maxsize=6)
def _of_task(name: str, data: Any, seed: int, scored: bool) -> Questions:
    """The examples of another task, kept as those of `_asked`; with what is ``valid`` where they are scored."""
    task = TASKS[name]
    return ask(task.build(data, seed), task.valid(data, seed) if task.valid is not None and scored else None)


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
