"""RMSNorm or LayerNorm of a residual stream, together with the addition before it.

A program owns a row: it reads the stream and the layer's output once, and writes their sum and the normed sum.

Legend: N rows (batch and positions), D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from argap.kernels.launch import Launch, LaunchTable, block_size, jit, runs_kernels, tl

# By the width: a wide row needs more threads to stay in registers.
LAUNCHES = LaunchTable(
    "residual_norm", {"any": {"narrow": Launch({}, warps=4, stages=1), "wide": Launch({}, warps=8, stages=1)}}
)
NARROW, LARGEST = 2048, 16384
"""The widest narrow row, and the widest row the kernel supports."""


def residual_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    *,
    bias: torch.Tensor | None = None,
    centered: bool = False,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute s = x + residual and its norm, w ⊙ s / √(mean(s²) + eps) + b.

    Args:
        x: ``[..., D]``.
        weight: w, ``[D]``.
        eps: added to the mean square.
        residual: ``[..., D]``; None: 0.
        bias: b, ``[D]``; None: 0. Needs ``centered``.
        centered: subtract the mean of s in the norm (LayerNorm instead of RMSNorm).
        dtype: of the normed rows; None: that of ``x``.

    Returns:
        The normed rows and s, both ``[..., D]``, s in the dtype of ``x``.

    On a GPU, if no gradient is needed, runs one kernel with float32 arithmetic that norms s before rounding it; the
    dtypes must be equal, but weights and biases may be float32 or of ``dtype``. Otherwise runs the reference, which
    norms the rounded s.
    """
    dtype = dtype or x.dtype
    vectors = [v for v in (weight, bias) if v is not None]
    alike = all(v.dtype in (x.dtype, dtype, torch.float32) for v in vectors)
    alike = alike and (residual is None or (residual.dtype, residual.shape) == (x.dtype, x.shape))
    fits = alike and x.dtype != torch.float64 and x.shape[-1] <= LARGEST and not torch.is_autocast_enabled("cuda")
    if not (fits and runs_kernels(x, residual, *vectors)):
        return residual_norm_reference(x, weight, eps, residual, bias=bias, centered=centered, dtype=dtype)
    x, D = x.contiguous(), x.shape[-1]
    residual, bias = (None if given is None else given.contiguous() for given in (residual, bias))
    y = x.new_empty(x.shape, dtype=dtype)
    total = x if residual is None else x.new_empty(x.shape)
    launch = LAUNCHES.at(x.device, "narrow" if D <= NARROW else "wide")
    if y.numel():
        _norm_kernel[(x.numel() // D,)](
            *(x, residual, weight.contiguous(), bias, y, total, eps),
            D=D,
            BD=block_size(D),
            CENTERED=centered,
            **launch.arguments(),
        )
    return y, total


def residual_norm_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    *,
    bias: torch.Tensor | None = None,
    centered: bool = False,
    dtype: torch.dtype | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `residual_norm` with torch operations; differentiable."""
    total = x if residual is None else x + residual
    rounded = total.to(dtype or x.dtype)
    if centered:
        return F.layer_norm(rounded, weight.shape, weight, bias, eps), total
    return F.rms_norm(rounded, weight.shape, weight, eps), total


@jit
def _norm_kernel(x, residual, weight, bias, y, total, eps, D: tl.constexpr, BD: tl.constexpr, CENTERED: tl.constexpr):
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
    if CENTERED:
        b_x = tl.where(m_d, b_x - tl.sum(b_x, axis=0) / D, 0.0)
    b_y = b_x * (1 / tl.sqrt(tl.sum(b_x * b_x, axis=0) / D + eps))
    b_y *= tl.load(weight + o_d, mask=m_d, other=0.0).to(tl.float32)
    if bias is not None:
        b_y += tl.load(bias + o_d, mask=m_d, other=0.0).to(tl.float32)
    tl.store(y + o_row, b_y.to(y.dtype.element_ty), mask=m_d)
