"""One model in training: its weights, its optimizer, and its place in the order of examples.

Legend: B batch, M answers of an example, D width.
"""

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F

from argap.models import ArgapForCausalLM
from argap.synthetics.decoder import LastVectorDecoder
from argap.synthetics.examples import IGNORED
from argap.synthetics.protocol import RunConfig, learning_rate
from argap.synthetics.questions import Questions, orders

SCORED_TOKENS = 2**17
"""Tokens of one batch of scoring."""


class Learner:
    """A run's model and everything that a step of it needs, all on the device.

    The step's number, the order of examples and the learning rates are tensors, so that a step is the same
    sequence of kernels every time and can be captured in a CUDA graph.
    """

    def __init__(self, config: RunConfig, train: Questions, device: torch.device) -> None:
        self.config = config
        self.device = device
        self.train = train
        torch.manual_seed(config.seed)
        self.model = ArgapForCausalLM(config.model_config())  # drawn on the CPU, alike everywhere
        self.model.to(device)  # pyright: ignore[reportArgumentType]  (a decorator of transformers hides its type)
        self.decoder: LastVectorDecoder | None = None
        """In place of the model's head, where answers are decoded from the last position's vector."""
        if config.from_last:
            self.decoder = LastVectorDecoder(config.width, config.vocabulary, config.length).to(device)
        self.weights = [*self.model.parameters(), *(self.decoder.parameters() if self.decoder is not None else ())]
        self.orders = orders(config).to(device)
        rates = [learning_rate(step, config) for step in range(config.steps)]
        self.rates = torch.tensor(rates, device=device)
        self.at = torch.zeros(1, dtype=torch.int64, device=device)
        """The step, ``[1]``."""
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
        """The best validation accuracy so far."""
        self.best_step = 0
        self._best_weights: list[torch.Tensor] = []

    def step(self) -> None:
        """One step of AdamW on the next batch."""
        self.rate.copy_(self.rates[self.at][0])
        rows = self.orders[self.at][0]
        logits = self._logits(self.train.inputs[rows], self.train.places[rows])
        answers = self.train.answers[rows]
        loss = F.cross_entropy(logits.flatten(0, 1), answers.flatten(), ignore_index=IGNORED)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.loss.copy_(loss.detach())
        self.at += 1

    @torch.no_grad()
    def right(self, questions: Questions) -> np.ndarray:
        """Which answers of ``questions`` the model gives, ``[E, M]`` bool."""
        size = max(1, SCORED_TOKENS // self.config.length)
        found = []
        for start in range(0, len(questions.inputs), size):
            rows = slice(start, start + size)
            given = self._logits(questions.inputs[rows], questions.places[rows]).argmax(dim=-1)
            if questions.valid is None:
                found.append(given == questions.answers[rows])
            else:
                found.append(questions.valid[rows].gather(2, given[..., None])[..., 0])
        return torch.cat(found).cpu().numpy()

    def validate(self, questions: Questions, step: int) -> float:
        """The accuracy on the validation set; the weights are kept where it is the best so far."""
        found = accuracy(self.right(questions), questions)
        if found > self.best:
            self.best, self.best_step = found, step
            self._best_weights = [weight.detach().clone() for weight in self.weights]
        return found

    @torch.no_grad()
    def recall_best(self) -> None:
        """Take back the weights that were best on the validation set."""
        for weight, kept in zip(self.weights, self._best_weights, strict=True):
            weight.copy_(kept)

    def _logits(self, inputs: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Logits ``[B, M, V]`` of ``inputs [B, N]`` at ``places [B, M]``."""
        hidden = self.model.model(inputs).last_hidden_state
        if self.decoder is not None:
            return self.decoder(hidden, places + 1)  # a label's own place is the one after that which foretells it
        chosen = hidden.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))
        return self.model.lm_head(chosen)


def accuracy(right: np.ndarray, questions: Questions) -> float:
    """The share of the answers that are ``right [E, M]``."""
    asked = questions.answers.cpu().numpy() != IGNORED
    return float(right[asked].mean())


def accuracy_by_slice(right: np.ndarray, questions: Questions) -> dict[str, list[dict[str, float]]]:
    """For each slice its values, how many answers have it, and the share of these that is right.

    Distances, of which there are many, are told by powers of two: ``value`` is the least of each.
    """
    asked = questions.answers.cpu().numpy() != IGNORED
    return {name: list(_shares(name, values[asked], right[asked])) for name, values in questions.slices.items()}


def _shares(name: str, values: np.ndarray, right: np.ndarray) -> Iterator[dict[str, float]]:
    if name == "distance":
        values = 2 ** np.floor(np.log2(np.maximum(values, 1))).astype(np.int64)
    for value in np.unique(values):
        chosen = right[values == value]
        yield {"value": int(value), "n": len(chosen), "accuracy": float(chosen.mean())}
