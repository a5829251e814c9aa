"""The two kernels of `argap.kernels.linear_logprob`: tiles of logits that never leave the registers.

Legend: N rows (tokens), D hidden size, V vocabulary, BN × BV a tile of logits.
"""

from __future__ import annotations

from argap.kernels.language import jit, tl


@jit
def in_bits(logits, rate, cap, CAPPED: tl.constexpr):
    """Logits scaled, capped and in units of log 2, so that their exponentials are powers of 2.

    ``rate`` is scale · log₂e; with a cap, twice that over the cap, and ``cap`` in those units.
    """
    if CAPPED:  # tanh x = 1 − 2 / (1 + exp 2x)
        return cap * (1 - 2 / (1 + tl.exp2(logits * rate)))
    else:
        return logits * rate


@jit
def summarize_tiles(
    hidden,
    weight,
    bias,
    largest,
    total,
    best,
    moment,
    rows,
    vocabulary,
    hidden_n,
    weight_v,
    rate,
    cap,
    D: tl.constexpr,
    CAPPED: tl.constexpr,
    COPIED: tl.constexpr,
    LOWEST: tl.constexpr,
    BN: tl.constexpr,
    BV: tl.constexpr,
    BD: tl.constexpr,
    GROUP: tl.constexpr,
):
    down, across = tl.cdiv(rows, BN), tl.cdiv(vocabulary, BV)
    for tile in tl.range(tl.program_id(0), down * across, tl.num_programs(0), flatten=True):
        # 1. Which tile: GROUP blocks of rows pass over the vocabulary together, so that the cache holds
        #    their hidden states, and each part of the weight is fetched once a group.
        first = tile // (GROUP * across) * GROUP
        height = tl.minimum(down - first, GROUP)
        row = (first + tile % (GROUP * across) % height) * BN
        column = tile % (GROUP * across) // height
        # 2. Its logits.
        logits = tl.zeros([BN, BV], dtype=tl.float32)
        for k in range(0, D, BD):
            if COPIED:
                h = hidden.load([row, k])
                w = weight.load([column * BV, k])
            else:
                n = (row + tl.arange(0, BN)).to(tl.int64)
                v = (column * BV + tl.arange(0, BV)).to(tl.int64)
                d = k + tl.arange(0, BD)
                in_hidden = (n < rows)[:, None] & (d < D)[None, :]
                in_weight = (v < vocabulary)[:, None] & (d < D)[None, :]
                h = tl.load(hidden + n[:, None] * hidden_n + d[None, :], mask=in_hidden, other=0.0)
                w = tl.load(weight + v[:, None] * weight_v + d[None, :], mask=in_weight, other=0.0)
            logits = tl.dot(h, w.T, logits, input_precision="tf32x3")
        # 3. What is left of them.
        ids = column * BV + tl.arange(0, BV)
        if bias is not None:
            logits += tl.load(bias + ids, mask=ids < vocabulary, other=0.0).to(tl.float32)[None, :]
        z = tl.where((ids < vocabulary)[None, :], in_bits(logits, rate, cap, CAPPED), LOWEST)
        top = tl.max(z, 1)
        below = z - top[:, None]
        powers = tl.exp2(below)
        n = row + tl.arange(0, BN)
        there = n < rows
        at = column.to(tl.int64) * rows + n
        tl.store(largest + at, top, mask=there)
        tl.store(total + at, tl.sum(powers, 1), mask=there)
        if best is not None:
            tl.store(best + at, tl.min(tl.where(z == top[:, None], ids[None, :], 2147483647), 1), mask=there)
        if moment is not None:
            tl.store(moment + at, tl.sum(powers * below, 1), mask=there)


@jit
def join_tiles(
    hidden,
    weight,
    target,
    bias,
    largest,
    total,
    best,
    moment,
    logprob,
    top1,
    entropy,
    rows,
    vocabulary,
    tiles,
    hidden_n,
    weight_v,
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
    n = (tl.program_id(0) * BR + tl.arange(0, BR)).to(tl.int64)
    there = n < rows
    # 1. The target's own logit.
    wanted = tl.load(target + n, mask=there, other=0)
    known = (wanted >= 0) & (wanted < vocabulary)
    wanted = tl.where(known, wanted, 0)
    picked = tl.zeros([BR], dtype=tl.float32)
    for k in range(0, D, BD):
        d = k + tl.arange(0, BD)
        inside = there[:, None] & (d < D)[None, :]
        h = tl.load(hidden + n[:, None] * hidden_n + d[None, :], mask=inside, other=0.0).to(tl.float32)
        w = tl.load(weight + wanted[:, None] * weight_v + d[None, :], mask=inside, other=0.0).to(tl.float32)
        picked += tl.sum(h * w, 1)
    if bias is not None:
        picked += tl.load(bias + wanted).to(tl.float32)
    picked = in_bits(picked, rate, cap, CAPPED)
    # 2. All tiles: the largest logit, then everything below it.
    top = tl.full([BR], LOWEST, dtype=tl.float32)
    t = tl.arange(0, BT).to(tl.int64)
    for start in range(0, tiles, BT):
        at = (start + t)[:, None] * rows + n[None, :]
        inside = (start + t < tiles)[:, None] & there[None, :]
        top = tl.maximum(top, tl.max(tl.load(largest + at, mask=inside, other=LOWEST), 0))
    sums = tl.zeros([BR], dtype=tl.float32)
    moments = tl.zeros([BR], dtype=tl.float32)
    first = tl.full([BR], 2147483647, dtype=tl.int32)
    for start in range(0, tiles, BT):
        at = (start + t)[:, None] * rows + n[None, :]
        inside = (start + t < tiles)[:, None] & there[None, :]
        m = tl.load(largest + at, mask=inside, other=LOWEST)
        below = m - top[None, :]
        share = tl.exp2(below)
        s = tl.load(total + at, mask=inside, other=0.0)
        sums += tl.sum(share * s, 0)
        if moment is not None:
            moments += tl.sum(share * (tl.load(moment + at, mask=inside, other=0.0) + below * s), 0)
        if best is not None:
            ids = tl.load(best + at, mask=inside & (m == top[None, :]), other=2147483647)
            first = tl.minimum(first, tl.min(ids, 0))
    # 3. From bits to nats; no log-prob is above 0, whatever the rounding of the two sums.
    sums = tl.where(there, sums, 1.0)
    bits = tl.log2(sums)
    result = (picked - top - bits) * LN_2
    result = tl.where(result > 0, 0.0, result)  # not a minimum, which would lose a NaN
    tl.store(logprob + n, tl.where(known, result, float("nan")), mask=there)
    if best is not None:
        tl.store(top1 + n, first.to(tl.int64), mask=there)
    if moment is not None:
        spread = (bits - moments / sums) * LN_2
        tl.store(entropy + n, tl.where(spread < 0, 0.0, spread), mask=there)
