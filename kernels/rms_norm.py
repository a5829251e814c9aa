"""RMSNorm of a residual stream, with the addition that precedes it in the same pass.

A program owns a row: it reads the stream and what a layer adds to it once, and writes their sum and the normed sum.

Legend: N rows (batch and positions), D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from argap.kernels.launch import Launch, LaunchTable, block_size, jit, runs_kernels, tl

# By the width: a wide row needs more threads to stay in registers.
LAUNCHES = LaunchTable(
    "rms_norm", {"any": {"narrow": Launch({}, warps=4, stages=1), "wide": Launch({}, warps=8, stages=1)}}
)
NARROW, LARGEST = 2048, 16384
"""The widest narrow row, and the widest that the kernel takes."""


def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """s = x + residual and w ⊙ s / √(mean(s²) + eps).

    Args:
        x: ``[..., D]``.
        weight: w, ``[D]``.
        eps: added to the mean square.
        residual: ``[..., D]``; None: 0.

    Returns:
        The normed rows and s, both like ``x``.

    Runs one kernel with float32 arithmetic on a GPU if no gradient is needed and all dtypes are equal, which norms s
    before s is rounded; otherwise the reference, which norms the rounded s.
    """
    alike = x.dtype == weight.dtype and (residual is None or (residual.dtype, residual.shape) == (x.dtype, x.shape))
    fits = alike and x.dtype != torch.float64 and x.shape[-1] <= LARGEST and not torch.is_autocast_enabled("cuda")
    if not (fits and runs_kernels(x, weight, residual)):
        return rms_norm_reference(x, weight, eps, residual)
    x, D = x.contiguous(), x.shape[-1]
    residual = None if residual is None else residual.contiguous()
    y = x.new_empty(x.shape)
    total = x if residual is None else x.new_empty(x.shape)
    launch = LAUNCHES.at(x.device, "narrow" if D <= NARROW else "wide")
    if y.numel():
        _rms_norm_kernel[(x.numel() // D,)](
            *(x, residual, weight.contiguous(), y, total, eps), D=D, BD=block_size(D), **launch.arguments()
        )
    return y, total


def rms_norm_reference(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """`rms_norm` by torch's operations; differentiable."""
    total = x if residual is None else x + residual
    return F.rms_norm(total, weight.shape, weight, eps), total


@jit
def _rms_norm_kernel(x, residual, weight, y, total, eps, D: tl.constexpr, BD: tl.constexpr):
    # One row. Offsets may exceed 2³¹.
    o_d = tl.arange(0, BD)
    m_d = o_d < D
    o_row = tl.program_id(0).to(tl.int64) * D + o_d
    # 1. The sum.
    b_x = tl.load(x + o_row, mask=m_d, other=0.0).to(tl.float32)
    if residual is not None:
        b_x += tl.load(residual + o_row, mask=m_d, other=0.0).to(tl.float32)
        tl.store(total + o_row, b_x.to(total.dtype.element_ty), mask=m_d)
    # 2. The norm.
    b_scale = 1 / tl.sqrt(tl.sum(b_x * b_x, axis=0) / D + eps)
    b_w = tl.load(weight + o_d, mask=m_d, other=0.0).to(tl.float32)
    tl.store(y + o_row, (b_x * b_scale * b_w).to(y.dtype.element_ty), mask=m_d)
