"""The protocol of a sequence mixer: what mixes information across positions in a layer.

Legend: B batch, T positions, D width (``hidden_size``).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import nn

State = Any
"""What a recurrent step carries: any nest of tensors, opaque to the model."""


def _no_step(self: "Mixer", *inputs: Any) -> tuple[torch.Tensor, State]:
    raise NotImplementedError(f"{type(self).__name__} has no recurrent step")


class Mixer(nn.Module, ABC):
    """Maps ``[B, T, D]`` to ``[B, T, D]``, position t seeing positions up to t.

    A subclass defines, beside the two abstract methods:

    - ``__init__(self, width, max_positions, *, ...)``. The keyword arguments are the mixer's options: a
      configuration's entry is checked against them. ``max_positions`` is the longest sequence, or None.
    - ``forward(self, x)``, the parallel form on ``x [B, T, D]``; with ``needs_ids = True``
      ``forward(self, x, input_ids)``, with the tokens ``input_ids [B, T]``.
    - where there is a recurrent form, ``init_state`` and ``step(self, x, state)`` on ``x [B, D]`` (with
      ``needs_ids``, ``step(self, x, state, input_ids)`` with ``input_ids [B]``), which returns the output
      ``[B, D]`` and the state after it. Stepping through a sequence equals ``forward``.
    - ``prefill``, where the parallel form can give its last state.
    - `OwnInitialization`, in whichever of its modules holds parameters of its own.
    - ``auxiliary_loss``, where it trains with a loss of its own beside the model's.

    A projection whose output goes to the residual stream is a `ResidualLinear`.
    """

    causal: ClassVar[bool] = True
    """False: for synthetic tasks only, because its log-probs would see the future."""
    needs_ids: ClassVar[bool] = False
    """Whether the tokens themselves are asked for (to select positions by token, say)."""
    source: ClassVar[str] = ""
    """Paper and equation, for ``argap models show``."""
    recurrent: ClassVar[bool] = False
    """Whether there is a recurrent form; set by defining ``step``."""

    # Declared as nn.Module declares forward, so that a mixer takes the arguments that it uses and no others.
    step: Callable[..., tuple[torch.Tensor, State]] = _no_step

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.recurrent = cls.step is not _no_step

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """The state before the first position."""
        raise NotImplementedError(f"{type(self).__name__} has no recurrent step")

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor) -> tuple[torch.Tensor, State]:
        """``forward`` from the first position on, and the state after the last: what a prompt leaves behind.

        ``x [B, T, D]``, with ``needs_ids`` followed by the tokens ``[B, T]``, to ``[B, T, D]``. Stepwise here,
        T steps; a mixer whose parallel form knows its last state overrides this.
        """
        state, outputs = self.init_state(x.shape[0], x.dtype, x.device), []
        for position in range(x.shape[1]):
            y, state = self.step(x[:, position], state, *(ids[:, position] for ids in input_ids))
            outputs.append(y)
        return torch.stack(outputs, dim=1), state

    def auxiliary_loss(self, x: torch.Tensor) -> torch.Tensor | None:
        """What this mixer adds to the loss in training, in nats a token, of its input ``x [B, T, D]``; None:
        nothing. The model collects it, and the trainer adds it to the mean next-token loss."""
        return None

    @abstractmethod
    def state_size(self, length: int) -> int:
        """Elements kept for one sequence after ``length`` positions of generation."""

    @abstractmethod
    def flops(self, batch: int, length: int) -> int:
        """Floating-point operations of ``forward`` on ``[batch, length, D]`` (a multiply-add counts 2)."""


class ResidualLinear(nn.Linear):
    """A projection that writes to the residual stream: it starts smaller, so that the stream's variance
    does not grow with depth."""


@runtime_checkable
class OwnInitialization(Protocol):
    """A module that holds parameters of its own, beside linear maps, embeddings and norms, sets them here."""

    def initialize(self, std: float, residual_std: float) -> None:
        """Set the parameters held directly by this module, through `torch.nn.init` and, for computed values,
        `transformers.initialization.copy_` alone (while a checkpoint loads, these pass over what is loaded
        already).

        ``std`` is that of a weight matrix, ``residual_std`` that of one that writes to the residual stream.
        """
        ...
