"""Triton where there is one, so that every kernel's file also imports where there is none (macOS, Windows).

A kernel's file starts with ``from __future__ import annotations`` and takes ``jit``, ``tl`` and ``triton``
from here; what it jits runs on a GPU, or under Triton's interpreter with ``TRITON_INTERPRET=1``.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

__all__ = ["jit", "runs_kernels", "tl", "triton"]

triton: Any = None
if TYPE_CHECKING:
    import triton.language as tl
else:
    tl = None
    try:
        import triton
        import triton.language as tl
    except ImportError:  # the references serve
        pass


def jit(kernel: Callable[..., Any]) -> Any:
    """`triton.jit`; without Triton the function as it is, which nothing launches."""
    return kernel if triton is None else triton.jit(kernel)


def runs_kernels(*tensors: torch.Tensor | None) -> bool:
    """Whether an op on ``tensors`` goes to its Triton kernel: all on one GPU, and no gradient asked for
    (the kernels are forward-only). Not under `torch.compile`: it rebuilds the launches that it traces, and
    the delta rule's then reads outside its inputs; a compiled model runs the references, fused."""
    given = [x for x in tensors if x is not None]
    if triton is None or torch.compiler.is_compiling() or not all(x.is_cuda for x in given):
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in given))
