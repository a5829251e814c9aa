"""The norm of each head's values and the gate after or before it, in one pass.

Legend: N rows (batch and positions), H heads, V value size.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

from argap.kernels.launch import Launch, LaunchTable, block_size, jit, runs_kernels, tl, triton, unit_stride

LAUNCHES = LaunchTable("gated_norm", {"any": {"any": Launch({}, warps=4, stages=1)}})
GATES = {"silu": F.silu, "sigmoid": torch.sigmoid}
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
    activation: Literal["silu", "sigmoid"] = "silu",
    gate_first: bool = False,
) -> torch.Tensor:
    """Compute act(gate) ⊙ norm(values), normed head by head, or norm(act(gate) ⊙ values).

    Args:
        values: ``[..., H, V]``.
        gate: ``[..., H·V]``.
        weight: of the norm, ``[V]``, shared by the heads, or ``[H·V]``; None: 1.
        eps: added to the mean square.
        dtype: to which the normed values are rounded.
        centered: LayerNorm (without weights) instead of RMSNorm.
        activation: act.
        gate_first: norm the gated values, as Mamba-2 does.

    Returns:
        ``[..., H·V]``.

    Runs one kernel with float32 arithmetic and one rounding on a GPU if no gradient is needed and the gate has
    ``dtype``; otherwise the reference.
    """
    plain = gate.dtype == dtype != torch.float64 and not torch.is_autocast_enabled("cuda")
    H, V = values.shape[-2:]
    if not (plain and V <= LARGEST and runs_kernels(values, gate, weight)):
        options = {"centered": centered, "activation": activation, "gate_first": gate_first}
        return gated_norm_reference(values, gate, weight, eps, dtype=dtype, **options)
    y = gate.new_empty(gate.shape)
    values, gate = (unit_stride(x.reshape(-1, H * V)) for x in (values, gate))  # parts of a projection are not copied
    weight = None if weight is None else weight.contiguous()
    BV = block_size(V)
    BN = max(1, TILE // BV)
    N = y.numel() // V
    if N:
        _gated_norm_kernel[(triton.cdiv(N, BN),)](
            *(values, gate, weight, y, eps, N, values.stride(0), gate.stride(0)),
            H=H,
            V=V,
            WEIGHTS=0 if weight is None else weight.numel() // V,
            CENTERED=centered,
            SIGMOID=activation == "sigmoid",
            GATE_FIRST=gate_first,
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
    activation: Literal["silu", "sigmoid"] = "silu",
    gate_first: bool = False,
) -> torch.Tensor:
    """Compute `gated_norm` with torch operations, each rounded; differentiable."""
    gate = GATES[activation](gate)
    if gate_first:
        values = values * gate.unflatten(-1, values.shape[-2:])
    if weight is not None:
        values = values.to(weight.dtype)
    size = values.shape[-1:]
    shared = weight if weight is None or weight.shape == size else None
    normed = F.layer_norm(values, size, eps=eps) if centered else F.rms_norm(values, size, shared, eps)
    normed = normed.flatten(-2)
    if weight is not None and shared is None:
        normed = normed * weight
    normed = normed.to(dtype)
    return normed if gate_first else gate * normed


@jit
def _gated_norm_kernel(
    values,
    gate,
    weight,
    y,
    eps,
    N,
    s_values,
    s_gate,
    H: tl.constexpr,
    V: tl.constexpr,
    WEIGHTS: tl.constexpr,
    CENTERED: tl.constexpr,
    SIGMOID: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    BN: tl.constexpr,
    BV: tl.constexpr,
):
    # BN heads. Offsets may exceed 2³¹.
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    o_v = tl.arange(0, BV)
    m_v = o_v < V
    m_nv = (o_n < N)[:, None] & m_v[None, :]
    i_row, o_col = (o_n // H)[:, None], (o_n % H)[:, None] * V + o_v[None, :]
    b_x = tl.load(values + i_row * s_values + o_col, mask=m_nv, other=0.0).to(tl.float32)
    # 1. The gate.
    b_z = tl.load(gate + i_row * s_gate + o_col, mask=m_nv, other=0.0).to(tl.float32)
    b_g = 1 / (1 + tl.exp2(-1.4426950408889634 * b_z))  # log₂ e
    if not SIGMOID:
        b_g = b_z / (1 + tl.exp2(-1.4426950408889634 * b_z))
    if GATE_FIRST:
        b_x = b_x * b_g
    # 2. The norm.
    if CENTERED:
        b_x = tl.where(m_nv, b_x - (tl.sum(b_x, axis=1) / V)[:, None], 0.0)
    b_x = b_x * (1 / tl.sqrt(tl.sum(b_x * b_x, axis=1) / V + eps))[:, None]
    if WEIGHTS == 1:
        b_x = b_x * tl.load(weight + o_v, mask=m_v, other=0.0).to(tl.float32)[None, :]
    elif WEIGHTS > 1:
        b_x = b_x * tl.load(weight + o_col, mask=m_nv, other=0.0).to(tl.float32)
    if not GATE_FIRST:
        b_x = b_x * b_g
    tl.store(y + i_row * (H * V) + o_col, b_x.to(y.dtype.element_ty), mask=m_nv)
