"""Short causal depthwise convolution fused with what follows it: bias, SiLU and gate, in one pass.

The kernel's time is the time to read x and to write y. A program owns a tile of positions and channels; the tap s
positions back reads the tile shifted by s rows, which is in the L1 cache by then.

Legend: B batch, T positions, D width, N taps, P ≤ N − 1 positions before the first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from argap.kernels.launch import (
    Launch,
    LaunchTable,
    jit,
    new_by_channel,
    runs_kernels,
    strided,
    tl,
    triton,
    unit_stride,
)

# By the number of taps, each of which costs one load per output; a tile written by channel is stored along T.
LAUNCHES = LaunchTable(
    "short_convolution",
    {
        "any": {
            "few": Launch({"BT": 32, "BD": 128}, warps=4),
            "many": Launch({"BT": 64, "BD": 64}, warps=4),
            "by channel": Launch({"BT": 64, "BD": 64}, warps=4),
        }
    },
)
FEW = 8
"""Up to this number of taps the loop over them is unrolled."""


def short_convolution(
    x: torch.Tensor,
    taps: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    silu: bool = False,
    gate: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
    by_channel: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """y_t = act(Σ_{s<N} h_s ⊙ x_{t−s} + b) ⊙ g_t with one filter h per channel.

    Args:
        x: ``[B, T, D]``.
        taps: h, ``[N, D]``.
        bias: b, ``[D]``; None: 0.
        silu: act is SiLU; otherwise the identity.
        gate: g, ``[B, T, D]``; None: 1.
        state: the inputs before the first position, ``[B, P, D]`` with P ≤ N − 1; None: zeros.
        by_channel: let the kernel lay y out as `argap.kernels.launch.new_by_channel` does, for a long convolution.

    Returns:
        y ``[B, T, D]`` in the dtype of ``x``, rounded once, and the last inputs ``[B, ≤ N − 1, D]``: the state from
        which the sequence continues.

    Runs one kernel that sums in float32 on a GPU if no gradient is needed; otherwise the reference.
    """
    (B, T, D), N = x.shape, len(taps)
    inputs = x if state is None or T >= N - 1 else torch.cat([state.to(x.dtype), x], dim=1)
    last = inputs[:, max(0, inputs.shape[1] - N + 1) :]
    if not runs_kernels(x, taps, bias, gate, state) or x.dtype == torch.float64:
        return short_convolution_reference(x, taps, bias, silu=silu, gate=gate, state=state), last
    state = None if state is None or state.shape[1] == 0 else unit_stride(state)
    P = 0 if state is None else state.shape[1]
    x, taps, bias, gate = unit_stride(x), unit_stride(taps), unit_stride(bias), unit_stride(gate)
    y = new_by_channel(x) if by_channel else x.new_empty(B, T, D)
    launch = LAUNCHES.at(x.device, "by channel" if by_channel else "few" if N <= FEW else "many")
    tiles = triton.cdiv(D, launch.blocks["BD"]) * triton.cdiv(T, launch.blocks["BT"])
    _convolve_kernel[(tiles * B,)](
        *(*strided(x, gate, state, dims=2), *strided(y, dims=3), taps, bias, T, P, N, taps.stride(0)),
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
) -> torch.Tensor:
    """y of `short_convolution`, tap by tap, in float32 or wider; differentiable."""
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
    if gate is not None:
        y = y * gate.to(dtype)
    return y.to(x.dtype)


@jit
def _convolve_kernel(
    x,
    gate,
    state,
    y,
    taps,
    bias,
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
        b_y = b_y / (1 + tl.exp2(-1.4426950408889634 * b_y))  # log₂ e
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
