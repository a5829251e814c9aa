"""The pairs of positions within a chunk of the delta rule if every channel of the key has a decay of its own.

With G the running sum of a chunk's log decays and E its end, one kernel computes for all chunks at once: queries and
keys decayed from the chunk's start, q e^G and k e^G; keys decayed to its end, k e^(E − G); and the sums
Σ_c x_tc k_sc exp(G_tc − G_sc) over pairs s ≤ t, for x = q (the scores) and for x = k (what
`argap.kernels.recurrent.delta_rule_inverse` inverts).

A sum is a matrix product of x e^(G − E/2) and k e^(E/2 − G) if no channel's decay over the chunk is below
exp(−2 `RANGE`). Otherwise the decays are called strong, and a second kernel cuts the chunk into blocks of 16: for s in
an earlier block than t, both factors are decayed to the start of t's block, and no exponent is positive; within a block
they are decayed to half of its decay, or, if that is too strong as well, the sums are taken one key at a time. The
choice depends only on the chunk's own decays.

Legend: B batch, H heads, T positions, BT positions per chunk, NT = ⌈T / BT⌉ chunks, K key size, V value size.
"""

# Inside kernels types are Triton's, which come without stubs.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from argap.kernels.launch import Launch, LaunchTable, block_size, jit, key_class, strided, tl, triton, unit_stride

CHUNK = 64
"""BT."""
RANGE = 40.0
"""The largest exponent of a factor: the product of two, exp(80), stays in float32 and bfloat16."""

_BLOCKS = {"16": (16, 2), "32": (32, 2), "64": (64, 4), "128": (64, 4)}
LAUNCHES = LaunchTable(
    "delta_rule: pairs with a decay for each channel",
    {
        "any": {
            f"{key}{dtype}": Launch({"BC": BC}, warps, stages=1)
            for key, (BC, warps) in _BLOCKS.items()
            for dtype in ("", " float32")
        }
    },
)
"""BC: channels of the key at a time. Products of 16 or 32 columns by four warps, which for Hopper become products
of a warp group, end with Triton 3.6 in wrong numbers or reads outside shared memory (triton-lang/triton#10486)."""
STRONG_LAUNCHES = LaunchTable(
    "delta_rule: pairs with strong decays", {"any": {"any": Launch({"BC": 32}, warps=4, stages=1)}}
)


@dataclass(frozen=True)
class DecayedPairs:
    """What the delta rule's other kernels read in place of q, k and their decays."""

    q: torch.Tensor
    """q e^G times the scale, ``[B, H, T, K]``."""
    k: torch.Tensor
    """k e^G, ``[B, H, T, K]``."""
    left: torch.Tensor
    """k e^(E − G), ``[B, H, T, K]``."""
    scores: torch.Tensor
    """The sums for x = q transposed, ``[B, H, NT, BT, BT]``: row s, column t; 0 for s > t."""
    lower: torch.Tensor
    """The sums for x = k, float32 ``[B, H, NT, BT, BT]``: row t, column s; anything for s > t."""
    decays: torch.Tensor
    """e^E, float32 ``[B, H, NT, K]``."""


def decayed_pairs(
    q: torch.Tensor, k: torch.Tensor, log_decay: torch.Tensor, norms: torch.Tensor | None, scale: float
) -> DecayedPairs:
    """Compute the pairs of ``q`` and ``k`` with ``log_decay``, all ``[B, H, T, K]``.

    ``q`` and ``k`` have one dtype and unit stride along K. ``norms``: one over their norms, from
    `argap.kernels.recurrent.delta_rule_inverse.inverse_norms`, or None: 1.
    """
    B, H, T, K = q.shape
    NT = triton.cdiv(T, CHUNK)
    found = DecayedPairs(
        *(q.new_empty(B, H, T, K) for _ in range(3)),
        scores=q.new_empty(B, H, NT, CHUNK, CHUNK),
        lower=q.new_empty(B, H, NT, CHUNK, CHUNK, dtype=torch.float32),
        decays=q.new_empty(B, H, NT, K, dtype=torch.float32),
    )
    inputs = (*strided(q, k, unit_stride(log_decay), dims=3), norms)
    sums = (found.scores, found.lower, found.decays, T, H, float(scale))
    sizes = {"K": K, "BT": CHUNK, "RANGE": RANGE, "WEAKEST": math.exp(-2 * RANGE)}
    launch = LAUNCHES.at(q.device, key_class(K, q.dtype)).arguments()
    _pairs_kernel[(NT * B * H,)](*inputs, found.q, found.k, found.left, *sums, **sizes, **launch)
    launch = STRONG_LAUNCHES.at(q.device, "any").arguments()
    _strong_pairs_kernel[(NT * B * H,)](*inputs, *sums, **sizes, BK=block_size(K), **launch)
    return found


@jit
def _pairs_kernel(
    q,
    k,
    g,
    norms,
    qd,
    kd,
    kl,
    scores,
    lower,
    decays,
    T,
    H,
    scale,
    K: tl.constexpr,
    BT: tl.constexpr,
    RANGE: tl.constexpr,
    WEAKEST: tl.constexpr,
    BC: tl.constexpr,
):
    # One chunk of one head.
    NT = tl.cdiv(T, BT)
    i_c = tl.program_id(0).to(tl.int64)  # among all chunks of all heads; offsets may exceed 2³¹
    i_bh, start = i_c // NT, (i_c % NT) * BT
    i_b, i_h = i_bh // H, i_bh % H
    p_q = q[0] + i_b * q[1] + i_h * q[2] + start * q[3]
    p_k = k[0] + i_b * k[1] + i_h * k[2] + start * k[3]
    p_g = g[0] + i_b * g[1] + i_h * g[2] + start * g[3]
    left = T - start
    o_t = tl.arange(0, BT)
    o_i, o_j = o_t[:, None], o_t[None, :]
    dtype = qd.dtype.element_ty
    b_rq, b_rk = scale, 1.0
    if norms is not None:
        p_r = norms + i_c * BT + o_t
        b_rq = (tl.load(p_r) * scale)[:, None]
        b_rk = tl.load(p_r + tl.num_programs(0).to(tl.int64) * BT)[:, None]
    b_tril = tl.where(o_i >= o_j, 1.0, 0.0)
    b_s = tl.zeros([BT, BT], dtype=tl.float32)  # row s, column t
    b_a = tl.zeros([BT, BT], dtype=tl.float32)  # row t, column s
    b_least = 1.0
    for first in tl.static_range(0, K, BC):
        # 1. G, as a matrix product: exact but for float32's rounding. b_e is its end.
        b_q, b_k, b_g, m_tc = _channels(p_q, p_k, p_g, q[3], k[3], g[3], b_rq, b_rk, first, left, K, BT, BC)
        b_gc = tl.dot(b_tril, b_g, input_precision="tf32x3")
        b_e = tl.min(b_gc, 0)[None, :]
        b_least = tl.minimum(b_least, tl.min(tl.exp(b_e)))
        # 2. Queries and keys decayed from the chunk's start and to its end.
        o_c = first + tl.arange(0, BC)[None, :]
        o_out = (i_bh * T + start + o_i) * K + o_c
        tl.store(qd + o_out, (b_q * tl.exp(b_gc)).to(dtype), mask=m_tc)
        tl.store(kd + o_out, (b_k * tl.exp(b_gc)).to(dtype), mask=m_tc)
        tl.store(kl + o_out, (b_k * tl.exp(b_e - b_gc)).to(dtype), mask=m_tc)
        tl.store(decays + i_c * K + o_c, tl.exp(b_e), mask=o_c < K)
        # 3. Pairs, decayed to half of the chunk's decay.
        b_half = tl.maximum(b_e / 2, -RANGE)
        b_to, b_from = tl.exp(b_gc - b_half), tl.exp(tl.minimum(b_half - b_gc, RANGE))
        b_s, b_a = _products(b_q, b_k, b_to, b_from, b_s, b_a, dtype)
    if b_least >= WEAKEST:
        o_s = i_c * (BT * BT) + o_i * BT + o_j
        tl.store(scores + o_s, tl.where(o_i <= o_j, b_s, 0.0).to(dtype))
        tl.store(lower + o_s, b_a)


@jit
def _strong_pairs_kernel(
    q,
    k,
    g,
    norms,
    scores,
    lower,
    decays,
    T,
    H,
    scale,
    K: tl.constexpr,
    BK: tl.constexpr,
    BT: tl.constexpr,
    RANGE: tl.constexpr,
    WEAKEST: tl.constexpr,
    BC: tl.constexpr,
):
    # One chunk of one head, if its decays are strong. Tensors over its positions are [4, 16, …]: block, position within
    # it, channel.
    NT = tl.cdiv(T, BT)
    i_c = tl.program_id(0).to(tl.int64)
    o_k = tl.arange(0, BK)
    if tl.min(tl.load(decays + i_c * K + o_k, mask=o_k < K, other=1.0), 0) >= WEAKEST:
        return
    i_bh, start = i_c // NT, (i_c % NT) * BT
    i_b, i_h = i_bh // H, i_bh % H
    p_q = q[0] + i_b * q[1] + i_h * q[2] + start * q[3]
    p_k = k[0] + i_b * k[1] + i_h * k[2] + start * k[3]
    p_g = g[0] + i_b * g[1] + i_h * g[2] + start * g[3]
    left = T - start
    o_n = tl.arange(0, 4)[:, None, None]
    o_r = tl.arange(0, 16)
    o_i, o_j = o_r[None, :, None], o_r[None, None, :]
    o_t = 16 * o_n + o_i
    b_tril = tl.where(o_i >= o_j, 1.0, 0.0) + tl.zeros([4, 16, 16], dtype=tl.float32)
    dtype = scores.dtype.element_ty
    b_rq, b_rk = scale, 1.0
    if norms is not None:
        p_r = norms + i_c * BT + o_t
        p_rk = p_r + tl.num_programs(0).to(tl.int64) * BT
        b_rq = tl.load(p_r) * scale
        b_rk = tl.load(p_rk)
    p_s = scores + i_c * (BT * BT) + (16 * o_n + o_j) * BT + o_t
    p_a = lower + i_c * (BT * BT) + o_t * BT + 16 * o_n + o_j

    # 1. Pairs within a block, decayed to half of its decay.
    b_s = tl.zeros([4, 16, 16], dtype=tl.float32)
    b_a = tl.zeros([4, 16, 16], dtype=tl.float32)
    b_least = tl.zeros([4, 1, BC], dtype=tl.float32)
    for first in range(0, K, BC):
        o_c = first + tl.arange(0, BC)[None, None, :]
        m_tc = (o_t < left) & (o_c < K)
        b_q = _block(p_q, q[3], o_t, o_c, m_tc) * b_rq
        b_k = _block(p_k, k[3], o_t, o_c, m_tc) * b_rk
        # b_gc is G within each block, b_n its end.
        b_g = _block(p_g, g[3], o_t, o_c, m_tc)
        b_gc = tl.dot(b_tril, b_g, input_precision="tf32x3")
        b_n = tl.sum(b_g, 1, keep_dims=True)
        b_least = tl.minimum(b_least, b_n)
        b_half = tl.maximum(b_n / 2, -RANGE)
        b_to = tl.exp(b_gc - b_half)
        b_kj = tl.trans(b_k * tl.exp(tl.minimum(b_half - b_gc, RANGE)), 0, 2, 1)
        b_s = tl.dot(b_q * b_to, b_kj, b_s, input_precision="tf32x3")
        b_a = tl.dot(b_k * b_to, b_kj, b_a, input_precision="tf32x3")
    if tl.min(b_least) < -2 * RANGE:
        # Still too strong: one key at a time.
        b_s = tl.zeros([4, 16, 16], dtype=tl.float32)
        b_a = tl.zeros([4, 16, 16], dtype=tl.float32)
        for first in range(0, K, BC):
            o_c = first + tl.arange(0, BC)[None, None, :]
            m_tc = (o_t < left) & (o_c < K)
            b_q = _block(p_q, q[3], o_t, o_c, m_tc) * b_rq
            b_k = _block(p_k, k[3], o_t, o_c, m_tc) * b_rk
            b_gc = tl.dot(b_tril, _block(p_g, g[3], o_t, o_c, m_tc), input_precision="tf32x3")
            for s in range(16):
                b_gs = tl.sum(tl.where(o_i == s, b_gc, 0.0), 1, keep_dims=True)
                b_ks = tl.sum(tl.where(o_i == s, b_k, 0.0), 1, keep_dims=True) * tl.exp(tl.minimum(b_gc - b_gs, 0.0))
                b_s += tl.where(o_j == s, tl.sum(b_q * b_ks, 2, keep_dims=True), 0.0)
                b_a += tl.where(o_j == s, tl.sum(b_k * b_ks, 2, keep_dims=True), 0.0)
    tl.store(p_s, tl.where(o_i >= o_j, b_s, 0.0).to(dtype))
    tl.store(p_a, b_a)

    # 2. Pairs with the block i_d before, both decayed to the start of the later one. Scores with later keys are 0.
    for i_d in range(1, 4):
        b_s = tl.zeros([4, 16, 16], dtype=tl.float32)
        b_a = tl.zeros([4, 16, 16], dtype=tl.float32)
        o_s = o_t - 16 * i_d
        b_rks = 1.0
        if norms is not None:
            b_rks = tl.load(p_rk - 16 * i_d, mask=o_s >= 0, other=0.0)
        for first in range(0, K, BC):
            o_c = first + tl.arange(0, BC)[None, None, :]
            m_tc = (o_t < left) & (o_s >= 0) & (o_c < K)
            m_sc = (o_s < left) & (o_s >= 0) & (o_c < K)
            b_to = tl.exp(tl.dot(b_tril, _block(p_g, g[3], o_t, o_c, m_tc), input_precision="tf32x3"))
            b_q = _block(p_q, q[3], o_t, o_c, m_tc) * b_rq * b_to
            b_k = _block(p_k, k[3], o_t, o_c, m_tc) * b_rk * b_to
            b_g = _block(p_g, g[3], o_s, o_c, m_sc)
            b_after = tl.sum(b_g, 1, keep_dims=True) - tl.dot(b_tril, b_g, input_precision="tf32x3")
            for i_m in range(1, i_d):
                o_m = o_t - 16 * i_m
                b_after += tl.sum(_block(p_g, g[3], o_m, o_c, m_sc & (o_m < left)), 1, keep_dims=True)
            # The difference of two sums may exceed 0 by a rounding error, but not by more.
            b_kj = tl.trans(_block(p_k, k[3], o_s, o_c, m_sc) * b_rks * tl.exp(b_after), 0, 2, 1)
            b_s = tl.dot(b_q, b_kj, b_s, input_precision="tf32x3")
            b_a = tl.dot(b_k, b_kj, b_a, input_precision="tf32x3")
        m_s = (o_s >= 0) & (o_j >= 0)
        tl.store(p_s - 16 * i_d * BT, b_s.to(dtype), mask=m_s)
        tl.store(p_a - 16 * i_d, b_a, mask=m_s)
        m_later = (16 * o_n + o_j + 16 * i_d < BT) & (o_i >= 0)
        tl.store(p_s + 16 * i_d * BT, tl.zeros([4, 16, 16], dtype=dtype), mask=m_later)


@jit
def _block(p_x, stride, o_t, o_c, mask):
    # Positions and channels of a head, in float32.
    return tl.load(p_x + o_t * stride + o_c, mask=mask, other=0.0).to(tl.float32)


@jit
def _channels(
    p_q,
    p_k,
    p_g,
    q_stride,
    k_stride,
    g_stride,
    b_rq,
    b_rk,
    first,
    left,
    K: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
):
    # Some channels of a chunk's queries, keys and log decays in float32, and which of them exist.
    o_t, o_c = tl.arange(0, BT)[:, None], first + tl.arange(0, BC)[None, :]
    m_tc = (o_t < left) & (o_c < K)
    b_q = tl.load(p_q + o_t * q_stride + o_c, mask=m_tc, other=0.0).to(tl.float32) * b_rq
    b_k = tl.load(p_k + o_t * k_stride + o_c, mask=m_tc, other=0.0).to(tl.float32) * b_rk
    b_g = tl.load(p_g + o_t * g_stride + o_c, mask=m_tc, other=0.0).to(tl.float32)
    return b_q, b_k, b_g, m_tc


@jit
def _products(b_q, b_k, b_to, b_from, b_s, b_a, dtype: tl.constexpr):
    # The sums for q, transposed, and for k.
    b_kf = _operand(b_k * b_from, dtype)
    b_s = tl.dot(b_kf, tl.trans(_operand(b_q * b_to, dtype)), b_s, input_precision="tf32x3")
    return b_s, tl.dot(_operand(b_k * b_to, dtype), tl.trans(b_kf), b_a, input_precision="tf32x3")


@jit
def _operand(b_x, dtype: tl.constexpr):
    # bfloat16 has the range of decayed keys; float16 has not.
    if dtype == tl.bfloat16:
        return b_x.to(tl.bfloat16)
    else:
        return b_x
