"""The two kernels of `argap.kernels.head.linear_logprob`: tiles of logits that never leave the registers.

Legend: N rows (tokens), D hidden size, V vocabulary, BN × BV a tile of logits, NV = ⌈V / BV⌉ tiles per row.
"""

from __future__ import annotations

from argap.kernels.launch import jit, tl


@jit
def to_bits(logits, rate, cap, CAPPED: tl.constexpr):
    """Scale and cap logits, in units of log 2, so that their exponentials are powers of 2.

    ``rate`` is scale · log₂e. With a softcap c it is 2 · scale · log₂e / c, and ``cap`` is c · log₂e.
    """
    if CAPPED:  # tanh x = 1 − 2 / (1 + exp 2x)
        return cap * (1 - 2 / (1 + tl.exp2(logits * rate)))
    else:
        return logits * rate


@jit
def tile_kernel(
    hidden,
    weight,
    bias,
    max_z,
    sum_exp,
    argmax,
    moment,
    N,
    V,
    s_hidden,
    s_weight,
    rate,
    cap,
    D: tl.constexpr,
    CAPPED: tl.constexpr,
    COPY_ENGINE: tl.constexpr,
    LOWEST: tl.constexpr,
    BN: tl.constexpr,
    BV: tl.constexpr,
    BD: tl.constexpr,
    GROUP: tl.constexpr,
):
    # A persistent program: tiles i, i + programs, i + 2 · programs, ...
    NN, NV = tl.cdiv(N, BN), tl.cdiv(V, BV)
    for i in tl.range(tl.program_id(0), NN * NV, tl.num_programs(0), flatten=True):
        # 1. Choose the tile: GROUP blocks of rows pass over the vocabulary together, so that their hidden states stay
        #    in the cache and each block of the weight is fetched once per group.
        first_n = i // (GROUP * NV) * GROUP
        height = tl.minimum(NN - first_n, GROUP)
        start_n = (first_n + i % (GROUP * NV) % height) * BN
        i_v = i % (GROUP * NV) // height
        # 2. Its logits.
        b_logits = tl.zeros([BN, BV], dtype=tl.float32)
        for k in range(0, D, BD):
            if COPY_ENGINE:
                b_h = hidden.load([start_n, k])
                b_w = weight.load([i_v * BV, k])
            else:
                o_n = (start_n + tl.arange(0, BN)).to(tl.int64)
                o_v = (i_v * BV + tl.arange(0, BV)).to(tl.int64)
                o_d = k + tl.arange(0, BD)
                m_h = (o_n < N)[:, None] & (o_d < D)[None, :]
                m_w = (o_v < V)[:, None] & (o_d < D)[None, :]
                b_h = tl.load(hidden + o_n[:, None] * s_hidden + o_d[None, :], mask=m_h, other=0.0)
                b_w = tl.load(weight + o_v[:, None] * s_weight + o_d[None, :], mask=m_w, other=0.0)
            b_logits = tl.dot(b_h, b_w.T, b_logits, input_precision="tf32x3")
        # 3. Reduce them to the largest logit, Σ exp, and on request the argmax and Σ exp · (logit − largest).
        o_ids = i_v * BV + tl.arange(0, BV)
        if bias is not None:
            b_logits += tl.load(bias + o_ids, mask=o_ids < V, other=0.0).to(tl.float32)[None, :]
        b_z = tl.where((o_ids < V)[None, :], to_bits(b_logits, rate, cap, CAPPED), LOWEST)
        b_max = tl.max(b_z, 1)
        b_exp = tl.exp2(b_z - b_max[:, None])
        o_n = start_n + tl.arange(0, BN)
        m_n = o_n < N
        o_out = i_v.to(tl.int64) * N + o_n
        tl.store(max_z + o_out, b_max, mask=m_n)
        tl.store(sum_exp + o_out, tl.sum(b_exp, 1), mask=m_n)
        if argmax is not None:
            tl.store(argmax + o_out, tl.min(tl.where(b_z == b_max[:, None], o_ids[None, :], 2147483647), 1), mask=m_n)
        if moment is not None:
            b_moment = tl.sum(tl.where(b_exp > 0, b_exp * (b_z - b_max[:, None]), 0.0), 1)
            tl.store(moment + o_out, b_moment, mask=m_n)


@jit
def row_kernel(
    hidden,
    weight,
    target,
    bias,
    max_z,
    sum_exp,
    argmax,
    moment,
    logprob,
    top1,
    entropy,
    N,
    V,
    NV,
    s_hidden,
    s_weight,
    rate,
    cap,
    D: tl.constexpr,
    CAPPED: tl.constexpr,
    LOWEST: tl.constexpr,
    LN_2: tl.constexpr,
    BR: tl.constexpr,
    BT: tl.constexpr,
    BD: tl.constexpr,
):
    # BR rows: join their tiles and compute the target's logit.
    o_n = (tl.program_id(0) * BR + tl.arange(0, BR)).to(tl.int64)
    m_n = o_n < N
    # 1. The target's logit.
    b_target = tl.load(target + o_n, mask=m_n, other=0)
    m_target = (b_target >= 0) & (b_target < V)
    b_target = tl.where(m_target, b_target, 0)
    b_z = tl.zeros([BR], dtype=tl.float32)
    for k in range(0, D, BD):
        o_d = k + tl.arange(0, BD)
        m = m_n[:, None] & (o_d < D)[None, :]
        b_h = tl.load(hidden + o_n[:, None] * s_hidden + o_d[None, :], mask=m, other=0.0).to(tl.float32)
        b_w = tl.load(weight + b_target[:, None] * s_weight + o_d[None, :], mask=m, other=0.0).to(tl.float32)
        b_z += tl.sum(b_h * b_w, 1)
    if bias is not None:
        b_z += tl.load(bias + b_target).to(tl.float32)
    b_z = to_bits(b_z, rate, cap, CAPPED)
    # 2. Over all tiles: the largest logit, then the sums relative to it.
    b_max = tl.full([BR], LOWEST, dtype=tl.float32)
    o_v = tl.arange(0, BT).to(tl.int64)
    for start in range(0, NV, BT):
        o_in = (start + o_v)[:, None] * N + o_n[None, :]
        m = (start + o_v < NV)[:, None] & m_n[None, :]
        b_max = tl.maximum(b_max, tl.max(tl.load(max_z + o_in, mask=m, other=LOWEST), 0))
    b_sum = tl.zeros([BR], dtype=tl.float32)
    b_top1 = tl.full([BR], 2147483647, dtype=tl.int32)
    b_moment = tl.zeros([BR], dtype=tl.float32)
    for start in range(0, NV, BT):
        o_in = (start + o_v)[:, None] * N + o_n[None, :]
        m = (start + o_v < NV)[:, None] & m_n[None, :]
        b_tile_max = tl.load(max_z + o_in, mask=m, other=LOWEST)
        b_tile_sum = tl.load(sum_exp + o_in, mask=m, other=0.0)
        b_factor = tl.exp2(b_tile_max - b_max[None, :])
        b_sum += tl.sum(b_factor * b_tile_sum, 0)
        if argmax is not None:
            b_ids = tl.load(argmax + o_in, mask=m & (b_tile_max == b_max[None, :]), other=2147483647)
            b_top1 = tl.minimum(b_top1, tl.min(b_ids, 0))
        if moment is not None:
            b_shifted = tl.load(moment + o_in, mask=m, other=0.0) + b_tile_sum * (b_tile_max - b_max[None, :])
            b_moment += tl.sum(tl.where(b_factor > 0, b_factor * b_shifted, 0.0), 0)
    # 3. From bits to nats. Clamp to ≤ 0, since rounding of the two sums may exceed it.
    b_sum = tl.where(m_n, b_sum, 1.0)
    b_lse = tl.log2(b_sum)
    b_logprob = (b_z - b_max - b_lse) * LN_2
    b_logprob = tl.where(b_logprob > 0, 0.0, b_logprob)  # tl.minimum would lose a NaN
    tl.store(logprob + o_n, tl.where(m_target, b_logprob, float("nan")), mask=m_n)
    if argmax is not None:
        tl.store(top1 + o_n, b_top1.to(tl.int64), mask=m_n)
    if moment is not None:  # −Σ p log p, log p being the logit − largest − log Σ
        tl.store(entropy + o_n, (b_lse - b_moment / b_sum) * LN_2, mask=m_n)
