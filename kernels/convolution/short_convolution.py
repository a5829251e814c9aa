"""Short causal depthwise convolution fused with what follows it: bias, SiLU, unit norm of heads and gate, in one pass.

Reading x and writing y sets the limit, so the number of instructions per output matters. With few taps a program keeps
the rows of x of some positions and channels in registers, where each is converted once and serves all taps. With many
taps, or if y is written by channel, it owns a tile of positions and channels; the tap s positions back reads the tile
shifted by s rows, which is in the L1 cache by then.

Legend: B batch, T positions, D width, N taps, P ≤ N − 1 positions before the first, H heads of K channels.
"""

# Inside kernels types are Triton's, which come without stubs.
# pyright: reportGeneralTypeIssues=false, reportAttributeAccessIssue=false

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from argap.kernels.launch import (
    Launch,
    LaunchTable,
    block_size,
    jit,
    new_by_channel,
    runs_kernels,
    strided,
    tl,
    triton,
    unit_stride,
)
from argap.kernels.recurrent.delta_rule_inverse import SMALLEST_NORM

# Rows in registers leave room for 8 rows of a gate; a tile written by channel is stored along T.
LAUNCHES = LaunchTable(
    "short_convolution",
    {
        "any": {
            "rows": Launch({"BT": 16}),
            "gated rows": Launch({"BT": 8}),
            "tile": Launch({"BT": 64, "BD": 64}, warps=4),
        }
    },
)
FEW = 8
"""The loop over the taps is unrolled up to this number."""
ROW = 512
"""Channels of a program that keeps rows, unless a head has more."""
THREAD = 16
"""Bytes of a row kept by one thread."""


def short_convolution(
    x: torch.Tensor,
    taps: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    silu: bool = False,
    gate: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
    by_channel: bool = False,
    unit_heads: tuple[int, int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute y_t = act(Σ_{s<N} h_s ⊙ x_{t−s} + b) ⊙ g_t with one filter h per channel.

    Args:
        x: ``[B, T, D]``.
        taps: h, ``[N, D]``.
        bias: b, ``[D]``; None: 0.
        silu: act is SiLU; otherwise the identity.
        gate: g, ``[B, T, D]``; None: 1.
        state: the inputs before the first position, ``[B, P, D]`` with P ≤ N − 1; None: zeros.
        by_channel: let the kernel lay y out as `argap.kernels.launch.new_by_channel` does, for a long convolution.
        unit_heads: (H, K): divide the first H heads of K channels of act(…) by their Euclidean norms, as
            `torch.nn.functional.normalize` does. Not with ``by_channel`` or more than `FEW` taps.

    Returns:
        y ``[B, T, D]`` in the dtype of ``x``, rounded once, and the last inputs ``[B, ≤ N − 1, D]``: the state from
        which the sequence continues.

    Runs one kernel that sums in float32 on a GPU if no gradient is needed; otherwise the reference.
    """
    (B, T, D), N = x.shape, len(taps)
    inputs = x if state is None or T >= N - 1 else torch.cat([state.to(x.dtype), x], dim=1)
    last = inputs[:, max(0, inputs.shape[1] - N + 1) :]
    if not runs_kernels(x, taps, bias, gate, state) or x.dtype == torch.float64:
        return short_convolution_reference(
            x, taps, bias, silu=silu, gate=gate, state=state, unit_heads=unit_heads
        ), last
    state = None if state is None or state.shape[1] == 0 else unit_stride(state)
    P = 0 if state is None else state.shape[1]
    x, taps, bias, gate = unit_stride(x), unit_stride(taps), unit_stride(bias), unit_stride(gate)
    inputs = (*strided(x, gate, state, dims=2), taps, bias)
    if N <= FEW and not by_channel:
        y = x.new_empty(B, T, D)
        launch = LAUNCHES.at(x.device, "rows" if gate is None else "gated rows")
        H, K = unit_heads or (0, ROW)
        BK = block_size(K)
        BH = max(1, ROW // BK)
        _convolve_rows_kernel[(triton.cdiv(D, BH * K) * triton.cdiv(T, launch.blocks["BT"]) * B,)](
            *(*inputs, *strided(y, dims=2), T, P, taps.stride(0)),
            D=D,
            N=N,
            SILU=silu,
            H=H,
            K=K,
            SMALLEST=SMALLEST_NORM**2,
            BH=BH,
            BK=BK,
            **launch.blocks,
            num_warps=max(1, BH * BK * x.itemsize // (32 * THREAD)),
        )
        return y, last
    assert unit_heads is None
    y = new_by_channel(x) if by_channel else x.new_empty(B, T, D)
    launch = LAUNCHES.at(x.device, "tile")
    tiles = triton.cdiv(D, launch.blocks["BD"]) * triton.cdiv(T, launch.blocks["BT"])
    _convolve_tile_kernel[(tiles * B,)](
        *(*inputs, *strided(y, dims=3), T, P, N, taps.stride(0)),
        D=D,
        UNROLLED=N if N <= FEW else 0,
        SILU=silu,
        **launch.arguments(),
    )
    return y, last


def short_convolution_reference(
    x: torch.Tensor,
    taps: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    silu: bool = False,
    gate: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
    unit_heads: tuple[int, int] | None = None,
) -> torch.Tensor:
    """Compute y of `short_convolution`, tap by tap, in float32 or wider; differentiable."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    length, reach = x.shape[1], len(taps) - 1
    known = 0 if state is None else state.shape[1]
    padded = x if state is None else torch.cat([state.to(x.dtype), x], dim=1)
    padded = F.pad(padded, (0, 0, reach - known, 0)).to(dtype)
    y = padded[:, reach:] * taps[0].to(dtype)
    for back, tap in enumerate(taps[1:].to(dtype).unbind(0), start=1):
        y = y + padded[:, reach - back : reach - back + length] * tap
    if bias is not None:
        y = y + bias.to(dtype)
    if silu:
        y = F.silu(y)
    if unit_heads is not None:
        heads, rest = y[..., : math.prod(unit_heads)], y[..., math.prod(unit_heads) :]
        unit = F.normalize(heads.unflatten(-1, unit_heads), dim=-1, eps=SMALLEST_NORM)
        y = torch.cat([unit.flatten(-2), rest], dim=-1)
    if gate is not None:
        y = y * gate.to(dtype)
    return y.to(x.dtype)


@jit
def _convolve_rows_kernel(
    x,
    gate,
    state,
    taps,
    bias,
    y,
    T,
    P,
    s_taps,
    D: tl.constexpr,
    N: tl.constexpr,
    SILU: tl.constexpr,
    H: tl.constexpr,
    K: tl.constexpr,
    SMALLEST: tl.constexpr,
    BT: tl.constexpr,
    BH: tl.constexpr,
    BK: tl.constexpr,
):
    # BT positions and BH heads of one sequence; neighbours in the grid are neighbours in the width.
    ND: tl.constexpr = (D + BH * K - 1) // (BH * K)
    NT = tl.cdiv(T, BT)
    i_bt = tl.program_id(0) // ND
    i_b = (i_bt // NT).to(tl.int64)
    start = (i_bt % NT) * BT
    o_h = (tl.program_id(0) % ND) * BH + tl.arange(0, BH)
    o_k = tl.arange(0, BK)
    o_d = o_h[:, None] * K + o_k[None, :]
    m_d = (o_d < D) & (o_k < K)[None, :]
    # 1. All rows before any result is stored: loads do not pass stores.
    b_h = ()
    for s in tl.static_range(N):
        b_h += (tl.load(taps + s * s_taps + o_d, mask=m_d, other=0.0).to(tl.float32),)
    start64 = start.to(tl.int64)  # offsets may exceed 2³¹
    p_x = x[0] + i_b * x[1] + start64 * x[2] + o_d
    b_x = ()
    for i in tl.static_range(1 - N, BT):
        b_row = tl.load(p_x + i * x[2], mask=m_d & (start + i >= 0) & (start + i < T), other=0.0)
        if i < 0 and state is not None:
            m_state = m_d & (start + i < 0) & (start + i >= -P)
            p_state = state[0] + i_b * state[1] + (start64 + i + P) * state[2] + o_d
            b_row += tl.load(p_state, mask=m_state, other=0.0).to(b_row.dtype)
        b_x += (b_row,)
    b_g = ()
    if gate is not None:
        p_g = gate[0] + i_b * gate[1] + start64 * gate[2] + o_d
        for i in tl.static_range(BT):
            b_g += (tl.load(p_g + i * gate[2], mask=m_d & (start + i < T), other=0.0),)
    if bias is not None:
        b_bias = tl.load(bias + o_d, mask=m_d, other=0.0).to(tl.float32)
    p_y = y[0] + i_b * y[1] + start64 * y[2] + o_d
    for i in tl.static_range(BT):
        # 2. The sum over the taps, bias, SiLU.
        b_y = b_x[i + N - 1].to(tl.float32) * b_h[0]
        for s in tl.static_range(1, N):
            b_y += b_x[i + N - 1 - s].to(tl.float32) * b_h[s]
        if bias is not None:
            b_y += b_bias
        if SILU:
            b_y = _silu(b_y)
        # 3. Unit norm of the first H heads, gate.
        if H:
            b_r = tl.rsqrt(tl.maximum(tl.sum(b_y * b_y, 1), SMALLEST))
            b_y *= tl.where(o_h < H, b_r, 1.0)[:, None]
        if gate is not None:
            b_y *= b_g[i].to(tl.float32)
        tl.store(p_y + i * y[2], b_y.to(y[0].dtype.element_ty), mask=m_d & (start + i < T))


@jit
def _silu(b_x):
    # The square of 1/√(1 + e⁻ˣ) takes fewer instructions than a division.
    b_r = tl.rsqrt(1 + tl.exp2(-1.4426950408889634 * b_x))  # log₂ e
    return b_x * b_r * b_r


@jit
def _convolve_tile_kernel(
    x,
    gate,
    state,
    taps,
    bias,
    y,
    T,
    P,
    N,
    s_taps,
    D: tl.constexpr,
    UNROLLED: tl.constexpr,
    SILU: tl.constexpr,
    BT: tl.constexpr,
    BD: tl.constexpr,
):
    # BT positions and BD channels of one sequence; neighbours in the grid are neighbours in the width.
    ND: tl.constexpr = (D + BD - 1) // BD
    NT = tl.cdiv(T, BT)
    i_bt = tl.program_id(0) // ND
    i_b = (i_bt // NT).to(tl.int64)
    start = (i_bt % NT) * BT
    o_t = start + tl.arange(0, BT)
    o_d = (tl.program_id(0) % ND) * BD + tl.arange(0, BD)
    m_d = o_d < D
    b_y = tl.zeros([BT, BD], dtype=tl.float32)
    # 1. The sum over the taps.
    if UNROLLED:
        for s in tl.static_range(UNROLLED):
            b_x = _load_inputs(x, state, i_b, start, o_t, o_d, s, m_d, T, P)
            b_y += b_x * tl.load(taps + s * s_taps + o_d, mask=m_d, other=0.0).to(tl.float32)[None, :]
    else:
        for s in range(N):
            b_x = _load_inputs(x, state, i_b, start, o_t, o_d, s, m_d, T, P)
            b_y += b_x * tl.load(taps + s * s_taps + o_d, mask=m_d, other=0.0).to(tl.float32)[None, :]
    # 2. Bias, SiLU, gate.
    if bias is not None:
        b_y += tl.load(bias + o_d, mask=m_d, other=0.0).to(tl.float32)[None, :]
    if SILU:
        b_y = _silu(b_y)
    m_td = (o_t < T)[:, None] & m_d[None, :]
    o_t64 = o_t.to(tl.int64)[:, None]  # offsets may exceed 2³¹
    if gate is not None:
        b_y *= tl.load(gate[0] + i_b * gate[1] + o_t64 * gate[2] + o_d[None, :], mask=m_td, other=0.0).to(tl.float32)
    p_y = y[0] + i_b * y[1] + o_t64 * y[2] + o_d.to(tl.int64)[None, :] * y[3]
    tl.store(p_y, b_y.to(y[0].dtype.element_ty), mask=m_td)


@jit
def _load_inputs(x, state, i_b, start, o_t, o_d, s, m_d, T, P):
    # x at the positions s before o_t; those before the first position come from the state.
    o_t = o_t - s
    o_t64 = o_t.to(tl.int64)[:, None]
    p_x = x[0] + i_b * x[1] + o_t64 * x[2] + o_d[None, :]
    b_x = tl.load(p_x, mask=((o_t >= 0) & (o_t < T))[:, None] & m_d[None, :], other=0.0)
    b_x = b_x.to(tl.float32)
    if state is not None:  # noqa: SIM102  (known at compile time, the inner one is not)
        if start < s:
            m_state = ((o_t < 0) & (o_t >= -P))[:, None] & m_d[None, :]
            p_state = state[0] + i_b * state[1] + (o_t64 + P) * state[2] + o_d[None, :]
            b_x += tl.load(p_state, mask=m_state, other=0.0).to(tl.float32)
    return b_x
