"""The examples of a run reduced to their supervised positions: only these pass through the model's head.

Legend: E examples, N tokens per example, M maximum number of supervised positions per example, V vocabulary.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from argap.synthetics.tasks.examples import IGNORED, Examples, generator
from argap.synthetics.tasks.mqar import MqarConfig, build
from argap.synthetics.tasks.registry import TASKS
from argap.synthetics.training.config import RunConfig

STREAMS = ("train", "validation", "test", "order")
"""Draws from a run's seed, each from its own stream of random numbers."""


class Supervision(NamedTuple):
    """The inputs and targets of one split."""

    inputs: torch.Tensor
    """Token ids ``[E, N]``, int32, or vectors ``[E, N, C]``, float32."""
    positions: torch.Tensor
    """``[E, M]`` int64: the position whose output predicts the target, by default one before the label's own."""
    targets: torch.Tensor
    """``[E, M]`` int64, padded with `IGNORED`."""
    slices: dict[str, np.ndarray]
    """Name to ``[E, M]``: the property of each target that accuracy is broken down by."""
    valid: torch.Tensor | None = None
    """``[E, M, V]`` bool: the tokens that are correct, for tasks with several."""

    @property
    def supervised(self) -> np.ndarray:
        """Which targets are not padding, ``[E, M]`` bool."""
        return self.targets.cpu().numpy() != IGNORED

    def to(self, device: torch.device) -> "Supervision":
        """Move the tensors to a device; the slices stay NumPy arrays."""
        return self._replace(**{k: v.to(device) for k, v in self._asdict().items() if isinstance(v, torch.Tensor)})


def supervise(examples: Examples, valid: np.ndarray | None = None, *, own_position: bool = False) -> Supervision:
    """Collect the labelled positions of each example in order; ``valid [E, N, V]`` are the tokens correct at each.

    The output at t − 1 predicts the label at t; with ``own_position`` the output at t does.
    """
    labelled = examples.labels != IGNORED
    counts = labelled.sum(axis=1)
    most = int(counts.max())
    order = np.argsort(~labelled, axis=1, kind="stable")[:, :most]  # the labelled positions come first
    real = np.arange(most) < counts[:, None]
    targets = np.where(real, np.take_along_axis(examples.labels, order, axis=1), IGNORED)
    positions = np.where(real, order - (not own_position), 0)
    slices = {
        name: np.where(real, np.take_along_axis(values, order, axis=1), 0) for name, values in examples.slices.items()
    }
    return Supervision(
        torch.from_numpy(examples.inputs),
        torch.from_numpy(positions.astype(np.int64)),
        torch.from_numpy(targets.astype(np.int64)),
        slices,
        None if valid is None else torch.from_numpy(np.take_along_axis(valid, order[..., None], axis=1)),
    )


def stream_seed(seed: int, name: str) -> int:
    """Return the seed of one of `STREAMS`. They are 65,536 apart, so that a number of pairs can be added."""
    return (seed * len(STREAMS) + STREAMS.index(name)) * 2**16


def supervision(config: RunConfig, split: str, multiple: int | None = None) -> Supervision:
    """Draw the training, validation or test examples of a run, from separate streams of one seed.

    ``multiple``: the test at a multiple of the length.

    Several numbers of KV pairs share the examples equally; ``slices["pairs"]`` records the number.
    """
    total, seed = config.examples(split), stream_seed(config.seed, split)
    if config.task is not None:
        data = config.data(split, multiple)
        return _task_supervision(config.task["name"], data, seed + (multiple or 0), split != "train")
    parts = []
    for number, pairs in enumerate(config.pairs):
        size = total // len(config.pairs) + (number < total % len(config.pairs))
        if size:
            parts.append((config.mqar(size, pairs), seed + pairs))
    return _mqar_supervision(tuple(parts))


@lru_cache(maxsize=12)  # training, validation and test, also at some multiples of the length
def _task_supervision(name: str, data: Any, seed: int, scored: bool) -> Supervision:
    """Draw the examples of a task other than MQAR, cached for the next model; ``valid`` only if they are scored."""
    task = TASKS[name]
    valid = task.valid(data, seed) if task.valid is not None and scored else None
    return supervise(task.build(data, seed), valid, own_position=task.own_position(data))


@lru_cache(maxsize=6)
def _mqar_supervision(parts: tuple[tuple[MqarConfig, int], ...]) -> Supervision:
    """Concatenate the examples of several MQAR configurations and seeds, cached for the next model."""
    made = []
    for config, seed in parts:
        built = build(config, seed)
        pairs = np.full_like(built.labels, config.pairs)
        made.append(built._replace(slices=built.slices | {"pairs": pairs}))
    return supervise(
        Examples(
            np.concatenate([part.inputs for part in made]),
            np.concatenate([part.labels for part in made]),
            {name: np.concatenate([part.slices[name] for part in made]) for name in made[0].slices},
        )
    )


def batch_order(config: RunConfig) -> torch.Tensor:
    """Return the examples of each step, ``[steps, batch]`` int64.

    Every epoch is shuffled anew; a partial last batch is dropped.
    """
    rng = generator(stream_seed(config.seed, "order"))
    used = config.steps_per_epoch * config.examples_per_step
    epochs = [rng.permutation(config.train_examples)[:used] for _ in range(config.epochs)]
    return torch.from_numpy(np.concatenate(epochs).reshape(config.steps, config.examples_per_step))
