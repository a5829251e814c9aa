"""The generalized delta rule in bfloat16, with each chunk as an affine map of the state.

In a chunk after the state S the read values are W S + U with W = M ȧ, U = M (A_ak V) and M = (I − A_ab)⁻¹
(`argap.kernels.recurrent.generalized_delta_rule` defines the letters). The rest is affine in S, too:

    y = Q̃ S + Y₀                    Q̃ = q̇ + A_qb W         Y₀ = A_qb U + A_qk V
    S' = diag(e^E) S + C S + H₀      C = (b e^(E − G))ᵀ W    H₀ = (b e^(E − G))ᵀ U + (k e^(E − G))ᵀ V

with G the running sum of the chunk's log decays and E its end. One kernel computes M and a second Q̃, Y₀, C and H₀, both
for all chunks at once; a third walks over the chunks with one product between two states. Both factors of a pair are
decayed to half of the chunk's decay, which serves C as well: with x̂ = x e^(G − E/2) and x̌ = x e^(E/2 − G), q̇ is
q̂ e^(E/2) and b e^(E − G) is b̌ e^(E/2), where e^(E/2) multiplies rows or columns of the results.

Legend: B batch, H heads, T positions, BT positions per chunk, NT = ⌈T / BT⌉ chunks, K key size, V value size.
"""

# Inside kernels types are Triton's, which come without stubs.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import torch

from argap.kernels.launch import (
    HeadTensors,
    Launch,
    LaunchTable,
    block_size,
    jit,
    strided,
    tl,
    triton,
    unit_stride,
)
from argap.kernels.recurrent.decayed_pairs import CHUNK, RANGE
from argap.kernels.recurrent.delta_rule_inverse import _invert_block

INVERSE_LAUNCHES = LaunchTable(
    "generalized_delta_rule: inverse", {"any": {}, "hopper": {"any": Launch({}, warps=4, stages=1)}}
)
LAUNCHES = LaunchTable(
    "generalized_delta_rule: transitions",
    {"any": {}, "hopper": {str(key): Launch({"BV": key}, warps=4, stages=1) for key in (64, 128)}},
)
"""Other devices have none: the products take too many registers where they have no instructions of a warp group."""
CHAIN_LAUNCHES = LaunchTable(
    "generalized_delta_rule: chain",
    {
        "any": {},
        "hopper": {"64": Launch({"BV": 32}, warps=4, stages=3), "128": Launch({"BV": 32}, warps=4, stages=2)},
    },
)


def has_transitions(q: torch.Tensor, least_log_decay: float) -> bool:
    """Return whether `chain_transitions` runs for ``q [B, H, T, K]``.

    Before their decay to the end of the chunk, C's terms have factors up to exp(−``least_log_decay`` · BT), which must
    leave room in float32; float16 has no room for b̌. Smaller keys were not measured.
    """
    fits = q.dtype == torch.bfloat16 and -least_log_decay * CHUNK <= RANGE
    return fits and str(block_size(q.shape[-1])) in LAUNCHES.rows(q.device)


def chain_transitions(x: HeadTensors, a: torch.Tensor, b: torch.Tensor, log_decay: torch.Tensor) -> torch.Tensor:
    """Compute the generalized delta rule into ``x.y``; returns the state after the last position.

    ``a`` and ``b`` are like ``x.q``, with one head of the key for each of the value, and ``log_decay`` is
    ``[B, H, T, K]``. M, Q̃, C and H₀ are rounded to bfloat16, Y₀ to the dtype of ``x.y``; S stays in float32.
    """
    B, H, T, K, V = x.shape
    NT, BK = triton.cdiv(T, CHUNK), block_size(K)
    sizes: dict[str, int] = {"K": K, "BT": CHUNK, "BK": BK}
    inverse = a.new_empty(B, H, NT, CHUNK, CHUNK)
    reads, kept, added = (a.new_empty(B, H, *size) for size in ((T, K), (NT, BK, BK), (NT, BK, V)))
    decays = a.new_empty(B, H, NT, BK, dtype=torch.float32)
    q, k, v, y, a_, b_, g = strided(x.q, x.k, x.v, x.y, a, b, unit_stride(log_decay), dims=3)
    launch = INVERSE_LAUNCHES.at(a.device, "any")
    _inverse_kernel[(NT * B * H,)](a_, b_, g, inverse, T, H, **sizes, **launch.arguments())
    launch = LAUNCHES.at(a.device, str(BK))
    _transitions_kernel[(NT * B * H,)](
        *(q, k, v, a_, b_, g, y, inverse, reads, kept, added, decays, T, H), **sizes, V=V, **launch.arguments()
    )
    ht, launch = x.new_state(K, V), CHAIN_LAUNCHES.at(a.device, str(BK))
    _chain_kernel[(x.programs(launch),)](
        *(y, reads, kept, added, decays, x.h0, ht, T, H), **sizes, V=V, **launch.arguments()
    )
    return ht


@jit
def _inverse_kernel(a, b, g, m, T, H, K: tl.constexpr, BT: tl.constexpr, BK: tl.constexpr):
    # M of one chunk of one head.
    i_c = tl.program_id(0).to(tl.int64)  # among all chunks of all heads; offsets may exceed 2³¹
    o_t, o_k = tl.arange(0, BT)[:, None], tl.arange(0, BK)
    b_at, b_bt, _, _, _ = _decayed(a, b, g, i_c, o_t, o_k, T, H, K, BT)
    b_m = _invert_block(-tl.dot(b_at, tl.trans(b_bt)), BT, "bf16")
    tl.store(m + i_c * (BT * BT) + o_t * BT + tl.arange(0, BT)[None, :], b_m.to(m.dtype.element_ty))


@jit
def _transitions_kernel(
    q,
    k,
    v,
    a,
    b,
    g,
    y,
    m,
    reads,
    kept,
    added,
    decays,
    T,
    H,
    K: tl.constexpr,
    V: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    # Q̃ (reads), Y₀ (y), C (kept) and H₀ (added) of one chunk of one head, and its decay.
    NT = tl.cdiv(T, BT)
    i_c = tl.program_id(0).to(tl.int64)
    i_bh, start = i_c // NT, (i_c % NT) * BT
    i_b, i_h = i_bh // H, i_bh % H
    o_i, o_j, o_k = tl.arange(0, BT)[:, None], tl.arange(0, BT)[None, :], tl.arange(0, BK)
    m_t = o_i < T - start
    m_tk = m_t & (o_k < K)[None, :]
    dtype = kept.dtype.element_ty
    # 1. Pairs.
    b_at, b_bt, b_gc, b_from, b_end = _decayed(a, b, g, i_c, o_i, o_k, T, H, K, BT)
    b_m = tl.load(m + i_c * (BT * BT) + o_i * BT + o_j)
    b_q = _rows(q, i_b, i_h, start, o_i, o_k[None, :], m_tk).to(tl.float32) * tl.exp(b_gc)
    b_qt = b_q.to(dtype)
    b_kt = (_rows(k, i_b, i_h, start, o_i, o_k[None, :], m_tk).to(tl.float32) * b_from).to(dtype)
    b_ak = tl.where(o_i > o_j, tl.dot(b_at, tl.trans(b_kt)), 0.0).to(dtype)
    b_qk = tl.where(o_i >= o_j, tl.dot(b_qt, tl.trans(b_kt)), 0.0).to(dtype)
    b_qb = tl.where(o_i >= o_j, tl.dot(b_qt, tl.trans(b_bt)), 0.0).to(dtype)
    # 2. What S is multiplied by.
    b_w = tl.dot(b_m, b_at).to(dtype)
    b_q = tl.dot(b_qb, b_w, b_q) * b_end[None, :]
    tl.store(reads + (i_bh * T + start + o_i) * K + o_k[None, :], b_q.to(dtype), mask=m_tk)
    b_c = tl.dot(tl.trans(b_bt), b_w) * b_end[:, None] * b_end[None, :]
    tl.store(kept + i_c * (BK * BK) + o_k[:, None] * BK + o_k[None, :], b_c.to(dtype))
    tl.store(decays + i_c * BK + o_k, b_end * b_end)
    # 3. What is added.
    for first in tl.static_range(0, V, BV):
        o_v = first + tl.arange(0, BV)[None, :]
        m_tv = m_t & (o_v < V)
        b_v = _rows(v, i_b, i_h, start, o_i, o_v, m_tv)
        b_u = tl.dot(b_m, tl.dot(b_ak, b_v).to(dtype)).to(dtype)
        b_y = tl.dot(b_qb, b_u, tl.dot(b_qk, b_v))
        p_y = y[0] + i_b * y[1] + i_h * y[2] + (start + o_i) * y[3] + o_v
        tl.store(p_y, b_y.to(y[0].dtype.element_ty), mask=m_tv)
        b_h = tl.dot(tl.trans(b_bt), b_u, tl.dot(tl.trans(b_kt), b_v)) * b_end[:, None]
        tl.store(added + (i_c * BK + o_k[:, None]) * V + o_v, b_h.to(dtype), mask=o_v < V)


@jit
def _decayed(a, b, g, i_c, o_t, o_k, T, H, K: tl.constexpr, BT: tl.constexpr):
    # â and b̌, G − E/2, e^(E/2 − G) and e^(E/2).
    NT = tl.cdiv(T, BT)
    i_bh, start = i_c // NT, (i_c % NT) * BT
    i_b, i_h, o_k = i_bh // H, i_bh % H, o_k[None, :]
    m_tk = (o_t < T - start) & (o_k < K)
    b_g = _rows(g, i_b, i_h, start, o_t, o_k, m_tk).to(tl.float32)
    # Products with a triangle of ones; two halves in bfloat16 have 16 bits of g.
    b_tril = tl.where(o_t >= tl.arange(0, BT)[None, :], 1.0, 0.0).to(tl.bfloat16)
    b_high = b_g.to(tl.bfloat16)
    b_gc = tl.dot(b_tril, b_high)
    if g[0].dtype.element_ty == tl.float32:
        b_gc = tl.dot(b_tril, (b_g - b_high.to(tl.float32)).to(tl.bfloat16), b_gc)
    b_half = tl.min(b_gc, 0) / 2
    b_gc -= b_half[None, :]
    b_from = tl.exp(-b_gc)
    b_a = _rows(a, i_b, i_h, start, o_t, o_k, m_tk).to(tl.float32) * tl.exp(b_gc - b_g)  # a reads the state before it
    b_b = _rows(b, i_b, i_h, start, o_t, o_k, m_tk).to(tl.float32) * b_from
    return b_a.to(a[0].dtype.element_ty), b_b.to(b[0].dtype.element_ty), b_gc, b_from, tl.exp(b_half)


@jit
def _rows(x, i_b, i_h, start, o_t, o_c, mask):
    # Positions `o_t [BT, 1]` after `start` and channels `o_c [1, BC]` of a head.
    p_x = x[0] + i_b * x[1] + i_h * x[2] + start * x[3]
    return tl.load(p_x + o_t * x[3] + o_c, mask=mask, other=0.0)


@jit
def _chain_kernel(
    y,
    reads,
    kept,
    added,
    decays,
    h0,
    ht,
    T,
    H,
    K: tl.constexpr,
    V: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    # One head of one sequence and BV columns of V.
    NV: tl.constexpr = (V + BV - 1) // BV
    NT = tl.cdiv(T, BT)
    i_bh = (tl.program_id(0) // NV).to(tl.int64)
    i_b, i_h = i_bh // H, i_bh % H
    o_t, o_k = tl.arange(0, BT), tl.arange(0, BK)
    o_v = (tl.program_id(0) % NV) * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, (o_v < V)[None, :]
    p_y = y[0] + i_b * y[1] + i_h * y[2] + o_t[:, None] * y[3] + o_v[None, :]
    p_q = reads + i_bh * T * K + o_t[:, None] * K + o_k[None, :]
    p_c = kept + i_bh * NT * (BK * BK) + o_k[:, None] * BK + o_k[None, :]
    p_a = added + i_bh * NT * (BK * V) + o_k[:, None] * V + o_v[None, :]
    p_d = decays + i_bh * NT * BK + o_k
    o_h = i_bh * (K * V) + o_k[:, None] * V + o_v[None, :]
    m_h = m_k[:, None] & m_v
    b_h = tl.zeros([BK, BV], dtype=tl.float32)
    if h0 is not None:
        b_h = tl.load(h0 + o_h, mask=m_h, other=0.0)
    for start in range(0, T, BT):
        m_t = (o_t < T - start)[:, None]
        b_q = tl.load(p_q, mask=m_t & m_k[None, :], other=0.0)
        b_c = tl.load(p_c)
        b_add = tl.load(p_a, mask=m_v, other=0.0).to(tl.float32)
        b_hc = b_h.to(kept.dtype.element_ty)
        b_y = tl.load(p_y, mask=m_t & m_v, other=0.0).to(tl.float32)
        b_y = tl.dot(b_q, b_hc, b_y)
        b_h = tl.dot(b_c, b_hc, b_h * tl.load(p_d)[:, None] + b_add)
        tl.store(p_y, b_y.to(y[0].dtype.element_ty), mask=m_t & m_v)
        p_y += BT * y[3]
        p_q += BT * K
        p_c += BK * BK
        p_a += BK * V
        p_d += BK
    tl.store(ht + o_h, b_h, mask=m_h)
