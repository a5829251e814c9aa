"""The protocol of a sequence mixer: what mixes information across positions in a layer.

Legend: B batch, T positions, D width (``hidden_size``).
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import nn

State = Any
"""What a recurrent step carries: any nest of tensors, opaque to the model."""


class Mixer(nn.Module, ABC):
    """Maps ``[B, T, D]`` to ``[B, T, D]``, position t seeing positions up to t.

    A mixer is built as ``Mixer(width, max_positions, **options)``; its options are the keyword arguments
    of its constructor, which is also what an unknown option is checked against.
    """

    causal: ClassVar[bool] = True
    """False: for synthetic tasks only; the scorer refuses the model by this mixer's name."""
    recurrent: ClassVar[bool] = True
    """Whether `init_state` and `step` are there."""
    needs_ids: ClassVar[bool] = False
    """Whether `forward` also takes ``input_ids [B, T]`` (a selection by token, say)."""
    source: ClassVar[str] = ""
    """Paper and equation, for ``argap models list``."""

    @abstractmethod
    def forward(self, x: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        """The parallel form: ``x [B, T, D]`` to ``[B, T, D]``."""

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """The state before the first position."""
        raise NotImplementedError(f"{type(self).__name__} has no recurrent form")

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """One position: ``x [B, D]`` and the state before it, to ``[B, D]`` and the state after it."""
        raise NotImplementedError(f"{type(self).__name__} has no recurrent form")

    @abstractmethod
    def state_size(self, length: int) -> int:
        """Elements kept for one sequence after ``length`` positions of generation."""

    @abstractmethod
    def flops(self, batch: int, length: int) -> int:
        """Floating-point operations of `forward` (a multiply-add counts 2)."""


class ResidualLinear(nn.Linear):
    """The projection of a layer that writes to the residual stream: it starts smaller, so that the
    stream's variance does not grow with depth."""


@runtime_checkable
class OwnInitialization(Protocol):
    """A module that holds parameters of its own, beside linear maps, embeddings and norms, sets them here."""

    def initialize(self, std: float, residual_std: float) -> None:
        """Set the parameters held directly by this module, through `torch.nn.init` alone (while a
        checkpoint loads, transformers makes those functions pass over what is loaded already).

        ``std`` is that of a weight matrix, ``residual_std`` that of one that writes to the residual stream.
        """
        ...
