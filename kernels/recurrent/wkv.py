"""RWKV-4's WKV: an exponentially weighted average of the values, each sequence in parallel segments.

wkv_t is the mean of v_t with weight e^{u + k_t} and of earlier v_i with weights e^{k_i − (t−1−i) w} (arXiv 2305.13048,
section 3.1, WKV operator). Its two sums are kept relative to their largest exponent, as in that paper's appendix, so
that no exponential overflows; only the result is divided.

A recurrence over T positions per channel leaves most of a GPU idle. The kernels cut each sequence every `SEGMENT`
positions: the first computes the sums of each segment alone, the second starts each segment from the sums of those
before it. The cuts do not depend on T, so the beginning of a longer sequence has the same bits.

Legend: B batch, T positions, D width, N segments, BT positions per tile.
"""

from __future__ import annotations

import torch

from argap.kernels.launch import (
    Launch,
    LaunchTable,
    contiguous_float32,
    jit,
    runs_kernels,
    strided,
    tl,
    triton,
    unit_stride,
)
from argap.kernels.recurrent.recurrence import linear_scan

Sums = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""The sum of weighted values, the sum of weights, and the largest exponent, to which both are relative."""

SEGMENT = 128
# A thread has one channel, so BD is 32 per warp.
LAUNCHES = LaunchTable("wkv", {"any": {"any": Launch({"BD": 32, "BT": 16}, warps=1, stages=1)}})


def wkv(
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    bonus: torch.Tensor,
    *,
    receptance: torch.Tensor | None = None,
    state: Sums | None = None,
) -> tuple[torch.Tensor, Sums]:
    """Compute σ(r) ⊙ wkv(k, v; w, u).

    Args:
        k, v: ``[B, T, D]``.
        decay: w > 0, ``[D]``.
        bonus: u, ``[D]``.
        receptance: r, ``[B, T, D]``; None: no gate.
        state: the sums before the first position, each ``[B, D]``; None: empty sums.

    Returns:
        The output ``[B, T, D]`` in the dtype of ``v``, and the sums after the last position, each ``[B, D]`` in float32
        or wider.

    Runs two kernels in float32 on a GPU if no gradient is needed; otherwise the reference.
    """
    if not runs_kernels(k, v, decay, bonus, receptance, *(state or ())) or k.dtype == torch.float64:
        return wkv_reference(k, v, decay, bonus, receptance=receptance, state=state)
    B, T, D = v.shape
    N = triton.cdiv(T, SEGMENT)
    k, v, r = unit_stride(k), unit_stride(v), unit_stride(receptance)
    w, u = contiguous_float32(decay), contiguous_float32(bonus)
    y = v.new_empty(B, T, D)
    # Sums are stacked as values, weights and largest exponents: for each segment, before the first, after the last.
    segments = v.new_empty(3, B, N, D, dtype=torch.float32)
    h0 = None if state is None else torch.stack([part.float() for part in state])
    ht = v.new_empty(3, B, D, dtype=torch.float32)
    launch = LAUNCHES.at(v.device, "any")
    blocks = triton.cdiv(D, launch.blocks["BD"])
    sizes = {"D": D, "SEGMENT": SEGMENT, **launch.arguments()}
    if N > 1:
        _segment_kernel[(blocks * B, N - 1, 1)](*(*strided(k, v, dims=2), w, segments, N, segments.stride(0)), **sizes)
    _average_kernel[(blocks * B, N, 1)](
        *(*strided(k, v, r, dims=2), w, u, segments, h0, y, ht, T, segments.stride(0), ht.stride(0)), **sizes
    )
    return y, (ht[0], ht[1], ht[2])


def wkv_reference(
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    bonus: torch.Tensor,
    *,
    receptance: torch.Tensor | None = None,
    state: Sums | None = None,
) -> tuple[torch.Tensor, Sums]:
    """Compute `wkv` in PyTorch, in float32 or wider; differentiable."""
    out_dtype = v.dtype
    dtype = torch.promote_types(k.dtype, torch.float32)
    k, v, decay = k.to(dtype), v.to(dtype), decay.to(dtype)
    first = torch.full_like(k[:, :1], -torch.inf) if state is None else state[2].to(dtype)[:, None]
    # 1. The largest exponent among k_i − (t − i)·w is the running maximum of k_i + i·w, minus t·w. It only sets the
    #    scale of the sums: any other gives the same result and the same gradients, so none flow through it.
    ramp = torch.arange(1, k.shape[1] + 1, device=k.device, dtype=dtype)[:, None] * decay
    top = torch.maximum(torch.maximum((k + ramp).cummax(dim=1).values, first) - ramp, k).detach()
    before = torch.cat([first, top[:, :-1]], dim=1)
    # 2. Both sums by one scan, values and weights side by side.
    weight = torch.exp(k - top)
    added = torch.stack([weight * v, weight], dim=-1)
    initial = None if state is None else torch.stack([state[0], state[1]], dim=-1).to(dtype)
    sums = linear_scan(torch.exp(before - decay - top)[..., None], added, initial)
    start = torch.zeros_like(sums[:, :1]) if initial is None else initial[:, None]
    # 3. Each token averages the sums before it and its own value.
    past = torch.cat([start, sums[:, :-1]], dim=1)
    y = wkv_average(k, v, bonus, (past[..., 0], past[..., 1], before))
    if receptance is not None:
        y = torch.sigmoid(receptance.to(dtype)) * y
    return y.to(out_dtype), (sums[:, -1, :, 0], sums[:, -1, :, 1], top[:, -1])


def wkv_average(k: torch.Tensor, v: torch.Tensor, bonus: torch.Tensor, sums: Sums) -> torch.Tensor:
    """Compute wkv from the sums over the past, all relative to the larger of their exponent and the token's own."""
    values, weights, before = sums
    own = k + bonus.to(k.dtype)
    top = torch.maximum(before, own).detach()
    past, now = torch.exp(before - top), torch.exp(own - top)
    return (past * values + now * v) / (past * weights + now)


@jit
def _segment_kernel(
    k, v, w, segments, N, s_seg, D: tl.constexpr, SEGMENT: tl.constexpr, BD: tl.constexpr, BT: tl.constexpr
):
    # The sums of one whole segment alone, for BD channels of one sequence.
    ND: tl.constexpr = (D + BD - 1) // BD
    i_b = (tl.program_id(0) // ND).to(tl.int64)
    i_n = tl.program_id(1).to(tl.int64)
    zero = tl.num_programs(2) - 1  # keeps one channel per thread, as in `argap.kernels.scan.selective_scan`
    o_d = (tl.program_id(0) % ND) * BD + tl.arange(0, BD)
    m_d = o_d < D
    o_t = tl.arange(0, BT)
    o_row, o_col = (i_n * SEGMENT + o_t)[:, None], (o_d + zero)[None, :]
    p_k = k[0] + i_b * k[1] + o_row * k[2] + o_col
    p_v = v[0] + i_b * v[1] + o_row * v[2] + o_col
    b_w = tl.load(w + o_d + zero, mask=m_d, other=0.0)
    b_values = tl.zeros([BD], dtype=tl.float32)
    b_weights = tl.zeros([BD], dtype=tl.float32)
    b_top = tl.full([BD], float("-inf"), dtype=tl.float32)
    for _ in range(0, SEGMENT, BT):
        b_k = tl.load(p_k, mask=m_d[None, :], other=0.0).to(tl.float32)
        b_v = tl.load(p_v, mask=m_d[None, :], other=0.0).to(tl.float32)
        for i in tl.static_range(BT):
            m_i = (o_t == i)[:, None]
            b_ki = tl.sum(tl.where(m_i, b_k, -0.0), 0)  # x + −0 = x, so the compiler drops the sum
            b_vi = tl.sum(tl.where(m_i, b_v, -0.0), 0)
            b_values, b_weights, b_top = _merge(b_values, b_weights, b_top - b_w, b_vi, 1.0, b_ki)
        p_k += BT * k[2]
        p_v += BT * v[2]
    p_seg = segments + (i_b * N + i_n) * D + o_d + zero
    tl.store(p_seg, b_values, mask=m_d)
    tl.store(p_seg + s_seg, b_weights, mask=m_d)
    tl.store(p_seg + 2 * s_seg, b_top, mask=m_d)


@jit
def _average_kernel(
    k,
    v,
    r,
    w,
    u,
    segments,
    h0,
    y,
    ht,
    T,
    s_seg,
    s_h,
    D: tl.constexpr,
    SEGMENT: tl.constexpr,
    BD: tl.constexpr,
    BT: tl.constexpr,
):
    # One segment of BD channels of one sequence.
    ND: tl.constexpr = (D + BD - 1) // BD
    i_b = (tl.program_id(0) // ND).to(tl.int64)
    i_n = tl.program_id(1).to(tl.int64)
    N = tl.num_programs(1)
    zero = tl.num_programs(2) - 1
    o_d = (tl.program_id(0) % ND) * BD + tl.arange(0, BD)
    m_d = o_d < D
    o_t = tl.arange(0, BT)
    b_w = tl.load(w + o_d + zero, mask=m_d, other=0.0)
    b_u = tl.load(u + o_d + zero, mask=m_d, other=0.0)
    # 1. The initial state.
    b_values = tl.zeros([BD], dtype=tl.float32)
    b_weights = tl.zeros([BD], dtype=tl.float32)
    b_top = tl.full([BD], float("-inf"), dtype=tl.float32)
    o_h = i_b * D + o_d + zero
    if h0 is not None:
        b_values = tl.load(h0 + o_h, mask=m_d, other=0.0)
        b_weights = tl.load(h0 + s_h + o_h, mask=m_d, other=0.0)
        b_top = tl.load(h0 + 2 * s_h + o_h, mask=m_d, other=0.0)

    # 2. Merge the sums of the segments before this one.
    p_seg = segments + i_b * N * D + o_d + zero
    for _ in range(i_n):
        b_more_values = tl.load(p_seg, mask=m_d, other=0.0)
        b_more_weights = tl.load(p_seg + s_seg, mask=m_d, other=0.0)
        b_more_top = tl.load(p_seg + 2 * s_seg, mask=m_d, other=0.0)
        b_values, b_weights, b_top = _merge(
            b_values, b_weights, b_top - SEGMENT * b_w, b_more_values, b_more_weights, b_more_top
        )
        p_seg += D

    # 3. The segment, position by position: the average of the past and the token itself, then the new sums.
    start_n = i_n * SEGMENT
    left = tl.minimum(T - start_n, SEGMENT)
    o_row, o_col = (start_n + o_t)[:, None], (o_d + zero)[None, :]
    p_k = k[0] + i_b * k[1] + o_row * k[2] + o_col
    p_v = v[0] + i_b * v[1] + o_row * v[2] + o_col
    p_y = y + (i_b * T + o_row) * D + o_col
    if r is not None:
        p_r = r[0] + i_b * r[1] + o_row * r[2] + o_col
    for start in range(0, left, BT):
        m_td = (o_t < left - start)[:, None] & m_d[None, :]
        b_k = tl.load(p_k, mask=m_td, other=0.0).to(tl.float32)
        b_v = tl.load(p_v, mask=m_td, other=0.0).to(tl.float32)
        b_y = tl.zeros([BT, BD], dtype=tl.float32)
        for i in tl.static_range(BT):
            m_i = (o_t == i)[:, None]
            b_ki = tl.sum(tl.where(m_i, b_k, -0.0), 0)
            b_vi = tl.sum(tl.where(m_i, b_v, -0.0), 0)
            b_upper, b_lower, _b_top = _merge(b_values, b_weights, b_top, b_vi, 1.0, b_ki + b_u)
            b_y = tl.where(m_i, (b_upper / b_lower)[None, :], b_y)
            b_new_values, b_new_weights, b_new_top = _merge(b_values, b_weights, b_top - b_w, b_vi, 1.0, b_ki)
            inside = start + i < left  # past the end the sums stay unchanged
            b_values = tl.where(inside, b_new_values, b_values)
            b_weights = tl.where(inside, b_new_weights, b_weights)
            b_top = tl.where(inside, b_new_top, b_top)
        if r is not None:
            b_y /= 1 + tl.exp(-tl.load(p_r, mask=m_td, other=0.0).to(tl.float32))
            p_r += BT * r[2]
        tl.store(p_y, b_y.to(y.dtype.element_ty), mask=m_td)
        p_k += BT * k[2]
        p_v += BT * v[2]
        p_y += BT * D

    # 4. The last segment has the final state.
    if i_n == N - 1:
        tl.store(ht + o_h, b_values, mask=m_d)
        tl.store(ht + s_h + o_h, b_weights, mask=m_d)
        tl.store(ht + 2 * s_h + o_h, b_top, mask=m_d)


@jit
def _merge(b_values, b_weights, b_top, b_more_values, b_more_weights, b_more_top):
    # Merge two pairs of sums under the larger of their exponents: scale the other pair by e^{−|difference|}.
    b_difference = b_top - b_more_top
    b_factor = tl.exp(-tl.abs(b_difference))
    b_old = tl.where(b_difference > 0, 1.0, b_factor)
    b_new = tl.where(b_difference > 0, b_factor, 1.0)
    return (
        b_old * b_values + b_new * b_more_values,
        b_old * b_weights + b_new * b_more_weights,
        tl.maximum(b_top, b_more_top),
    )
