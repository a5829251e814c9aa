"""The two kernels of `argap.kernels.head.linear_divergence`: tiles of two models' logits, reduced together.

P is the reference, Q the model; a head's ``numbers`` are ``(s_hidden, s_weight, rate, cap)``.

Legend: N rows (tokens), D hidden size, V vocabulary, BN × BV a tile of logits, NV = ⌈V / BV⌉ tiles per row.
"""

from __future__ import annotations

from argap.kernels.head.logit_tiles import to_bits
from argap.kernels.launch import jit, tl


@jit
def tile_in_bits(
    hidden,
    weight,
    bias,
    numbers,
    start_n,
    start_v,
    N,
    V,
    D: tl.constexpr,
    CAPPED: tl.constexpr,
    COPY_ENGINE: tl.constexpr,
    LOWEST: tl.constexpr,
    BN: tl.constexpr,
    BV: tl.constexpr,
    BD: tl.constexpr,
):
    """Return a tile of a head's logits in units of log 2, ``LOWEST`` beyond the vocabulary, and each row's largest."""
    s_hidden, s_weight, rate, cap = numbers
    b_logits = tl.zeros([BN, BV], dtype=tl.float32)
    for k in range(0, D, BD):
        if COPY_ENGINE:
            b_h = hidden.load([start_n, k])
            b_w = weight.load([start_v, k])
        else:
            o_n = (start_n + tl.arange(0, BN)).to(tl.int64)
            o_v = (start_v + tl.arange(0, BV)).to(tl.int64)
            o_d = k + tl.arange(0, BD)
            m_h = (o_n < N)[:, None] & (o_d < D)[None, :]
            m_w = (o_v < V)[:, None] & (o_d < D)[None, :]
            b_h = tl.load(hidden + o_n[:, None] * s_hidden + o_d[None, :], mask=m_h, other=0.0)
            b_w = tl.load(weight + o_v[:, None] * s_weight + o_d[None, :], mask=m_w, other=0.0)
        b_logits = tl.dot(b_h, b_w.T, b_logits, input_precision="tf32x3")
    o_ids = start_v + tl.arange(0, BV)
    if bias is not None:
        b_logits += tl.load(bias + o_ids, mask=o_ids < V, other=0.0).to(tl.float32)[None, :]
    b_z = tl.where((o_ids < V)[None, :], to_bits(b_logits, rate, cap, CAPPED), LOWEST)
    b_max = tl.max(b_z, 1)
    return b_z, tl.where(b_max < LOWEST, LOWEST, b_max)  # not tl.maximum, which would lose a NaN


@jit
def divergence_tile_kernel(
    hidden_p,
    weight_p,
    bias_p,
    numbers_p,
    hidden_q,
    weight_q,
    bias_q,
    numbers_q,
    max_p,
    sum_p,
    cross,
    max_q,
    sum_q,
    N,
    V,
    D_P: tl.constexpr,
    D_Q: tl.constexpr,
    CAPPED_P: tl.constexpr,
    CAPPED_Q: tl.constexpr,
    COPY_ENGINE_P: tl.constexpr,
    COPY_ENGINE_Q: tl.constexpr,
    LOWEST: tl.constexpr,
    BN: tl.constexpr,
    BV: tl.constexpr,
    BD: tl.constexpr,
    GROUP: tl.constexpr,
):
    # A persistent program: tiles i, i + programs, i + 2 · programs, ...
    NN, NV = tl.cdiv(N, BN), tl.cdiv(V, BV)
    for i in range(tl.program_id(0), NN * NV, tl.num_programs(0)):
        # 1. Choose the tile, in the order of `argap.kernels.head.logit_tiles.tile_kernel`.
        first_n = i // (GROUP * NV) * GROUP
        height = tl.minimum(NN - first_n, GROUP)
        start_n = (first_n + i % (GROUP * NV) % height) * BN
        i_v = i % (GROUP * NV) // height
        # 2. Both models' logits there.
        b_p, b_max_p = tile_in_bits(
            *(hidden_p, weight_p, bias_p, numbers_p, start_n, i_v * BV, N, V),
            *(D_P, CAPPED_P, COPY_ENGINE_P, LOWEST, BN, BV, BD),
        )
        b_q, b_max_q = tile_in_bits(
            *(hidden_q, weight_q, bias_q, numbers_q, start_n, i_v * BV, N, V),
            *(D_Q, CAPPED_Q, COPY_ENGINE_Q, LOWEST, BN, BV, BD),
        )
        # 3. Reduce them to the two sums and Σ exp p · (p − q), each relative to its largest logit.
        b_p -= b_max_p[:, None]
        b_q -= b_max_q[:, None]
        b_exp = tl.exp2(b_p)
        # An id that the reference rules out counts 0, also where the model does; a NaN is kept.
        b_cross = tl.sum(tl.where(b_exp == 0, 0.0, b_exp * (b_p - b_q)), 1)
        o_n = start_n + tl.arange(0, BN)
        m_n = o_n < N
        o_out = i_v.to(tl.int64) * N + o_n
        tl.store(max_p + o_out, b_max_p, mask=m_n)
        tl.store(sum_p + o_out, tl.sum(b_exp, 1), mask=m_n)
        tl.store(cross + o_out, b_cross, mask=m_n)
        tl.store(max_q + o_out, b_max_q, mask=m_n)
        tl.store(sum_q + o_out, tl.sum(tl.exp2(b_q), 1), mask=m_n)


@jit
def divergence_row_kernel(
    max_p,
    sum_p,
    cross,
    max_q,
    sum_q,
    kl,
    N,
    NV,
    LOWEST: tl.constexpr,
    LN_2: tl.constexpr,
    BR: tl.constexpr,
    BT: tl.constexpr,
):
    # BR rows: join their tiles, BT at a time.
    o_n = (tl.program_id(0) * BR + tl.arange(0, BR)).to(tl.int64)
    m_n = o_n < N
    o_v = tl.arange(0, BT).to(tl.int64)
    # 1. The largest logits over all tiles.
    b_max_p = tl.full([BR], LOWEST, dtype=tl.float32)
    b_max_q = tl.full([BR], LOWEST, dtype=tl.float32)
    for start in range(0, NV, BT):
        o_in = (start + o_v)[:, None] * N + o_n[None, :]
        m = (start + o_v < NV)[:, None] & m_n[None, :]
        b_max_p = tl.maximum(b_max_p, tl.max(tl.load(max_p + o_in, mask=m, other=LOWEST), 0))
        b_max_q = tl.maximum(b_max_q, tl.max(tl.load(max_q + o_in, mask=m, other=LOWEST), 0))
    # 2. The sums relative to them.
    b_sum_p = tl.zeros([BR], dtype=tl.float32)
    b_cross = tl.zeros([BR], dtype=tl.float32)
    b_sum_q = tl.zeros([BR], dtype=tl.float32)
    for start in range(0, NV, BT):
        o_in = (start + o_v)[:, None] * N + o_n[None, :]
        m = (start + o_v < NV)[:, None] & m_n[None, :]
        b_shift_p = tl.load(max_p + o_in, mask=m, other=LOWEST) - b_max_p[None, :]
        b_shift_q = tl.load(max_q + o_in, mask=m, other=LOWEST) - b_max_q[None, :]
        b_tile_sum = tl.load(sum_p + o_in, mask=m, other=0.0)
        b_tile_cross = tl.load(cross + o_in, mask=m, other=0.0) + b_tile_sum * (b_shift_p - b_shift_q)
        b_factor = tl.exp2(b_shift_p)
        b_sum_p += tl.sum(b_factor * b_tile_sum, 0)
        b_cross += tl.sum(tl.where(b_factor == 0, 0.0, b_factor * b_tile_cross), 0)
        b_sum_q += tl.sum(tl.exp2(b_shift_q) * tl.load(sum_q + o_in, mask=m, other=0.0), 0)
    # 3. From bits to nats. Clamp to ≥ 0, since rounding may go below.
    b_sum_p, b_sum_q = tl.where(m_n, b_sum_p, 1.0), tl.where(m_n, b_sum_q, 1.0)
    b_kl = (b_cross / b_sum_p - tl.log2(b_sum_p) + tl.log2(b_sum_q)) * LN_2
    tl.store(kl + o_n, tl.where(b_kl < 0, 0.0, b_kl), mask=m_n)
