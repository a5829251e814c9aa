"""Generation steps of a native model, recorded as a CUDA graph on a GPU.

A step is some twenty small kernels per layer, which take longer to launch than to run. A graph launches all of them at
once, but every replay reads and writes the same memory. A state, however, is a value: its tensors may grow, and the
position is a Python number. `FixedStep` therefore copies it to storage of fixed shape: past positions have room up to
a capacity, and the position is a tensor. A mixer needs no extra code if its state consists of tensors that keep their
shapes, `Past`, `Recent` and the number of positions so far.

Legend: B batch, V vocabulary.
"""

import math
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from argap.kernels.shared import shared_within
from argap.models.mixer import State
from argap.models.modeling import ArgapForCausalLM, RecurrentState
from argap.models.past import FixedPast, Past, Recent
from argap.runtime.progress import say

PLAIN = 4
"""Steps before storage is fixed: recording a graph takes as long as a few steps, and many answers are short."""
ROOM = 128
"""Minimum number of further positions that new storage has room for, or a quarter of those so far if that is more."""
BLOCK = 64
"""The capacity is a multiple of this."""
_ATEN = torch.ops.aten
WAITING_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
"""torch's tags of operations that read a number, or the size of their result, from the device; `WAITING` lack these
tags."""
WAITING = (_ATEN.is_nonzero.default, _ATEN.where.default)
INDEXING = (_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default)
"""Operations that wait if an index is a mask."""


class Steps:
    """Continues sequences from a state: ``steps(ids)`` is `ArgapForCausalLM.step` without the state.

    Steps that cannot be recorded run kernel by kernel, with one warning.
    """

    def __init__(self, model: ArgapForCausalLM, state: RecurrentState, *, graphs: bool | None = None) -> None:
        """Continue from ``state``.

        ``graphs``: whether to fix the storage after `PLAIN` steps and, on CUDA, to record the steps; their logits have
        no gradient. None: on CUDA, if no gradient is needed.
        """
        if graphs is None:
            graphs = model.device.type == "cuda" and not torch.is_grad_enabled()
        assert isinstance(state.position, int)
        self.model, self.graphs = model, graphs
        self.state: RecurrentState | None = state
        self.fixed: FixedStep | None = None
        self.length, self.taken = state.position, 0

    @property
    def recorded(self) -> bool:
        """Whether the latest step was a replay of a graph."""
        return self.fixed is not None and self.fixed.graph is not None

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Process one token per sequence, ``[B]``, into its logits ``[B, V]``, which the next call may overwrite.

        Raises `ArgapError` past ``max_position_embeddings``.
        """
        self.model.model.check_length(self.length + 1)
        logits = None
        if self.fixed is not None:
            if self.length >= self.fixed.capacity:
                self.fixed.graph = None  # free its memory first
                self.fixed = FixedStep(self.model, self.fixed.state, self.length, len(ids))
            logits = self.fixed(ids)
        elif self.graphs and self.taken >= PLAIN:
            logits = self._fix(ids)
        if logits is None:
            assert self.state is not None
            logits, self.state = self.model.step(ids, self.state)
        self.length, self.taken = self.length + 1, self.taken + 1
        return logits

    def _fix(self, ids: torch.Tensor) -> torch.Tensor | None:
        """Return the logits of the first step in fixed storage; None if it fails, which leaves the state unchanged."""
        assert self.state is not None
        try:
            fixed = FixedStep(self.model, self.state, self.length, len(ids))
            logits = fixed(ids)
        except Exception as error:  # from any user's mixer; if the mixer is at fault, the plain step raises it again
            self.graphs = False
            _say_no_graph(error)
            return None
        self.state, self.fixed = None, fixed
        return logits


class FixedStep:
    """A step that reads and writes the same storage at every call; on CUDA the second call records it.

    It always runs in inference mode, because storage allocated inside it cannot be written to outside.
    """

    @torch.inference_mode()
    def __init__(self, model: ArgapForCausalLM, state: RecurrentState, length: int, batch: int) -> None:
        """Continue after ``length`` positions from ``state``, a value or another step's storage, which is copied."""
        position = torch.full((1,), length, device=model.device)
        capacity = -(-(length + max(ROOM, length // 4)) // BLOCK) * BLOCK
        layers = [_fixed(layer, state.position, position, length, capacity) for layer in state.layers]
        self.model, self.state = model, RecurrentState(position, layers)
        self.capacity = min(map(_capacity, layers), default=math.inf)
        """Positions that fit; infinite if no state grows."""
        self.ids = torch.zeros(batch, dtype=torch.long, device=model.device)
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.logits: torch.Tensor | None = None

    @torch.inference_mode()
    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """Run one step, as `Steps` does.

        The first call raises `ValueError` if a mixer's state changes shape, if it has a number that is not the
        position, or if a mixer reads from the device.
        """
        self.ids.copy_(ids)
        self.calls += 1
        if self.calls == 1:  # the first call compiles and loads the kernels
            assert isinstance(self.state.position, torch.Tensor)
            with _FirstStep(self.state.position) as first:
                return self._step(first)
        if self.calls == 2 and self.ids.is_cuda:
            self._record()
        if self.graph is None:
            return self._step()
        self.graph.replay()
        assert self.logits is not None
        return self.logits

    def _step(self, first: "_FirstStep | None" = None) -> torch.Tensor:
        with shared_within():
            logits, after = self.model.step(self.ids, self.state)
        position, moved = self.state.position, after.position
        assert isinstance(position, torch.Tensor)
        assert isinstance(moved, torch.Tensor)
        changes = [(position, moved)]
        for block, old, new in zip(self.model.model.blocks, self.state.layers, after.layers, strict=True):
            try:
                changes += _changes(old, new, position, first)
            except ValueError as error:
                raise ValueError(f"{type(block.mixer).__name__}: {error}") from None
        _overwrite(changes)
        return logits

    def _record(self) -> None:
        """Record a step without running it. If CUDA refuses, continue without a graph."""
        graph = torch.cuda.CUDAGraph()
        try:
            # A failed recording leaves its stream current; the outer block returns to ours.
            with torch.cuda.stream(torch.cuda.current_stream()), torch.cuda.graph(graph):
                self.logits = self._step()
        except RuntimeError as error:
            torch.cuda.synchronize()
            _say_no_graph(error)
            return
        self.graph = graph


class _FirstStep(TorchDispatchMode):
    """Raises `ValueError` for operations that read from the device or move a tensor to another one.

    A graph cannot record them, and after a failed recording torch draws no random numbers on that GPU.
    """

    def __init__(self, position: torch.Tensor) -> None:
        super().__init__()
        self.position = position
        self.next_positions: list[torch.Tensor] = []
        """Results of ``position + 1``."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        devices = {x.device for x in (*args[:1], result) if isinstance(x, torch.Tensor)}
        if _waits(func, args):
            raise ValueError(f"{func} reads from the device")
        if len(devices) > 1:
            raise ValueError(f"{func} moves a tensor to another device")
        if func is _ATEN.add.Tensor and args[0] is self.position and type(args[1]) is int and args[1] == 1:
            self.next_positions.append(result)
        return result


def _waits(func: Any, args: Any) -> bool:
    """Return whether an operation waits to read from the device."""
    if func in INDEXING:
        return any(index is not None and index.dtype == torch.bool for index in args[1])
    return func in WAITING or not WAITING_TAGS.isdisjoint(func.tags)


def _fixed(state: State, before: int | torch.Tensor, position: torch.Tensor, length: int, capacity: int) -> State:
    """Copy ``state`` after ``length`` positions to storage of fixed size.

    All mixers share ``position``, which replaces ``before``.
    """
    if state is before or (type(state) is int and state == length):
        return position
    if isinstance(state, Past | FixedPast):
        return state.fixed(position, length, capacity)
    if isinstance(state, Recent):
        return state.fixed()
    if isinstance(state, tuple | list):
        parts = [_fixed(part, before, position, length, capacity) for part in state]
        return type(state)(*parts) if hasattr(state, "_fields") else type(state)(parts)
    return state.clone(memory_format=torch.contiguous_format) if isinstance(state, torch.Tensor) else state


def _capacity(state: State) -> float:
    """Return the number of positions that fit in the storage of ``state``; infinite if it does not grow."""
    if isinstance(state, FixedPast):
        size = state.values.shape[2]
        return math.inf if size == state.window else size
    if isinstance(state, tuple | list):
        return min(map(_capacity, state), default=math.inf)
    return math.inf


def _changes(
    old: State, new: State, position: torch.Tensor, first: _FirstStep | None
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Pair the tensors of a stored state that a step replaced with their new values, except ``position``.

    Raises `ValueError` if shapes or Python numbers in the state changed, or, in the ``first`` step, if a number that
    was the position is not its successor.
    """
    if old is position:
        if first is not None and all(new is not each for each in first.next_positions):
            raise ValueError("its state has a number that is not the position")
        return []
    if isinstance(old, FixedPast) and old is new:
        return []
    if isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor):
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise ValueError("its state grows, or changes its type, in a step")
        return [] if old is new else [(old, new)]
    if isinstance(old, tuple | list) and type(old) is type(new) and len(old) == len(new):
        return [change for parts in zip(old, new, strict=True) for change in _changes(*parts, position, first)]
    if type(old) is not type(new) or not isinstance(old, int | float | str | None) or old != new:
        raise ValueError("its state has a number of Python that a step changes, or another form after it")
    return []


def _overwrite(changes: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Write the new values to the storage. Values that are views of it are read before any is written."""
    stored = {old.untyped_storage().data_ptr() for old, _ in changes}
    copies = [(old, new.clone() if new.untyped_storage().data_ptr() in stored else new) for old, new in changes]
    for old, new in copies:
        old.copy_(new)


def _say_no_graph(error: Exception) -> None:
    reason = str(error).partition("\n")[0] or type(error).__name__
    _say_once(f"no CUDA graph of a step ({reason}); it runs kernel by kernel")


@cache
def _say_once(message: str) -> None:
    say(message)
