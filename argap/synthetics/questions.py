"""The examples of a run as a model is trained on them: the answers alone pass through its head.

Legend: E examples, N tokens, M the most answers of an example.
"""

from typing import NamedTuple

import numpy as np
import torch

from argap.synthetics.examples import IGNORED, Examples
from argap.synthetics.mqar import build
from argap.synthetics.protocol import RunConfig

SPLITS = ("train", "validation", "test")


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
        tensors = (part.to(device) for part in (self.inputs, self.places, self.answers))
        return Questions(*tensors, self.slices)


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


def questions(config: RunConfig, split: str) -> Questions:
    """The training, validation or test examples of a run: three streams of random numbers from one seed.

    With several numbers of pairs each has an equal share, and ``slices["pairs"]`` tells which.
    """
    total = {"train": config.train_examples, "validation": config.validation_examples, "test": config.test_examples}
    parts = []
    for number, pairs in enumerate(config.pairs):
        size = total[split] // len(config.pairs) + (number < total[split] % len(config.pairs))
        if not size:
            continue
        # PCG64 takes any whole number as its seed; these differ between seeds, splits and numbers of pairs.
        seed = (config.seed * len(SPLITS) + SPLITS.index(split)) * 2**16 + pairs
        made = build(config.task(size, pairs), seed)
        kind = np.where(made.labels != IGNORED, np.int32(pairs), np.int32(0))
        parts.append(made._replace(slices=made.slices | {"pairs": kind}))
    return ask(
        Examples(
            np.concatenate([part.inputs for part in parts]),
            np.concatenate([part.labels for part in parts]),
            {name: np.concatenate([part.slices[name] for part in parts]) for name in parts[0].slices},
        )
    )


def orders(config: RunConfig) -> torch.Tensor:
    """Which examples each step sees, ``[steps, batch]`` int64: every epoch in an order of its own, of which
    the rows that fill no batch are left out."""
    generator = np.random.Generator(np.random.PCG64([config.seed, len(SPLITS)]))
    used = config.steps_an_epoch * config.examples_a_step
    epochs = [generator.permutation(config.train_examples)[:used] for _ in range(config.epochs)]
    return torch.from_numpy(np.concatenate(epochs).reshape(config.steps, config.examples_a_step))
