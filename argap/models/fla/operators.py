"""Training with the operators of flash-linear-attention, which have kernels for the backward pass.

Each mixer runs one operator of `argap.kernels` (`argap.models.mixer.Mixer.operator`). Of their kernels only
the selective scan's have a backward pass; the others train with their references in PyTorch. `use_fla` replaces the
operators whose function flash-linear-attention also computes:

- `gla`: ``chunk_gla``, with the same scale and log decays in float32.
- `delta_rule`: ``chunk_delta_rule``, with a decay per head and position ``chunk_gated_delta_rule`` and with one per
  channel ``chunk_kda``. q and k are normalised here, because theirs add 10⁻⁶ to the squared norm. The first refuses
  float32.
- `generalized_delta_rule` (RWKV-7): ``chunk_rwkv7``, which refuses float32 too.
- `linear_attention`, with a decay per head (RetNet, lightning attention), per head and position (Mamba-2, mLSTM) or
  none: ``chunk_simple_gla``, divided here by the sum of weights in float32, because it rounds that sum to the dtype of
  the keys.
- `taylor_attention` (Based): ``parallel_based``. The polynomial and its scale 1/√K are the same. It adds 10⁻⁶ to the
  sum of weights, which is at least ½; argap bounds the sum from below by 10⁻⁶.

All but `gla` are called with scale 1, because the mixers scale q or k. States and sums are always in float32. Key sizes
that their operator does not support, or not safely, run ours.

Legend: B batch, H heads, T positions, K key size, V value size.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import nn

from argap.errors import ArgapError
from argap.kernels.launch import common_dtype
from argap.kernels.recurrent.delta_rule import delta_rule, normalized
from argap.kernels.recurrent.generalized_delta_rule import generalized_delta_rule
from argap.kernels.recurrent.gla import gla
from argap.kernels.recurrent.linear_attention import SMALLEST_SUM, linear_attention
from argap.kernels.recurrent.recurrence import for_each_head
from argap.kernels.recurrent.taylor_attention import taylor_attention
from argap.models.mixer import Mixer, at_least_float32

Backend = Literal["fla", "native"]
Operator = Callable[..., tuple[torch.Tensor, Any]]
DELTA_RULES: frozenset[Operator] = frozenset({delta_rule, generalized_delta_rule})
REPLACED: frozenset[Operator] = DELTA_RULES | {gla, linear_attention, taylor_attention}
"""Operators of `argap.kernels` that `FlaOperators` implements by a method of the same name."""
LARGEST_DELTA_KEY, LARGEST_TAYLOR_KEY = 256, 128
"""The largest K that their kernels support; the other operators have no limit."""
SMALLEST_KEY = 64
"""The smallest K for their delta rule and linear attention, whose backward passes share ``chunk_bwd_kernel_dqkwg``:
RetNet with keys of 32 ended in an illegal memory access on an H200 with Triton 3.6 while that kernel was tuned. Triton
3.7.1 compiles a very similar kernel to one that reads outside its shared memory (triton-lang/triton#11366)."""


@dataclass(frozen=True)
class FlaOperators:
    """Functions of ``fla.ops`` behind the signatures of `argap.kernels`, without their initial ``state``.

    Each takes q, k ``[B, H, T, K]`` and v ``[B, H, T, V]`` and returns y ``[B, H, T, V]`` and the state after the last
    position.
    """

    chunk_gla: Operator
    chunk_delta_rule: Operator
    chunk_gated_delta_rule: Operator
    chunk_kda: Operator
    chunk_rwkv7: Operator
    chunk_simple_gla: Operator
    parallel_based: Callable[..., torch.Tensor]

    @classmethod
    def load(cls) -> "FlaOperators":
        """Load the operators of the installed package, tuned as `argap.models.fla.autotuning` describes.

        They are called outside the graphs of `torch.compile`, which cannot trace them. Raises `ArgapError` if the
        package is not installed.
        """
        from argap.models.hub.registry import register_fla

        register_fla("`backend=fla`")
        from fla.ops.based import parallel_based  # pyright: ignore[reportMissingImports]
        from fla.ops.delta_rule import chunk_delta_rule  # pyright: ignore[reportMissingImports]
        from fla.ops.gated_delta_rule import chunk_gated_delta_rule  # pyright: ignore[reportMissingImports]
        from fla.ops.gla import chunk_gla  # pyright: ignore[reportMissingImports]
        from fla.ops.kda import chunk_kda  # pyright: ignore[reportMissingImports]
        from fla.ops.rwkv7 import chunk_rwkv7  # pyright: ignore[reportMissingImports]
        from fla.ops.simple_gla import chunk_simple_gla  # pyright: ignore[reportMissingImports]

        from argap.models.fla.autotuning import compile_at_once

        compile_at_once()
        delta_rules: tuple[Any, ...] = chunk_delta_rule, chunk_gated_delta_rule, chunk_kda, chunk_rwkv7
        functions = chunk_gla, *delta_rules, chunk_simple_gla, parallel_based
        untraced: list[Any] = [torch.compiler.disable(function) for function in functions]
        return cls(*untraced)

    def gla(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        log_decay: torch.Tensor,
        *,
        scale: float = 1.0,
        temperature: float | None = None,
        keep_state: bool = True,
        chunk: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute `argap.kernels.recurrent.gla.gla`; ``log_decay`` is ``[B, H, T, K]``."""
        if temperature is not None:
            log_decay = F.logsigmoid(log_decay.to(at_least_float32(log_decay.dtype))) / temperature
        y, state = self.chunk_gla(
            *_by_position(q, k, v), log_decay.transpose(1, 2), scale=scale, output_final_state=keep_state
        )
        return y.transpose(1, 2).to(v.dtype), state

    def delta_rule(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        beta: torch.Tensor,
        *,
        log_decay: torch.Tensor | None = None,
        normalize: bool = False,
        norm_eps: float = 0.0,
        scale: float = 1.0,
        chunk: int | None = 64,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute `argap.kernels.recurrent.delta_rule.delta_rule`, which itself runs for smaller and larger keys.

        ``beta`` is ``[B, H, T]``, ``log_decay`` ``[B, H, T]`` or ``[B, H, T, K]``.
        """
        if not SMALLEST_KEY <= q.shape[-1] <= LARGEST_DELTA_KEY:
            options = {"normalize": normalize, "norm_eps": norm_eps, "scale": scale, "chunk": chunk}
            return delta_rule(q, k, v, beta, log_decay=log_decay, **options)
        if normalize:
            wide = at_least_float32(q.dtype)
            q, k = (normalized(x.to(wide), norm_eps).to(x.dtype) for x in (q, k))
        q, k = (for_each_head(x, v.shape[1]) for x in (q, k))
        given = {"beta": beta.transpose(1, 2), "scale": scale, "output_final_state": True}
        operator = self.chunk_delta_rule
        if log_decay is not None:
            operator = self.chunk_gated_delta_rule if log_decay.dim() == 3 else self.chunk_kda
            given["g"] = log_decay.transpose(1, 2)
        y, state = operator(*_by_position(q, k, v), **given)
        return y.transpose(1, 2).to(v.dtype), state

    def generalized_delta_rule(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        a: torch.Tensor,
        b: torch.Tensor,
        *,
        log_decay: torch.Tensor,
        least_log_decay: float | None = None,
        chunk: int | None = 16,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute `argap.kernels.recurrent.generalized_delta_rule`, which itself runs for smaller and larger keys.

        q, k, a, b and ``log_decay`` are ``[B, H, T, K]``.
        """
        if not SMALLEST_KEY <= q.shape[-1] <= LARGEST_DELTA_KEY:
            decays = {"log_decay": log_decay, "least_log_decay": least_log_decay}
            return generalized_delta_rule(q, k, v, a, b, **decays, chunk=chunk)
        r, k, v_low, a, b = _by_position(q, k, v, a, b)
        y, state = self.chunk_rwkv7(
            r=r, w=log_decay.transpose(1, 2), k=k, v=v_low, a=a, b=b, scale=1.0, output_final_state=True
        )
        return y.transpose(1, 2).to(v.dtype), state

    def linear_attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        log_decay: torch.Tensor | None = None,
        step: torch.Tensor | None = None,
        skip: torch.Tensor | None = None,
        normalize: bool = False,
        keep_state: bool = True,
        chunk: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute `argap.kernels.recurrent.linear_attention.linear_attention`, which itself runs for smaller keys.

        ``log_decay [H]`` is a constant, ``[B, H, T]`` is not, and ``normalize`` is for sums without decay and step: the
        mixers call it only so.
        """
        if q.shape[-1] < SMALLEST_KEY:
            options = {"normalize": normalize, "keep_state": keep_state, "chunk": chunk}
            return linear_attention(q, k, v, log_decay=log_decay, step=step, skip=skip, **options)
        wide, skipped = at_least_float32(v.dtype), 0
        q, k = (for_each_head(x, v.shape[1]) for x in (q, k))
        if skip is not None:
            skipped = skip[:, None, None] * v
        if step is not None:
            v = v * step[..., None].to(v.dtype)
        decays = {}
        if log_decay is not None:
            constant = log_decay.dim() == 1
            decays["g_gamma" if constant else "g"] = (log_decay if constant else log_decay.transpose(1, 2)).to(wide)
        y, state = self.chunk_simple_gla(*_by_position(q, k, v), **decays, scale=1.0, output_final_state=keep_state)
        y = y.transpose(1, 2)
        if normalize:
            sums = k.to(wide).cumsum(2)
            y = y / (q.to(wide) * sums).sum(-1, keepdim=True).clamp_min(SMALLEST_SUM)
            state = None if state is None else torch.cat([state, sums[:, :, -1, :, None].to(state.dtype)], dim=-1)
        return (y.to(v.dtype) + skipped).to(v.dtype), state

    def taylor_attention(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        normalize: bool = True,
        keep_state: bool = True,
        chunk: int | None = 64,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute `argap.kernels.recurrent.taylor_attention.taylor_attention`.

        That operator itself runs for keys too large for theirs, and if the state is kept: theirs returns none.
        """
        if keep_state or q.shape[-1] > LARGEST_TAYLOR_KEY:
            return taylor_attention(q, k, v, normalize=normalize, keep_state=keep_state, chunk=chunk)
        y = self.parallel_based(*_by_position(q, k, v), use_norm=normalize)
        return y.transpose(1, 2).to(v.dtype), None


def _by_position(*tensors: torch.Tensor) -> Iterator[torch.Tensor]:
    """Transpose ``[B, H, T, X]`` to ``[B, T, H, X]``, all in autocast's dtype or, without it, their common dtype."""
    device = tensors[0].device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else common_dtype(*tensors)
    return (x.to(dtype).transpose(1, 2) for x in tensors)


def choose_backend(
    backend: Literal["auto", "fla", "native"], model: nn.Module, device: torch.device, dtype: torch.dtype
) -> Backend:
    """Choose the backend of a run that computes in ``dtype``; ``auto`` is ``fla`` wherever that can run.

    Raises `ArgapError`, saying what is missing, for ``fla`` where it cannot run.
    """
    if backend == "native":
        return "native"
    try:
        _check_runs(model, device, dtype)
    except ArgapError:
        if backend == "fla":
            raise
        return "native"
    return "fla"


def _check_runs(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Raise `ArgapError` if ``fla`` cannot train ``model``."""
    mixers = [module for module in model.modules() if isinstance(module, Mixer)]
    operators = {mixer.operator for mixer in mixers}
    if not operators & REPLACED:
        names = ", ".join(sorted({type(mixer).__name__ for mixer in mixers}))
        raise ArgapError(
            f"`backend=fla`: flash-linear-attention has no operator for {names}; use `backend=native` or `backend=auto`"
        )
    if device.type != "cuda":
        raise ArgapError(f"`backend=fla`: needs a GPU, found {device.type}; use `backend=native` or `backend=auto`")
    if operators & DELTA_RULES and dtype == torch.float32:
        raise ArgapError("`backend=fla`: its delta rule has no float32; use `dtype=bfloat16` or `backend=native`")
    FlaOperators.load()


def use_fla(model: nn.Module, operators: FlaOperators | None = None) -> None:
    """Make the mixers of ``model`` run the operators of flash-linear-attention.

    ``operators``: by default those of the installed package. Raises `ArgapError` if it is not installed.
    """
    operators = operators or FlaOperators.load()
    for mixer in (module for module in model.modules() if isinstance(module, Mixer)):
        if mixer.operator in REPLACED:
            mixer.operator = getattr(operators, mixer.operator.__name__)
