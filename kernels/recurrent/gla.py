"""Gated linear attention: linear attention in which every key channel has its own, input-dependent decay.

There are two kernels. The first handles all chunks at once: it applies the decays to q and k and computes the scores of
the pairs within a chunk. The second passes over the positions as in `argap.kernels.recurrent.linear_attention`, with
only matrix products left to do. Between them the decayed q and k and the scores go through memory, but no states.

The score of a pair, Σ_c q_ic k_jc exp(G_ic − G_jc) with G the running sum of the log decays, is a matrix product if no
channel's decay over the chunk, whose end is E, is below exp(−`RANGE`): that of q exp(G − E) and k exp(E − G), in
float32 and rounded once. Otherwise the decays are called strong, and the scores are computed one key at a time, without
a positive exponent. The choice depends only on the chunk's own decays.

Legend: B batch, H heads, T positions, BT positions per chunk, NT = ⌈T / BT⌉ chunks, K key size, V value size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from argap.kernels.launch import (
    HeadTensors,
    Launch,
    LaunchTable,
    block_size,
    jit,
    rows,
    runs_kernels,
    strided,
    tl,
    triton,
    unit_stride,
)
from argap.kernels.recurrent.recurrence import chunked_recurrence

RANGE = 60.0
"""The largest −log of a chunk's decay whose scores are a matrix product; exp(60) leaves the other factor e²⁸ of
float32's range."""

CHUNK = 64
_IN_FLOAT32 = {
    **dict.fromkeys(("16 float32", "32 float32", "64 float32"), Launch({"BV": 32}, warps=4, stages=2)),
    "128 float32": Launch({"BV": 32}, warps=4, stages=1),
}
LAUNCHES = LaunchTable(
    "gla",
    {
        "hopper": {
            **dict.fromkeys(("16", "32", "64", "128"), Launch({"BV": 64}, warps=4, stages=3)),
            **_IN_FLOAT32,
        },
        "any": {
            **dict.fromkeys(("16", "32", "64"), Launch({"BV": 64}, warps=4, stages=2)),
            "128": Launch({"BV": 32}, warps=4, stages=1),
            **_IN_FLOAT32,
        },
    },
)
_BLOCKS = {"16": 16, "32": 32, "64": 64, "128": 64}
DECAY_LAUNCHES = LaunchTable(
    "gla: decays applied to q and k",
    {
        "any": {
            f"{key}{dtype}": Launch({"BC": BC}, warps=4) for key, BC in _BLOCKS.items() for dtype in ("", " float32")
        }
    },
)
"""BC: channels of the key at a time."""
LARGEST_KEY = 128
"""The largest key of the kernels. Wider keys run in parts whose outputs are added up."""


def gla(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    *,
    scale: float = 1.0,
    temperature: float | None = None,
    state: torch.Tensor | None = None,
    keep_state: bool = True,
    chunk: int | None = 16,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute S_t = diag(a_t) S_{t−1} + k_tᵀ v_t and y_t = s q_t S_t (arXiv 2312.06635, eq. 3).

    Args:
        q, k: ``[B, H, T, K]``, any strides; a view of ``[B, T, H, K]`` costs no copy.
        v: ``[B, H, T, V]``, any strides.
        log_decay: log a ≤ 0, ``[B, H, T, K]``; with a ``temperature`` τ, the x in log a = log(sigmoid(x)) / τ.
        scale: s.
        temperature: τ; None: ``log_decay`` is log a.
        state: S before the first position, ``[B, H, K, V]``; None: 0.
        keep_state: return S after the last position.
        chunk: positions that the reference compares at once, with K decays per pair; None: all.

    Returns:
        y ``[B, H, T, V]`` in the dtype of ``v``, and S after the last position ``[B, H, K, V]`` in float32 or wider,
        or None.

    Runs kernels on a GPU if no gradient is needed: sums in float32, products of float16 and bfloat16 on the tensor
    cores. Otherwise runs the reference, in float32 or wider.
    """
    options = {"scale": scale, "temperature": temperature, "keep_state": keep_state, "chunk": chunk}
    if not runs_kernels(q, k, v, log_decay, state) or q.dtype == torch.float64:
        return gla_reference(q, k, v, log_decay, state=state, **options)
    if q.shape[-1] > LARGEST_KEY:
        parts = zip(*(x.split(LARGEST_KEY, dim=-1) for x in (q, k, log_decay)), strict=True)
        states = [None] * -(-q.shape[-1] // LARGEST_KEY) if state is None else state.split(LARGEST_KEY, dim=2)
        found = [gla(q, k, v, g, state=h, **options) for (q, k, g), h in zip(parts, states, strict=True)]
        y = torch.stack([y for y, _ in found]).sum(0)
        return y, torch.cat([h for _, h in found if h is not None], dim=2) if keep_state else None
    x = HeadTensors.of(q, k, v, state)
    B, H, T, K, V = x.shape
    log_decay = unit_stride(log_decay)
    ht = x.new_state(K, V) if keep_state else None
    NT = triton.cdiv(T, CHUNK)
    sizes = {"K": K, "BK": block_size(K), "BT": CHUNK}
    # What the first kernel passes to the second.
    qg, kg = (x.q.new_empty(B, H, T, K) for _ in range(2))
    scores = x.q.new_empty(B, H, NT, CHUNK, CHUNK)
    decays = x.q.new_empty(B, H, NT, K, dtype=torch.float32)
    _apply_decays_kernel[(NT * B * H,)](
        *(*strided(x.q, x.k, log_decay, dims=3), qg, kg, scores, decays, T, H),
        *(scale, 1.0 if temperature is None else 1 / temperature),
        **sizes,
        SIGMOID=temperature is not None,
        RANGE=RANGE,
        # Scores are rounded to 8 or 11 bits in the end, a tf32 product's operands to 11.
        PRECISION="tf32x3" if x.q.dtype == torch.float32 else "tf32",
        **DECAY_LAUNCHES.at(x.q.device, x.shape_class).arguments(),
    )
    launch = LAUNCHES.at(x.q.device, x.shape_class)
    _scan_kernel[(x.programs(launch),)](
        *(qg, kg, *strided(x.v, x.y, dims=3), scores, decays, x.h0, ht, T, H), **sizes, V=V, **launch.arguments()
    )
    return x.y, ht


def gla_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    *,
    scale: float = 1.0,
    temperature: float | None = None,
    state: torch.Tensor | None = None,
    keep_state: bool = True,
    chunk: int | None = 16,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute `gla` in PyTorch; differentiable."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    if scale != 1:
        q = q.to(dtype) * scale
    if temperature is not None:
        log_decay = F.logsigmoid(log_decay.to(dtype)) / temperature
    y, state = chunked_recurrence(q, k, v, chunk, log_decay, state)
    return y.to(v.dtype), state if keep_state else None


@jit
def _apply_decays_kernel(
    q,
    k,
    g,
    qg,
    kg,
    scores,
    decays,
    T,
    H,
    scale,
    g_scale,
    K: tl.constexpr,
    BK: tl.constexpr,
    BT: tl.constexpr,
    SIGMOID: tl.constexpr,
    RANGE: tl.constexpr,
    PRECISION: tl.constexpr,
    BC: tl.constexpr,
):
    # One chunk of one head.
    NT = tl.cdiv(T, BT)
    i_c = tl.program_id(0).to(tl.int64)  # among all chunks of all heads; offsets may exceed 2³¹
    i_bh, start = i_c // NT, (i_c % NT) * BT
    i_b, i_h = i_bh // H, i_bh % H
    o_t = tl.arange(0, BT)
    p_q = q[0] + i_b * q[1] + i_h * q[2] + start * q[3]
    p_k = k[0] + i_b * k[1] + i_h * k[2] + start * k[3]
    p_g = g[0] + i_b * g[1] + i_h * g[2] + start * g[3]
    p_s = scores + i_c * (BT * BT) + o_t[:, None] * BT
    dtype = qg.dtype.element_ty
    m_t, m_s = o_t < T - start, o_t[:, None] >= o_t[None, :]
    b_tril = tl.where(m_s, 1.0, 0.0)
    b_s = tl.zeros([BT, BT], dtype=tl.float32)
    b_least = tl.zeros([BC], dtype=tl.float32)

    # Unrolled: Triton 3.6 pipelined this loop's loads wrongly on Hopper, where all but the first block were wrong.
    for first in tl.static_range(0, K, BC):
        o_k = first + tl.arange(0, BC)
        m_k = o_k < K
        m_tk = m_t[:, None] & m_k[None, :]
        o_out = (i_bh * T + start + o_t)[:, None] * K + o_k[None, :]
        # 1. b_gc, the running sum G of the log decays, as a matrix product: exact but for float32's rounding. b_gn is
        #    its last row.
        b_g = _log_decays(p_g + o_t[:, None] * g[3] + o_k[None, :], m_tk, g_scale, SIGMOID)
        b_gc = tl.dot(b_tril, b_g, input_precision="tf32x3")
        b_gn = tl.min(b_gc, 0)
        b_least = tl.minimum(b_least, b_gn)
        tl.store(decays + i_c * K + o_k, tl.exp(b_gn), mask=m_k)
        # 2. Queries, decayed from the chunk's start, and keys, decayed to its end.
        b_q = tl.load(p_q + o_t[:, None] * q[3] + o_k[None, :], mask=m_tk, other=0.0).to(tl.float32) * scale
        b_k = tl.load(p_k + o_t[:, None] * k[3] + o_k[None, :], mask=m_tk, other=0.0).to(tl.float32)
        b_q *= tl.exp(b_gc)
        b_k *= tl.exp(b_gn[None, :] - b_gc)
        tl.store(qg + o_out, b_q.to(dtype), mask=m_tk)
        tl.store(kg + o_out, b_k.to(dtype), mask=m_tk)
        # 3. Scores, with the queries decayed back from the chunk's end.
        b_q *= tl.exp(tl.minimum(-b_gn, RANGE))[None, :]
        b_s = tl.dot(b_q, tl.trans(b_k), b_s, input_precision=PRECISION)
    if tl.min(b_least, 0) >= -RANGE:
        tl.store(p_s + o_t[None, :], tl.where(m_s, b_s, 0.0).to(dtype))
    else:
        # 4. With strong decays, one key at a time from the last: b_qd = q_i exp(G_i − G_j) takes one more decay with
        #    each.
        o_c = tl.arange(0, BK)
        m_c = o_c < K
        b_qs = tl.load(p_q + o_t[:, None] * q[3] + o_c[None, :], mask=m_t[:, None] & m_c[None, :], other=0.0)
        b_qs = b_qs.to(tl.float32) * scale
        b_qd = tl.zeros([BT, BK], dtype=tl.float32)
        last = tl.minimum(T - start, BT) - 1
        for back in range(last + 1):
            j = last - back
            b_kj = tl.load(p_k + j * k[3] + o_c, mask=m_c, other=0.0).to(tl.float32)
            b_qd = tl.where((o_t == j)[:, None], b_qs, b_qd)
            tl.store(p_s + j, tl.sum(b_qd * b_kj[None, :], 1)[:, None].to(dtype))
            b_qd *= tl.exp(_log_decays(p_g + j * g[3] + o_c, m_c, g_scale, SIGMOID))[None, :]


@jit
def _log_decays(p_g, mask, g_scale, SIGMOID: tl.constexpr):
    # Log decays; with SIGMOID, log(sigmoid(x)) · g_scale. Where masked, 0.
    b_g = tl.load(p_g, mask=mask, other=0.0).to(tl.float32)
    if SIGMOID:
        b_g = tl.where(mask, (tl.minimum(b_g, 0.0) - tl.log(1 + tl.exp(-tl.abs(b_g)))) * g_scale, 0.0)
    return b_g


@jit
def _scan_kernel(
    qg,
    kg,
    v,
    y,
    scores,
    decays,
    h0,
    ht,
    T,
    H,
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
    p_v = rows(v, i_b, i_h, o_t64, o_v)
    p_y = rows(y, i_b, i_h, o_t64, o_v)
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
        p_s = scores + i_c * (BT * BT) + o_t[:, None] * BT + o_t[None, :]
        b_s = tl.load(p_s, mask=m_t[None, :], other=0.0)
        b_d = tl.load(decays + i_c * K + o_k, mask=m_k, other=0.0)
        # 2. The output: the pairs within the chunk, then earlier chunks through the state.
        b_y = tl.dot(b_s, b_v, input_precision="tf32x3")
        b_y = tl.dot(b_q, b_h.to(dtype), b_y, input_precision="tf32x3")
        tl.store(p_y, b_y.to(y[0].dtype.element_ty), mask=m_tv)
        # 3. The state after the chunk.
        b_h = tl.dot(tl.trans(b_k), b_v, b_h * b_d[:, None], input_precision="tf32x3")
        p_q += BT * K
        p_k += BT * K
        p_v += BT * v[3]
        p_y += BT * y[3]
        i_c += 1

    # 4. The final state.
    if ht is not None:
        tl.store(ht + o_h, b_h, mask=m_h)
