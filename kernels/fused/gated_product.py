"""A gate times a value in one pass with the operations around it: SwiGLU, and the gates of convolution mixers.

The kernel takes as long as reading its inputs and writing the product.

Legend: N rows (batch and positions), D width.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F

from argap.kernels.launch import Launch, LaunchTable, jit, runs_kernels, tl, triton, unit_stride

Activation = Literal["identity", "relu", "sigmoid", "silu"]
ACTIVATIONS = {"identity": lambda x: x, "relu": F.relu, "sigmoid": torch.sigmoid, "silu": F.silu}

LAUNCHES = LaunchTable("gated_product", {"any": {"any": Launch({"BN": 8, "BD": 256}, warps=4, stages=1)}})


def gated_product(
    gate: torch.Tensor,
    value: torch.Tensor,
    activation: Activation = "identity",
    *,
    gate_bias: torch.Tensor | None = None,
    skip: torch.Tensor | None = None,
    skipped: torch.Tensor | None = None,
    value_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute act(g + b) ⊙ (v + s ⊙ u + c).

    Args:
        gate: g, ``[..., D]``.
        value: v, ``[..., D]``.
        activation: act.
        gate_bias: b, ``[D]`` (or, for the reference, ``[T, D]``); None: 0.
        skip: s, ``[D]``; None: 0. Needs ``skipped``.
        skipped: u, ``[..., D]``.
        value_bias: c, like ``gate_bias``.

    Returns:
        The product in the inputs' dtype, ``[..., D]``.

    Runs one kernel with float32 arithmetic and one rounding on a GPU if no gradient is needed, the dtypes are equal and
    the biases are vectors; otherwise the reference.
    """
    vectors = [x for x in (gate_bias, skip, value_bias) if x is not None]
    given = [x for x in (value, skipped) if x is not None]
    alike = all(x.dtype == gate.dtype and x.shape == gate.shape for x in given)
    fits = alike and gate.dtype != torch.float64 and all(x.ndim == 1 and x.dtype == gate.dtype for x in vectors)
    if not (fits and runs_kernels(gate, *given, *vectors)):
        return gated_product_reference(gate, value, activation, gate_bias, skip, skipped, value_bias)
    y, D = gate.new_empty(gate.shape), gate.shape[-1]
    rows = [None if x is None else unit_stride(x.reshape(-1, D)) for x in (gate, value, skipped)]
    gate_bias, skip, value_bias = (None if x is None else x.contiguous() for x in (gate_bias, skip, value_bias))
    launch = LAUNCHES.at(y.device, "any")
    N = y.numel() // D
    tiles = triton.cdiv(N, launch.blocks["BN"]) * triton.cdiv(D, launch.blocks["BD"])
    if N:
        _gated_product_kernel[(tiles,)](
            *(*rows, gate_bias, skip, value_bias, y, N),
            *(0 if x is None else x.stride(0) for x in rows),
            D=D,
            ACTIVATION=activation,
            **launch.arguments(),
        )
    return y


def gated_product_reference(
    gate: torch.Tensor,
    value: torch.Tensor,
    activation: Activation = "identity",
    gate_bias: torch.Tensor | None = None,
    skip: torch.Tensor | None = None,
    skipped: torch.Tensor | None = None,
    value_bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute `gated_product` with torch operations, each rounded; differentiable."""
    if gate_bias is not None:
        gate = gate + gate_bias
    if skip is not None and skipped is not None:
        value = value + skip * skipped
    if value_bias is not None:
        value = value + value_bias
    return ACTIVATIONS[activation](gate) * value


@jit
def _gated_product_kernel(
    gate,
    value,
    skipped,
    gate_bias,
    skip,
    value_bias,
    y,
    N,
    s_gate,
    s_value,
    s_skipped,
    D: tl.constexpr,
    ACTIVATION: tl.constexpr,
    BN: tl.constexpr,
    BD: tl.constexpr,
):
    # BN rows and BD columns; neighbours in the grid are neighbours in the width. Offsets may exceed 2³¹.
    ND: tl.constexpr = (D + BD - 1) // BD
    o_d = (tl.program_id(0) % ND) * BD + tl.arange(0, BD)
    o_n = (tl.program_id(0) // ND).to(tl.int64) * BN + tl.arange(0, BN)
    m_d = o_d < D
    m_nd = (o_n < N)[:, None] & m_d[None, :]
    # 1. The gate.
    b_g = tl.load(gate + o_n[:, None] * s_gate + o_d[None, :], mask=m_nd, other=0.0).to(tl.float32)
    if gate_bias is not None:
        b_g += tl.load(gate_bias + o_d, mask=m_d, other=0.0).to(tl.float32)[None, :]
    if ACTIVATION == "silu":
        b_g = b_g / (1 + tl.exp2(-1.4426950408889634 * b_g))  # log₂ e
    elif ACTIVATION == "sigmoid":
        b_g = 1 / (1 + tl.exp2(-1.4426950408889634 * b_g))
    elif ACTIVATION == "relu":
        b_g = tl.maximum(b_g, 0.0)
    # 2. The value.
    b_v = tl.load(value + o_n[:, None] * s_value + o_d[None, :], mask=m_nd, other=0.0).to(tl.float32)
    if skip is not None:
        b_u = tl.load(skipped + o_n[:, None] * s_skipped + o_d[None, :], mask=m_nd, other=0.0).to(tl.float32)
        b_v += b_u * tl.load(skip + o_d, mask=m_d, other=0.0).to(tl.float32)[None, :]
    if value_bias is not None:
        b_v += tl.load(value_bias + o_d, mask=m_d, other=0.0).to(tl.float32)[None, :]
    tl.store(y + o_n[:, None] * D + o_d[None, :], (b_g * b_v).to(y.dtype.element_ty), mask=m_nd)
