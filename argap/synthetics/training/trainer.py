"""The training state of one run: model, optimizer, learning rates and batch order.

Legend: B batch, N positions, M supervised positions per example, V vocabulary.
"""

import itertools
from collections.abc import Iterator, Mapping
from contextlib import nullcontext

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from argap.models import ArgapForCausalLM
from argap.models.block import compile_layers
from argap.records import Record
from argap.synthetics.tasks.examples import IGNORED
from argap.synthetics.training.config import RunConfig, learning_rate
from argap.synthetics.training.models import LastVectorDecoder
from argap.synthetics.training.supervision import Supervision, batch_order
from argap.train.optimizer import load_moments, moments

TOKENS_PER_BATCH = 2**17
"""Tokens per batch when scoring."""
BINNED = ("distance", "size", "steps")
"""Slices with too many values for a row each."""


class Trainer:
    """Everything that a training step of one run needs, on the device.

    The step index, the batch order and the learning rates are tensors, so every step launches the same kernels and
    can be captured in a CUDA graph. With ``compiled`` they run compiled layers; validation and tests do not.
    """

    def __init__(self, config: RunConfig, train: Supervision, device: torch.device, *, compiled: bool = False) -> None:
        self.config = config
        self.device = device
        self.train = train
        torch.manual_seed(config.seed)
        self.model = ArgapForCausalLM(config.model_config())  # initialized on the CPU: the same on every device
        self.model.to(device)  # pyright: ignore[reportArgumentType]  (a decorator of transformers hides its type)
        self.compiled = compiled
        if compiled:
            compile_layers(self.model)
        self.decoder: LastVectorDecoder | None = None
        """Replaces the model's head if answers are decoded from the last position's hidden state."""
        if config.from_last:
            self.decoder = LastVectorDecoder(config.width, config.vocabulary, config.length).to(device)
        self.input_map: nn.Linear | None = None
        """Replaces the model's embedding if inputs are vectors."""
        if config.channels:
            self.input_map = nn.Linear(config.channels, config.width, bias=False).to(device)
        others = [module.parameters() for module in (self.decoder, self.input_map) if module is not None]
        self.weights = [*self.model.parameters(), *itertools.chain(*others)]
        self.batch_order = batch_order(config).to(device)
        rates = [learning_rate(step, config) for step in range(config.steps)]
        self.rates = torch.tensor(rates, device=device)
        self.step_index = torch.zeros(1, dtype=torch.int64, device=device)
        self.loss = torch.zeros((), device=device)
        on_gpu = device.type == "cuda"
        self.rate = torch.zeros((), device=device)
        self.optimizer = torch.optim.AdamW(
            self.weights,
            lr=self.rate,
            weight_decay=config.weight_decay,
            fused=True,
            capturable=on_gpu,
        )
        self.stream = torch.cuda.Stream(device) if on_gpu else None
        self.best = -1.0
        """Best validation accuracy so far."""
        self.best_step = 0
        self.curve: list[tuple[int, float]] = []
        """Steps and validation accuracy."""
        self._best_weights: list[torch.Tensor] = []

    def step(self) -> None:
        """Take one AdamW step on the next batch."""
        self.rate.copy_(self.rates[self.step_index][0])
        rows = self.batch_order[self.step_index][0]
        logits = self.logits(self.train.inputs[rows], self.train.positions[rows])
        targets = self.train.targets[rows]
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss.copy_(loss.detach())
        self.step_index += 1

    @torch.no_grad()
    def correct(self, data: Supervision) -> np.ndarray:
        """Return whether the most probable token is correct at each supervised position, ``[E, M]`` bool."""
        size = max(1, TOKENS_PER_BATCH // data.inputs.shape[1])
        correct = []
        with torch.compiler.set_stance("force_eager") if self.compiled else nullcontext():  # batches of other shapes
            for start in range(0, len(data.inputs), size):
                rows = slice(start, start + size)
                predicted = self.logits(data.inputs[rows], data.positions[rows]).argmax(dim=-1)
                if data.valid is None:
                    correct.append(predicted == data.targets[rows])
                else:
                    correct.append(data.valid[rows].gather(2, predicted[..., None])[..., 0])
        return torch.cat(correct).cpu().numpy()

    def validate(self, data: Supervision, step: int) -> None:
        """Add the accuracy on the validation set to the curve. If it is the best so far, keep a copy of the weights.

        Of equally good weights the first are kept, or the last if they are tested beyond the lengths of validation.
        """
        score = accuracy(self.correct(data), data)
        self.curve.append((step, score))
        if score > self.best or (score == self.best and self.config.multiples):
            self.best, self.best_step = score, step
            self._best_weights = [weight.detach().clone() for weight in self.weights]

    @torch.no_grad()
    def restore_best(self) -> None:
        """Restore the weights with the best validation accuracy."""
        for weight, best in zip(self.weights, self._best_weights, strict=True):
            weight.copy_(best)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return what `load` needs besides the step, by name and number of the parameter.

        These are the weights, the best weights so far, and AdamW's moments.
        """
        found = {f"weight.{k}": weight.detach() for k, weight in enumerate(self.weights)}
        found |= {f"best.{k}": best for k, best in enumerate(self._best_weights)}
        return {name: each.contiguous() for name, each in found.items()} | moments(self.optimizer, self._numbered())

    @torch.no_grad()
    def load(self, tensors: Mapping[str, torch.Tensor], step: int) -> None:
        """Restore the `tensors` of a trainer with this configuration after ``step`` steps.

        Raises `KeyError` or `RuntimeError` for those of another model.
        """
        self.step_index.fill_(step)
        for k, weight in enumerate(self.weights):
            weight.copy_(tensors[f"weight.{k}"])
        if "best.0" in tensors:
            self._best_weights = [tensors[f"best.{k}"] for k in range(len(self.weights))]
        load_moments(self.optimizer, self._numbered(), tensors, step)

    def _numbered(self) -> dict[str, nn.Parameter]:
        return {str(k): weight for k, weight in enumerate(self.weights)}

    def logits(self, inputs: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return logits ``[B, M, V]`` of ``inputs``, tokens ``[B, N]`` or vectors ``[B, N, C]``, at ``positions``."""
        if self.input_map is None:
            hidden = self.model.model(inputs).last_hidden_state
        else:
            nothing = positions.new_zeros(inputs.shape[:2])
            hidden = self.model.model(nothing, inputs_embeds=self.input_map(inputs)).last_hidden_state
        if self.decoder is not None:
            return self.decoder(hidden, positions + 1)  # the label at t is supervised at t - 1
        chosen = hidden.gather(1, positions[..., None].expand(-1, -1, hidden.shape[-1]))
        return self.model.lm_head(chosen)


class SliceAccuracy(Record, frozen=True):
    """Accuracy on the supervised positions that share one value of a slice."""

    value: int
    n: int
    accuracy: float


class LengthAccuracy(Record, frozen=True):
    """Accuracy on a test set of another length than the run's."""

    length: int
    n: int
    """Supervised positions."""
    accuracy: float
    whole: float
    """Fraction of the examples whose answers are all correct."""


def length_accuracy(length: int, correct: np.ndarray, data: Supervision) -> LengthAccuracy:
    """Summarise the ``correct [E, M]`` positions of a test set of ``length`` tokens."""
    supervised = data.supervised
    whole = np.all(correct | ~supervised, axis=1)[np.any(supervised, axis=1)]
    return LengthAccuracy(length, int(supervised.sum()), accuracy(correct, data), float(whole.mean()))


def accuracy(correct: np.ndarray, data: Supervision) -> float:
    """Return the fraction of the supervised positions that are ``correct [E, M]``."""
    return float(correct[data.supervised].mean())


def accuracy_by_slice(correct: np.ndarray, data: Supervision) -> dict[str, list[SliceAccuracy]]:
    """Return accuracy by the values of each slice.

    Those of `BINNED` are binned by powers of two; ``value`` is the lower bound.
    """
    supervised = data.supervised
    return {
        name: list(_accuracies(name, values[supervised], correct[supervised])) for name, values in data.slices.items()
    }


def _accuracies(name: str, values: np.ndarray, correct: np.ndarray) -> Iterator[SliceAccuracy]:
    if name in BINNED:
        values = 2 ** np.floor(np.log2(values)).astype(np.int64)
    for value in np.unique(values):
        chosen = correct[values == value]
        yield SliceAccuracy(int(value), len(chosen), float(chosen.mean()))
