"""Linear attention and retention: a running sum of kᵀv, read by each query, with one decay a head or none.

One pass over the positions, chunk by chunk: a program has one head of one sequence and some columns of
V, keeps the state S in registers, in float32, and meets q, k and v once. So no state of a chunk goes
through memory, and nothing depends on how long the sequences are or how many there are: a sequence gives
the same bits alone and in a batch.

Legend: B batch, H heads, T positions, C positions of a chunk, K key size, V value size.
"""

from __future__ import annotations

import torch

from argap.kernels.language import jit, runs_kernels, tl, triton
from argap.kernels.launch import Launch, LaunchTable
from argap.kernels.layout import empty_heads_inside, key_class, padded, with_rows
from argap.kernels.recurrence import chunked_recurrence

SMALLEST_SUM = 1e-6
"""What a sum of weights is taken for where it is less: with ReLU it may be 0."""

NO_DECAY, DECAY_OF_HEAD, DECAY_OF_POSITION = 0, 1, 2

IN_FLOAT32 = {
    "16 float32": Launch({"C": 32, "BV": 32}, warps=4, stages=2),
    "32 float32": Launch({"C": 32, "BV": 32}, warps=4, stages=2),
    "64 float32": Launch({"C": 32, "BV": 32}, warps=4, stages=2),
    "128 float32": Launch({"C": 32, "BV": 32}, warps=4, stages=1),
    "256 float32": Launch({"C": 16, "BV": 32}, warps=4, stages=1),
    "512 float32": Launch({"C": 16, "BV": 16}, warps=4, stages=1),
}
LAUNCHES = LaunchTable(
    "linear_attention",
    {
        "hopper": {
            "16": Launch({"C": 64, "BV": 64}, warps=4, stages=4),
            "32": Launch({"C": 64, "BV": 64}, warps=4, stages=4),
            "64": Launch({"C": 64, "BV": 64}, warps=4, stages=4),
            "128": Launch({"C": 64, "BV": 64}, warps=4, stages=3),
            "256": Launch({"C": 64, "BV": 32}, warps=4, stages=2),
            "512": Launch({"C": 16, "BV": 16}, warps=4, stages=1),
            **IN_FLOAT32,
        },
        "any": {
            "16": Launch({"C": 64, "BV": 64}, warps=4, stages=2),
            "32": Launch({"C": 64, "BV": 64}, warps=4, stages=2),
            "64": Launch({"C": 64, "BV": 64}, warps=4, stages=2),
            "128": Launch({"C": 64, "BV": 32}, warps=4, stages=1),
            "256": Launch({"C": 32, "BV": 16}, warps=4, stages=1),
            "512": Launch({"C": 16, "BV": 16}, warps=4, stages=1),
            **IN_FLOAT32,
        },
    },
)
LARGEST_KEY = 512


def linear_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    log_decay: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
    normalize: bool = False,
    keep_state: bool = True,
    chunk: int | None = 64,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """S_t = a_t S_{t−1} + k_tᵀ v_t, y_t = q_t S_t (arXiv 2006.16236, eqs. 18 to 20; with a decay a_t, retention:
    arXiv 2307.08621, eq. 6).

    ``q``, ``k`` ``[B, H, T, K]``, ``v [B, H, T, V]``, sequences of one length, any strides; a view of
    ``[B, T, H, …]`` costs no copy. ``log_decay`` is log a ≤ 0: ``[H]``, or ``[B or 1, H, T]``; None: 0.
    With ``normalize`` y_t is divided by q_t Σ_{s≤t} (its decay) k_s, or by `SMALLEST_SUM` where that is less.

    Gives y ``[B, H, T, V]`` in the type of ``v``, and in float32 or wider S after the last position
    ``[B, H, K, V]``, with ``normalize`` ``[B, H, K, V + 1]``, whose last column is the sum of keys.
    ``state`` is the same before the first; None: 0.

    On a GPU, where no gradient is asked for and K ≤ 512, one kernel; sums in float32, products of
    float16 and bfloat16 on the tensor cores. Else the reference, in float32 or wider, which compares
    ``chunk`` positions at once, or all with None.
    """
    if runs_kernels(q, k, v, log_decay, state) and q.shape[-1] <= LARGEST_KEY and q.dtype != torch.float64:
        return _by_kernel(q, k, v, log_decay, state, normalize, keep_state)
    options = {"normalize": normalize, "keep_state": keep_state, "chunk": chunk}
    return linear_attention_reference(q, k, v, log_decay=log_decay, state=state, **options)


def linear_attention_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    log_decay: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
    normalize: bool = False,
    keep_state: bool = True,
    chunk: int | None = 64,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`linear_attention` in PyTorch, differentiable."""
    if log_decay is not None:
        per_head = log_decay.dim() == 1
        log_decay = log_decay[None, :, None, None].expand(-1, -1, q.shape[2], -1) if per_head else log_decay[..., None]
    values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1) if normalize else v
    y, state = chunked_recurrence(q, k, values, chunk, log_decay, state)
    if normalize:
        y = y[..., :-1] / y[..., -1:].clamp_min(SMALLEST_SUM)
    return y.to(v.dtype), state if keep_state else None


def _by_kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor | None,
    state: torch.Tensor | None,
    normalize: bool,
    keep_state: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    batch, heads, length, key = q.shape
    value = v.shape[-1]
    kind = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    y = empty_heads_inside(batch, heads, length, value, v)
    q, k, v = (with_rows(x.to(kind)) for x in (q, k, v))
    after = q.new_empty(batch, heads, key, value + normalize, dtype=torch.float32) if keep_state else None
    decay, decay_strides = NO_DECAY, (0, 0, 0)
    if log_decay is not None:
        decay = DECAY_OF_HEAD if log_decay.dim() == 1 else DECAY_OF_POSITION
        log_decay = log_decay.float()
        if decay == DECAY_OF_POSITION:
            decay_strides = log_decay.expand(batch, -1, -1).stride()
        else:
            log_decay = with_rows(log_decay)
    before = None if state is None else state.float().contiguous()
    launch = LAUNCHES.at(q.device, key_class(key, kind))
    _forward[(triton.cdiv(value, launch.blocks["BV"]) * batch * heads,)](
        *(q, k, v, log_decay, y, before, after, length, heads),
        *(*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *y.stride()[:3], *decay_strides),
        K=key,
        V=value,
        BK=padded(key),
        DECAY=decay,
        NORMALIZE=normalize,
        WHOLE=length % launch.blocks["C"] == 0,
        SMALLEST=SMALLEST_SUM,
        **launch.arguments(),
    )
    return y, after


@jit
def _forward(
    q,
    k,
    v,
    log_decay,
    y,
    before,
    after,
    length,
    heads,
    q_b,
    q_h,
    q_t,
    k_b,
    k_h,
    k_t,
    v_b,
    v_h,
    v_t,
    y_b,
    y_h,
    y_t,
    g_b,
    g_h,
    g_t,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    DECAY: tl.constexpr,
    NORMALIZE: tl.constexpr,
    WHOLE: tl.constexpr,
    SMALLEST: tl.constexpr,
    C: tl.constexpr,
    BV: tl.constexpr,
):
    # One head of one sequence, columns BV of V; the programs of a head are neighbours and share q and k.
    PARTS: tl.constexpr = (V + BV - 1) // BV
    pair = (tl.program_id(0) // PARTS).to(tl.int64)
    b, h = pair // heads, pair % heads
    rows = tl.arange(0, C)
    keys = tl.arange(0, BK)
    values = (tl.program_id(0) % PARTS) * BV + tl.arange(0, BV)
    far = rows.to(tl.int64)[:, None]  # offsets may pass 2³¹
    q_at = q + b * q_b + h * q_h + far * q_t + keys[None, :]
    k_at = k + b * k_b + h * k_h + far * k_t + keys[None, :]
    v_at = v + b * v_b + h * v_h + far * v_t + values[None, :]
    y_at = y + b * y_b + h * y_h + far * y_t + values[None, :]
    in_key, in_value = keys < K, values < V
    kind = q.dtype.element_ty

    # S, and the sum of keys.
    COLUMNS: tl.constexpr = V + 1 if NORMALIZE else V
    s_at = pair * (K * COLUMNS) + keys[:, None] * COLUMNS + values[None, :]
    z_at = pair * (K * COLUMNS) + keys * COLUMNS + V
    in_state = in_key[:, None] & in_value[None, :]
    s = tl.zeros([BK, BV], dtype=tl.float32)
    z = tl.zeros([BK], dtype=tl.float32)
    if before is not None:
        s = tl.load(before + s_at, mask=in_state, other=0.0)
        if NORMALIZE:
            z = tl.load(before + z_at, mask=in_key, other=0.0)

    seen = rows[:, None] >= rows[None, :]
    weights = tl.where(seen, 1.0, 0.0)
    if DECAY == 1:
        rate = tl.load(log_decay + h)
        # The same in every chunk: γ^(i−j), and the decays from its start and to its end.
        weights = tl.exp(tl.where(seen, (rows[:, None] - rows[None, :]) * rate, float("-inf")))
        read = tl.exp((rows + 1) * rate)
        to_end = tl.exp((C - 1 - rows) * rate)
        over_chunk = tl.exp(C * rate)
    if DECAY == 2:
        g_at = log_decay + b * g_b + h * g_h + rows.to(tl.int64) * g_t

    for start in range(0, length, C):
        # Where all chunks are whole, no mask is kept.
        left = C if WHOLE else length - start
        there = rows < left
        q_c = tl.load(q_at, mask=there[:, None] & in_key[None, :], other=0.0)
        k_c = tl.load(k_at, mask=there[:, None] & in_key[None, :], other=0.0)
        v_c = tl.load(v_at, mask=there[:, None] & in_value[None, :], other=0.0)
        # 1. Decays from the chunk's start to each position, and from there to its end: never above 1.
        if DECAY == 1:
            written, kept = to_end, over_chunk
            if left < C:
                written = tl.exp(tl.where(there, left - 1 - rows, 0) * rate)
                kept = tl.exp(left * rate)
        if DECAY == 2:
            g = tl.load(g_at, mask=there, other=0.0)
            sums = tl.cumsum(g, 0)
            whole = tl.sum(g, 0)
            weights = tl.exp(tl.where(seen, sums[:, None] - sums[None, :], float("-inf")))
            read = tl.exp(sums)
            written = tl.exp(tl.minimum(whole - sums, 0.0))
            kept = tl.exp(whole)
            g_at += C * g_t
        # 2. What the earlier chunks give and the pairs within this one; decayed, it is scaled as it is added.
        if DECAY == 0:
            y_c = tl.dot(q_c, s.to(kind), input_precision="tf32x3")
            scores = tl.where(seen, tl.dot(q_c, tl.trans(k_c), input_precision="tf32x3"), 0.0)
            y_c = tl.dot(scores.to(kind), v_c, y_c, input_precision="tf32x3")
        else:
            scores = tl.dot(q_c, tl.trans(k_c), input_precision="tf32x3") * weights
            y_c = tl.dot(scores.to(kind), v_c, input_precision="tf32x3")
            y_c += tl.dot(q_c, s.to(kind), input_precision="tf32x3") * read[:, None]
        if NORMALIZE:
            sums_of_earlier = tl.sum(q_c.to(tl.float32) * z[None, :], 1)
            keys_of_chunk = k_c.to(tl.float32)
            if DECAY != 0:
                sums_of_earlier *= read
                keys_of_chunk *= written[:, None]
                z *= kept
            total = tl.sum(scores, 1) + sums_of_earlier
            z += tl.sum(keys_of_chunk, 0)
            y_c = y_c / tl.maximum(total, SMALLEST)[:, None]
        tl.store(y_at, y_c.to(y.dtype.element_ty), mask=there[:, None] & in_value[None, :])
        # 3. The state after the chunk.
        if DECAY != 0:
            v_c = (v_c * written[:, None]).to(kind)
            s *= kept
        s = tl.dot(tl.trans(k_c), v_c, s, input_precision="tf32x3")
        q_at += C * q_t
        k_at += C * k_t
        v_at += C * v_t
        y_at += C * y_t

    if after is not None:
        tl.store(after + s_at, s, mask=in_state)
        if NORMALIZE:
            tl.store(after + z_at, z, mask=in_key)  # every part of V has the same
