"""The norm of each head's values and the gate that follows it, in one pass.

Legend: N rows (batch and positions), H heads, V value size.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

from argap.kernels.launch import Launch, LaunchTable, block_size, jit, runs_kernels, tl, triton

Activation = Literal["silu", "sigmoid"]
ACTIVATIONS = {"silu": F.silu, "sigmoid": torch.sigmoid}

LAUNCHES = LaunchTable("gated_norm", {"any": {"any": Launch({}, warps=4, stages=1)}})
LARGEST = 8192
"""The largest value size the kernel supports."""
TILE = 2048
"""Values per program: it takes as many heads as fit."""


def gated_norm(
    values: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    *,
    dtype: torch.dtype,
    centered: bool = False,
    activation: Activation = "silu",
) -> torch.Tensor:
    """Compute act(gate) ⊙ norm(values), normed head by head.

    Args:
        values: ``[..., H, V]``.
        gate: ``[..., H·V]``.
        weight: of the norm, ``[V]``, shared by the heads; None: 1.
        eps: added to the mean square.
        dtype: to which the normed values are rounded.
        centered: LayerNorm (without weights) instead of RMSNorm.
        activation: act.

    Returns:
        ``[..., H·V]``.

    Runs one kernel with float32 arithmetic and one rounding on a GPU if no gradient is needed and the gate has
    ``dtype``; otherwise the reference.
    """
    plain = gate.dtype == dtype != torch.float64 and not torch.is_autocast_enabled("cuda")
    if not (plain and values.shape[-1] <= LARGEST and runs_kernels(values, gate, weight)):
        options = {"dtype": dtype, "centered": centered, "activation": activation}
        return gated_norm_reference(values, gate, weight, eps, **options)
    values, gate, V = values.contiguous(), gate.contiguous(), values.shape[-1]
    weight = None if weight is None else weight.contiguous()
    y = gate.new_empty(gate.shape)
    BV = block_size(V)
    BN = max(1, TILE // BV)
    N = y.numel() // V
    if N:
        _gated_norm_kernel[(triton.cdiv(N, BN),)](
            *(values, gate, weight, y, eps, N),
            V=V,
            CENTERED=centered,
            ACTIVATION=activation,
            BN=BN,
            BV=BV,
            **LAUNCHES.at(y.device, "any").arguments(),
        )
    return y


def gated_norm_reference(
    values: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    eps: float,
    *,
    dtype: torch.dtype,
    centered: bool = False,
    activation: Activation = "silu",
) -> torch.Tensor:
    """Compute `gated_norm` with torch operations, each rounded; differentiable."""
    if weight is not None:
        values = values.to(weight.dtype)
    size = values.shape[-1:]
    normed = F.layer_norm(values, size, eps=eps) if centered else F.rms_norm(values, size, weight, eps)
    return ACTIVATIONS[activation](gate) * normed.flatten(-2).to(dtype)


@jit
def _gated_norm_kernel(
    values,
    gate,
    weight,
    y,
    eps,
    N,
    V: tl.constexpr,
    CENTERED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BN: tl.constexpr,
    BV: tl.constexpr,
):
    # BN heads. Offsets may exceed 2³¹.
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    o_v = tl.arange(0, BV)
    m_v = o_v < V
    m_nv = (o_n < N)[:, None] & m_v[None, :]
    o_nv = o_n[:, None] * V + o_v[None, :]
    # 1. The norm.
    b_x = tl.load(values + o_nv, mask=m_nv, other=0.0).to(tl.float32)
    if CENTERED:
        b_x = tl.where(m_nv, b_x - (tl.sum(b_x, axis=1) / V)[:, None], 0.0)
    b_x = b_x * (1 / tl.sqrt(tl.sum(b_x * b_x, axis=1) / V + eps))[:, None]
    if weight is not None:
        b_x = b_x * tl.load(weight + o_v, mask=m_v, other=0.0).to(tl.float32)[None, :]
    # 2. The gate.
    b_g = tl.load(gate + o_nv, mask=m_nv, other=0.0).to(tl.float32)
    numerator = 1.0 if ACTIVATION == "sigmoid" else b_g
    b_g = numerator / (1 + tl.exp2(-1.4426950408889634 * b_g))  # log₂ e
    tl.store(y + o_nv, (b_x * b_g).to(y.dtype.element_ty), mask=m_nv)
