"""The protocol of a sequence mixer, the part of a layer that mixes information across positions.

Legend: B batch, T positions, D width (``hidden_size``).
"""

from abc import ABC
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Protocol, runtime_checkable

import torch
from msgspec import Meta
from torch import nn

from argap.errors import ArgapError

State = Any
"""The state of a recurrent step: any nest of tensors, opaque to the model."""
AtLeastOne = Annotated[int, Meta(ge=1)]
AtLeastTwo = Annotated[int, Meta(ge=2)]


def _no_step(self: "Mixer", *inputs: Any) -> tuple[torch.Tensor, State]:
    raise NotImplementedError(f"{type(self).__name__} has no recurrent step")


def _through_prefill(self: "Mixer", x: torch.Tensor, *input_ids: torch.Tensor) -> torch.Tensor:
    return self.prefill(x, *input_ids)[0]


def _no_operator(*inputs: Any, **options: Any) -> tuple[torch.Tensor, Any]:
    raise NotImplementedError("the mixer has no operator")


class Mixer(nn.Module, ABC):
    """Maps ``[B, T, D]`` to ``[B, T, D]`` causally: position t sees positions up to t.

    A subclass defines:

    - ``__init__(self, width, max_positions, *, ...)``. The keyword arguments are the mixer's options; a
      configuration is checked against their names, and its values against their types, `Literal` or range
      (`AtLeastOne`). ``max_positions`` is the longest sequence, or None.
    - ``forward(self, x)``, the parallel form on ``x [B, T, D]``; with ``needs_ids = True``
      ``forward(self, x, input_ids)``, with the tokens ``input_ids [B, T]``. By default the output of ``prefill``.
    - if there is a recurrent form, ``init_state`` and ``step(self, x, state)`` on ``x [B, D]`` (with
      ``needs_ids``, ``step(self, x, state, input_ids)`` with ``input_ids [B]``), which returns the output
      ``[B, D]`` and the state after it. Stepping through a sequence equals ``forward``. A GPU records steps as a CUDA
      graph (`argap.models.steps`) if the state consists of tensors that keep their shapes, `argap.models.past`, and the
      number of positions so far, to which every step adds 1; that number is then a tensor ``[1]``.
    - ``prefill``, if the parallel form can return its last state.
    - ``mixing_flops``, the operations besides those of its linear maps.
    - ``state_size``, if the state grows with the length or there is no recurrent form.
    - `OwnInitialization`, in each module with parameters of its own.
    - ``auxiliary_loss``, if it adds a term to the training loss.

    A projection whose output goes to the residual stream is a `ResidualLinear`.
    """

    causal: ClassVar[bool] = True
    """False for mixers that see the future, which are only for synthetic tasks."""
    needs_ids: ClassVar[bool] = False
    """Whether ``forward`` and ``step`` also take the tokens (to select positions by token, for instance)."""
    source: ClassVar[str] = ""
    """Paper and equation, shown by ``argap models show``."""
    operator: Callable[..., tuple[torch.Tensor, Any]] = staticmethod(_no_operator)
    """The operator of `argap.kernels` run by the parallel form, for mixers that are one operator on q, k and v. A
    trainer may set an equivalent one on an instance (`argap.models.fla.operators`)."""
    recurrent: ClassVar[bool] = False
    """Whether there is a recurrent form; set by defining ``step``."""

    # Declared like nn.Module.forward, so that each mixer may define its own signature.
    step: Callable[..., tuple[torch.Tensor, State]] = _no_step
    forward: Callable[..., torch.Tensor] = _through_prefill

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.recurrent = cls.step is not _no_step

    @classmethod
    def missing(cls) -> str | None:
        """Return the name of the method that this class still has to define, or None."""
        if cls.flops is Mixer.flops and cls.mixing_flops is Mixer.mixing_flops:
            return "mixing_flops"
        return "state_size" if cls.state_size is Mixer.state_size and not cls.recurrent else None

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return the state before the first position."""
        raise NotImplementedError(f"{type(self).__name__} has no recurrent step")

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor) -> tuple[torch.Tensor, State]:
        """Return ``forward`` from the first position, and the state after the last, from which generation continues.

        Takes ``x [B, T, D]``, with ``needs_ids`` followed by the tokens ``[B, T]``; the output is ``[B, T, D]``. This
        default takes T steps; a mixer whose parallel form knows its last state overrides it.
        """
        state, outputs = self.init_state(x.shape[0], x.dtype, x.device), []
        for position in range(x.shape[1]):
            y, state = self.step(x[:, position], state, *(ids[:, position] for ids in input_ids))
            outputs.append(y)
        return torch.stack(outputs, dim=1), state

    def set_depth(self, layer: int, layers: int) -> None:
        """Tell the mixer its depth before initialisation, for mixers whose initial values depend on it.

        It is number ``layer`` (from 0) of the model's ``layers`` with mixers of this name. This default ignores it.
        """
        return

    def auxiliary_loss(self, x: torch.Tensor) -> torch.Tensor | None:
        """Return this mixer's term of the training loss for its input ``x [B, T, D]``, in nats per token, or None.

        The model collects it, and the trainer adds it to the mean next-token loss.
        """
        return None

    def state_size(self, length: int) -> int:
        """Return the number of reals in the recurrent state of one sequence after ``length`` positions.

        This default is the size of ``init_state``; a mixer whose state grows with the length overrides it.
        """
        return _numbers(self.init_state(1, torch.float32, torch.device("meta")))

    def flops(self, batch: int, length: int) -> int:
        """Count the floating-point operations of ``forward`` on ``[batch, length, D]``; a multiply-add counts 2.

        This default is 2·B·T for every weight of a linear map that is an attribute of the mixer, plus `mixing_flops`.
        """
        maps = [module for module in self.children() if isinstance(module, nn.Linear)]
        return 2 * batch * length * sum(module.weight.numel() for module in maps) + self.mixing_flops(batch, length)

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count the operations in `flops` other than products with the mixer's linear maps."""
        raise NotImplementedError(f"{type(self).__name__} defines neither flops nor mixing_flops")


def _numbers(state: State) -> int:
    """Count the reals in the tensors of a state; a complex number is two."""
    if isinstance(state, torch.Tensor):
        return state.numel() * (2 if state.is_complex() else 1)
    return sum(_numbers(part) for part in state) if isinstance(state, tuple | list) else 0


def split_heads(mixer: str, width: int, heads: int | None, *, usual: int = 1, even: bool = False) -> int:
    """Return the number of heads: as given, or else ``usual``, at least 1.

    Raises `ArgapError` for a width that does not split into them (with ``even``, into heads of even width).
    """
    if heads is None:
        heads = max(1, usual)
    if heads < 1 or width % (2 * heads if even else heads):
        of_even_width = " of even width" if even else ""
        raise ArgapError(
            f"{mixer}: width {width} does not split into {heads} heads{of_even_width}; set its option heads"
        )
    return heads


def longest(max_positions: int | None, what: str) -> int:
    """Return ``max_positions``. Raises `ArgapError` if None: ``what`` needs the longest sequence."""
    if max_positions is None:
        raise ArgapError(f"{what} the longest sequence; set the model's max_position_embeddings")
    return max_positions


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of states, norms and sums: ``dtype``, or float32 if that is narrower."""
    return torch.promote_types(dtype, torch.float32)


def normed(norm: nn.RMSNorm, x: torch.Tensor) -> torch.Tensor:
    """Apply ``norm`` in the dtype of its weight, as autocast leaves it, and round to the dtype of ``x``."""
    return norm(x.to(norm.weight.dtype)).to(x.dtype)


def without_decay(*parameters: nn.Parameter) -> None:
    """Exempt parameters from weight decay (`argap.train.optimizer`)."""
    for parameter in parameters:
        parameter._no_weight_decay = True  # pyright: ignore[reportAttributeAccessIssue]


class ResidualLinear(nn.Linear):
    """A projection to the residual stream, initialised smaller so that variance does not grow with depth."""


@runtime_checkable
class OwnInitialization(Protocol):
    """A module that initialises its own parameters, other than those of linear maps, embeddings and norms."""

    def initialize(self, std: float, residual_std: float) -> None:
        """Initialise the parameters of this module itself, not of its children.

        Use only `torch.nn.init` and, for computed values, `transformers.initialization.copy_`: while a checkpoint
        loads, these skip parameters that are already loaded.

        ``std`` is the standard deviation of a weight matrix, ``residual_std`` that of a projection to the residual
        stream.
        """
        ...
