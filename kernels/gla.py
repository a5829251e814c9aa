"""Gated linear attention: linear attention in which every key channel has its own, input-dependent decay.

Two kernels. The first handles all chunks at once and applies the decays to q and k. The second passes over the
positions as in `argap.kernels.linear_attention`, with only matrix products left to do. Between them only the decayed
q and k go through memory, no states.

Within a chunk the score of a pair, Σ_c q_ic k_jc exp(G_ic − G_jc) with G the running sum of the log decays, is a
matrix product if no channel's decay over the chunk, whose end is E, is below exp(−`RANGE`): that of q exp(G − E) and
k exp(E − G), both within a factor of exp(`RANGE`). Otherwise the decays are called strong, and the first kernel
computes the scores one key at a time, without a positive exponent. A chunk's own decays alone decide which.

Legend: B batch, H heads, T positions, BT positions per chunk, NT = ⌈T / BT⌉ chunks, K key size, V value size.
"""

from __future__ import annotations

import torch

from argap.kernels.launch import (
    HeadTensors,
    Launch,
    LaunchTable,
    block_size,
    jit,
    runs_kernels,
    strides,
    tl,
    triton,
    unit_stride,
)
from argap.kernels.recurrence import chunked_recurrence

RANGE = {torch.float16: 8.0, torch.bfloat16: 60.0, torch.float32: 60.0}
"""The largest −log of a chunk's decay for which its scores are a matrix product. exp(60) leaves the other factor e²⁸ of
float32's and bfloat16's range, exp(8) leaves it e³ of float16's."""

CHUNK = 64
# Two warp groups (8 warps) split the columns of V; with 16 columns each has 8, for which Triton 3.6 reads beyond shared
# memory on Hopper (float32 products, the last of `_scan_kernel`).
_IN_FLOAT32 = {
    **dict.fromkeys(("16 float32", "32 float32", "64 float32"), Launch({"BV": 32}, warps=4, stages=2)),
    "128 float32": Launch({"BV": 32}, warps=4, stages=1),
    "256 float32": Launch({"BV": 32}, warps=8, stages=1),
}
LAUNCHES = LaunchTable(
    "gla",
    {
        "hopper": {
            **dict.fromkeys(("16", "32", "64", "128"), Launch({"BV": 64}, warps=4, stages=3)),
            "256": Launch({"BV": 32}, warps=4, stages=2),
            **_IN_FLOAT32,
        },
        "any": {
            **dict.fromkeys(("16", "32", "64"), Launch({"BV": 64}, warps=4, stages=2)),
            "128": Launch({"BV": 32}, warps=4, stages=1),
            "256": Launch({"BV": 16}, warps=8, stages=1),
            **_IN_FLOAT32,
        },
    },
)
DECAY_LAUNCHES = LaunchTable(
    "gla: decays applied to q and k",
    {
        "any": {
            **dict.fromkeys(("16", "32", "64", "128"), Launch({}, warps=4)),
            "256": Launch({}, warps=8),
            **dict.fromkeys(("16 float32", "32 float32", "64 float32"), Launch({}, warps=4)),
            **dict.fromkeys(("128 float32", "256 float32"), Launch({}, warps=8)),
        },
    },
)
LARGEST_KEY = 256


def gla(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    *,
    state: torch.Tensor | None = None,
    keep_state: bool = True,
    chunk: int | None = 16,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """S_t = diag(a_t) S_{t−1} + k_tᵀ v_t, y_t = q_t S_t (arXiv 2312.06635, eq. 3).

    Args:
        q, k: ``[B, H, T, K]``, any strides; a view of ``[B, T, H, K]`` costs no copy.
        v: ``[B, H, T, V]``, any strides.
        log_decay: log a ≤ 0, ``[B, H, T, K]``.
        state: S before the first position, ``[B, H, K, V]``; None: 0.
        keep_state: return S after the last position.
        chunk: positions that the reference compares at once, with K decays per pair; None: all.

    Returns:
        y ``[B, H, T, V]`` in the dtype of ``v``, and S after the last position ``[B, H, K, V]`` in float32 or wider,
        or None.

    Runs kernels on a GPU if no gradient is needed and K ≤ 256: sums in float32, products of float16 and bfloat16 on
    the tensor cores. Otherwise runs the reference, in float32 or wider.
    """
    if runs_kernels(q, k, v, log_decay, state) and q.shape[-1] <= LARGEST_KEY and q.dtype != torch.float64:
        return _forward(q, k, v, log_decay, state, keep_state)
    return gla_reference(q, k, v, log_decay, state=state, keep_state=keep_state, chunk=chunk)


def gla_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    *,
    state: torch.Tensor | None = None,
    keep_state: bool = True,
    chunk: int | None = 16,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`gla` in PyTorch, differentiable."""
    y, state = chunked_recurrence(q, k, v, chunk, log_decay, state)
    return y.to(v.dtype), state if keep_state else None


def _forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    state: torch.Tensor | None,
    keep_state: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`gla` by its kernels."""
    x = HeadTensors.of(q, k, v, state)
    B, H, T, K, V = x.shape
    log_decay = unit_stride(log_decay)
    ht = x.new_state(K, V) if keep_state else None
    NT = triton.cdiv(T, CHUNK)
    sizes = {"K": K, "BK": block_size(K), "BT": CHUNK}
    # What the first kernel leaves for the second; of the scores only those of chunks with strong decays.
    qg, kg = (x.q.new_empty(B, H, T, K) for _ in range(2))
    scores = x.q.new_empty(B, H, NT, CHUNK, CHUNK)
    state_decays = x.q.new_empty(B, H, NT, 2, K, dtype=torch.float32)
    strong = x.q.new_empty(B, H, NT, dtype=torch.int32)
    _apply_decays_kernel[(NT * B * H,)](
        *(x.q, x.k, log_decay, qg, kg, scores, state_decays, strong, T, H),
        *strides(x.q, x.k, log_decay, dims=3),
        **sizes,
        RANGE=RANGE[x.q.dtype],
        **DECAY_LAUNCHES.at(x.q.device, x.shape_class).arguments(),
    )
    launch = LAUNCHES.at(x.q.device, x.shape_class)
    _scan_kernel[(x.programs(launch),)](
        *(qg, kg, x.v, scores, state_decays, strong, x.y, x.h0, ht, T, H),
        *strides(x.v, x.y, dims=3),
        **sizes,
        V=V,
        **launch.arguments(),
    )
    return x.y, ht


@jit
def _apply_decays_kernel(
    q,
    k,
    g,
    qg,
    kg,
    scores,
    state_decays,
    strong,
    T,
    H,
    s_qb,
    s_qh,
    s_qt,
    s_kb,
    s_kh,
    s_kt,
    s_gb,
    s_gh,
    s_gt,
    K: tl.constexpr,
    BK: tl.constexpr,
    RANGE: tl.constexpr,
    BT: tl.constexpr,
):
    # One chunk of one head.
    NT = tl.cdiv(T, BT)
    i_c = tl.program_id(0).to(tl.int64)  # among all chunks of all heads; offsets may exceed 2³¹
    i_bh, start = i_c // NT, (i_c % NT) * BT
    i_b, i_h = i_bh // H, i_bh % H
    o_t, o_k = tl.arange(0, BT), tl.arange(0, BK)
    m_k = o_k < K
    m_tk = (o_t < T - start)[:, None] & m_k[None, :]
    p_q = q + i_b * s_qb + i_h * s_qh + (start + o_t)[:, None] * s_qt + o_k[None, :]
    p_k = k + i_b * s_kb + i_h * s_kh + (start + o_t)[:, None] * s_kt + o_k[None, :]
    p_g = g + i_b * s_gb + i_h * s_gh + (start + o_t)[:, None] * s_gt + o_k[None, :]
    o_out = (i_bh * T + start + o_t)[:, None] * K + o_k[None, :]
    dtype = qg.dtype.element_ty

    # 1. b_gc, the running sum G of the log decays, as a matrix product: exact but for float32's rounding. b_gn is its
    #    last row.
    b_g = tl.load(p_g, mask=m_tk, other=0.0)
    b_tril = tl.where(o_t[:, None] >= o_t[None, :], 1.0, 0.0).to(b_g.dtype)
    b_gc = tl.dot(b_tril, b_g, input_precision="tf32x3")
    b_gn = tl.min(b_gc, 0)
    b_q = tl.load(p_q, mask=m_tk, other=0.0).to(tl.float32)
    b_k = tl.load(p_k, mask=m_tk, other=0.0).to(tl.float32)
    # 2. Keys, decayed from their position to the chunk's end.
    tl.store(kg + o_out, (b_k * tl.exp(b_gn[None, :] - b_gc)).to(dtype), mask=m_tk)
    # 3. Queries: with strong decays from the chunk's start, otherwise back from its end; the state then takes the
    #    chunk's whole decay before they read it.
    is_strong = tl.min(b_gn, 0) < -RANGE
    b_shift = tl.where(is_strong, 0.0, b_gn)
    tl.store(qg + o_out, (b_q * tl.exp(b_gc - b_shift[None, :])).to(dtype), mask=m_tk)
    tl.store(state_decays + i_c * (2 * K) + o_k, tl.exp(b_shift), mask=m_k)
    tl.store(state_decays + i_c * (2 * K) + K + o_k, tl.exp(b_gn - b_shift), mask=m_k)
    tl.store(strong + i_c, is_strong.to(tl.int32))
    # 4. With strong decays the scores, one key at a time from the last: b_qd = q_i exp(G_i − G_j) takes one more decay
    #    with each.
    if is_strong:
        b_qd = tl.zeros([BT, BK], dtype=tl.float32)
        last = tl.minimum(T - start, BT) - 1
        for back in range(last + 1):
            j = last - back
            b_kj = tl.load(k + i_b * s_kb + i_h * s_kh + (start + j) * s_kt + o_k, mask=m_k, other=0.0)
            b_gj = tl.load(g + i_b * s_gb + i_h * s_gh + (start + j) * s_gt + o_k, mask=m_k, other=0.0)
            b_qd = tl.where((o_t == j)[:, None], b_q, b_qd)
            b_s = tl.sum(b_qd * b_kj.to(tl.float32)[None, :], 1)
            tl.store(scores + i_c * (BT * BT) + o_t * BT + j, b_s.to(dtype))
            b_qd *= tl.exp(b_gj.to(tl.float32))[None, :]


@jit
def _scan_kernel(
    qg,
    kg,
    v,
    scores,
    state_decays,
    strong,
    y,
    h0,
    ht,
    T,
    H,
    s_vb,
    s_vh,
    s_vt,
    s_yb,
    s_yh,
    s_yt,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BT: tl.constexpr,
    BV: tl.constexpr,
):
    # One head of one sequence and BV columns of V. Programs of a head are neighbours in the grid and share all but v.
    NV: tl.constexpr = (V + BV - 1) // BV
    i_bh = (tl.program_id(0) // NV).to(tl.int64)
    i_b, i_h = i_bh // H, i_bh % H
    o_t, o_k = tl.arange(0, BT), tl.arange(0, BK)
    o_v = (tl.program_id(0) % NV) * BV + tl.arange(0, BV)
    o_t64 = o_t.to(tl.int64)[:, None]
    m_k, m_v = o_k < K, o_v < V
    o_in = (i_bh * T + o_t64) * K + o_k[None, :]
    p_q, p_k = qg + o_in, kg + o_in
    p_v = v + i_b * s_vb + i_h * s_vh + o_t64 * s_vt + o_v[None, :]
    p_y = y + i_b * s_yb + i_h * s_yh + o_t64 * s_yt + o_v[None, :]
    i_c = i_bh * tl.cdiv(T, BT)
    dtype = qg.dtype.element_ty

    # 1. The initial state.
    o_h = i_bh * (K * V) + o_k[:, None] * V + o_v[None, :]
    m_h = m_k[:, None] & m_v[None, :]
    b_h = tl.zeros([BK, BV], dtype=tl.float32)
    if h0 is not None:
        b_h = tl.load(h0 + o_h, mask=m_h, other=0.0)

    for start in range(0, T, BT):
        m_t = o_t < T - start
        m_tk, m_tv = m_t[:, None] & m_k[None, :], m_t[:, None] & m_v[None, :]
        b_q = tl.load(p_q, mask=m_tk, other=0.0)
        b_k = tl.load(p_k, mask=m_tk, other=0.0)
        b_v = tl.load(p_v, mask=m_tv, other=0.0)
        d_before = tl.load(state_decays + i_c * (2 * K) + o_k, mask=m_k, other=0.0)
        d_after = tl.load(state_decays + i_c * (2 * K) + K + o_k, mask=m_k, other=0.0)
        # 2. The output: the pairs within the chunk, then earlier chunks through the state.
        if tl.load(strong + i_c) == 0:
            b_s = tl.dot(b_q, tl.trans(b_k), input_precision="tf32x3").to(dtype)
        else:
            p_s = scores + i_c * (BT * BT) + o_t[:, None] * BT + o_t[None, :]
            b_s = tl.load(p_s, mask=m_t[None, :], other=0.0)
        b_s = tl.where(o_t[:, None] >= o_t[None, :], b_s, 0.0)
        b_y = tl.dot(b_s, b_v, input_precision="tf32x3")
        b_h *= d_before[:, None]
        b_y = tl.dot(b_q, b_h.to(dtype), b_y, input_precision="tf32x3")
        tl.store(p_y, b_y.to(y.dtype.element_ty), mask=m_tv)
        # 3. The state after the chunk.
        b_h = tl.dot(tl.trans(b_k), b_v, b_h * d_after[:, None], input_precision="tf32x3")
        p_q += BT * K
        p_k += BT * K
        p_v += BT * s_vt
        p_y += BT * s_yt
        i_c += 1

    # 4. The final state.
    if ht is not None:
        tl.store(ht + o_h, b_h, mask=m_h)
