"""Gated linear attention: linear attention in which each key's row of the state decays as the input says.

Two kernels. The first, all chunks at once, multiplies the decays into q and k; the second passes over the
positions as in `argap.kernels.linear_attention`, with nothing but matrix products left to do. Only q and k
with their decays go through memory between them, no states.

Within a chunk a pair's weight, Σ_c q_ic k_jc exp(G_ic − G_jc) with G the running sum of the log decays, is a
matrix product where no key forgets more than exp(−`RANGE`) over the chunk, whose end is E: that of
q exp(G − E) and k exp(E − G), both within a range of exp(`RANGE`). Else the first kernel takes the pairs one
by one, without a positive exponent. Which of the two a chunk takes depends on its decays alone.

Legend: B batch, H heads, T positions, C positions of a chunk, N = ⌈T / C⌉ chunks, K key size, V value size.
"""

from __future__ import annotations

import torch

from argap.kernels.language import jit, runs_kernels, tl, triton
from argap.kernels.launch import Launch, LaunchTable
from argap.kernels.layout import empty_heads_inside, key_class, padded, with_rows
from argap.kernels.recurrence import chunked_recurrence

RANGE = {torch.float16: 8.0, torch.bfloat16: 60.0, torch.float32: 60.0}
"""How far below 0 a chunk's log decays may sum up for its pairs to be a matrix product: exp(60) leaves e²⁸ of
float32's and bfloat16's range to what it multiplies, exp(8) e³ of float16's."""

CHUNK = 64
# With 8 warps two warp groups share the columns of V, and with 16 columns each has 8: Triton 3.6 then reads beyond
# shared memory on Hopper (products of float32, the last of `_scan`).
IN_FLOAT32 = {
    **{f"{key} float32": Launch({"BV": 32}, warps=4, stages=2) for key in (16, 32, 64)},
    "128 float32": Launch({"BV": 32}, warps=4, stages=1),
    "256 float32": Launch({"BV": 32}, warps=8, stages=1),
}
LAUNCHES = LaunchTable(
    "gla",
    {
        "hopper": {
            "16": Launch({"BV": 64}, warps=4, stages=3),
            "32": Launch({"BV": 64}, warps=4, stages=3),
            "64": Launch({"BV": 64}, warps=4, stages=3),
            "128": Launch({"BV": 64}, warps=4, stages=3),
            "256": Launch({"BV": 32}, warps=4, stages=2),
            **IN_FLOAT32,
        },
        "any": {
            "16": Launch({"BV": 64}, warps=4, stages=2),
            "32": Launch({"BV": 64}, warps=4, stages=2),
            "64": Launch({"BV": 64}, warps=4, stages=2),
            "128": Launch({"BV": 32}, warps=4, stages=1),
            "256": Launch({"BV": 16}, warps=8, stages=1),
            **IN_FLOAT32,
        },
    },
)
PREPARING = LaunchTable(
    "gla: decays into q and k",
    {
        "any": {
            **{f"{key}": Launch({}, warps=4) for key in (16, 32, 64, 128)},
            "256": Launch({}, warps=8),
            **{f"{key} float32": Launch({}, warps=4) for key in (16, 32, 64)},
            **{f"{key} float32": Launch({}, warps=8) for key in (128, 256)},
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

    ``q``, ``k``, ``log_decay`` (log a ≤ 0) ``[B, H, T, K]``, ``v [B, H, T, V]``, sequences of one length,
    any strides; a view of ``[B, T, H, …]`` costs no copy. Gives y ``[B, H, T, V]`` in the type of ``v`` and S
    after the last position ``[B, H, K, V]`` in float32 or wider; ``state`` is S before the first; None: 0.

    On a GPU, where no gradient is asked for and K ≤ 256, one kernel; sums in float32, products of
    float16 and bfloat16 on the tensor cores. Else the reference, in float32 or wider, which compares
    ``chunk`` positions at once, with K decays for each pair, or all with None.
    """
    if runs_kernels(q, k, v, log_decay, state) and q.shape[-1] <= LARGEST_KEY and q.dtype != torch.float64:
        return _by_kernel(q, k, v, log_decay, state, keep_state)
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


def _by_kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    log_decay: torch.Tensor,
    state: torch.Tensor | None,
    keep_state: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    batch, heads, length, key = q.shape
    value = v.shape[-1]
    kind = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    y = empty_heads_inside(batch, heads, length, value, v)
    q, k, v, log_decay = with_rows(q.to(kind)), with_rows(k.to(kind)), with_rows(v.to(kind)), with_rows(log_decay)
    after = q.new_empty(batch, heads, key, value, dtype=torch.float32) if keep_state else None
    before = None if state is None else state.float().contiguous()
    chunks = triton.cdiv(length, CHUNK)
    sizes = {"K": key, "BK": padded(key), "C": CHUNK}
    read, written = (q.new_empty(batch, heads, length, key) for _ in range(2))
    scores = q.new_empty(batch, heads, chunks, CHUNK, CHUNK)  # filled where decays are strong
    scales = q.new_empty(batch, heads, chunks, 2, key, dtype=torch.float32)
    strong = q.new_empty(batch, heads, chunks, dtype=torch.int32)
    _multiply_decays[(chunks * batch * heads,)](
        *(q, k, log_decay, read, written, scores, scales, strong, length, heads),
        *(*q.stride()[:3], *k.stride()[:3], *log_decay.stride()[:3]),
        **sizes,
        RANGE=RANGE[kind],
        **PREPARING.at(q.device, key_class(key, kind)).arguments(),
    )
    launch = LAUNCHES.at(q.device, key_class(key, kind))
    _scan[(triton.cdiv(value, launch.blocks["BV"]) * batch * heads,)](
        *(read, written, v, scores, scales, strong, y, before, after, length, heads),
        *(*v.stride()[:3], *y.stride()[:3]),
        **sizes,
        V=value,
        **launch.arguments(),
    )
    return y, after


@jit
def _multiply_decays(
    q,
    k,
    log_decay,
    read,
    written,
    scores,
    scales,
    strong,
    length,
    heads,
    q_b,
    q_h,
    q_t,
    k_b,
    k_h,
    k_t,
    g_b,
    g_h,
    g_t,
    K: tl.constexpr,
    BK: tl.constexpr,
    RANGE: tl.constexpr,
    C: tl.constexpr,
):
    # One chunk of one head.
    chunks = tl.cdiv(length, C)
    place = tl.program_id(0).to(tl.int64)  # offsets may pass 2³¹
    pair, start = place // chunks, (place % chunks) * C
    b, h = pair // heads, pair % heads
    rows, keys = tl.arange(0, C), tl.arange(0, BK)
    in_key = keys < K
    here = (rows < length - start)[:, None] & in_key[None, :]
    q_at = q + b * q_b + h * q_h + (start + rows)[:, None] * q_t + keys[None, :]
    k_at = k + b * k_b + h * k_h + (start + rows)[:, None] * k_t + keys[None, :]
    g_at = log_decay + b * g_b + h * g_h + (start + rows)[:, None] * g_t + keys[None, :]
    out_at = (pair * length + start + rows)[:, None] * K + keys[None, :]
    kind = read.dtype.element_ty

    # 1. The running sum of the decays: a product, exact but for the rounding of float32.
    g_c = tl.load(g_at, mask=here, other=0.0)
    before = tl.where(rows[:, None] >= rows[None, :], 1.0, 0.0).to(g_c.dtype)
    sums = tl.dot(before, g_c, input_precision="tf32x3")
    whole = tl.min(sums, 0)
    q_c = tl.load(q_at, mask=here, other=0.0).to(tl.float32)
    k_c = tl.load(k_at, mask=here, other=0.0).to(tl.float32)
    # 2. Of keys: from each position to the chunk's end.
    tl.store(written + out_at, (k_c * tl.exp(whole[None, :] - sums)).to(kind), mask=here)
    # 3. Of queries: from the chunk's start, or back from its end, where the state takes the chunk's decay first.
    is_strong = tl.min(whole, 0) < -RANGE
    shift = tl.where(is_strong, 0.0, whole)
    tl.store(read + out_at, (q_c * tl.exp(sums - shift[None, :])).to(kind), mask=here)
    tl.store(scales + place * (2 * K) + keys, tl.exp(shift), mask=in_key)
    tl.store(scales + place * (2 * K) + K + keys, tl.exp(whole - shift), mask=in_key)
    tl.store(strong + place, is_strong.to(tl.int32))
    # 4. Pairs that no product gives, a key at a time from the last: q_i exp(G_i − G_j) takes one more decay
    # with each.
    if is_strong:
        decayed = tl.zeros([C, BK], dtype=tl.float32)
        last = tl.minimum(length - start, C) - 1
        for back in range(last + 1):
            j = last - back
            k_j = tl.load(k + b * k_b + h * k_h + (start + j) * k_t + keys, mask=in_key, other=0.0)
            g_j = tl.load(log_decay + b * g_b + h * g_h + (start + j) * g_t + keys, mask=in_key, other=0.0)
            decayed = tl.where((rows == j)[:, None], q_c, decayed)
            found = tl.sum(decayed * k_j.to(tl.float32)[None, :], 1)
            tl.store(scores + place * (C * C) + rows * C + j, found.to(kind))
            decayed *= tl.exp(g_j.to(tl.float32))[None, :]


@jit
def _scan(
    read,
    written,
    v,
    scores,
    scales,
    strong,
    y,
    before,
    after,
    length,
    heads,
    v_b,
    v_h,
    v_t,
    y_b,
    y_h,
    y_t,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    C: tl.constexpr,
    BV: tl.constexpr,
):
    # One head of one sequence, columns BV of V; the programs of a head are neighbours and share all but v.
    PARTS: tl.constexpr = (V + BV - 1) // BV
    pair = (tl.program_id(0) // PARTS).to(tl.int64)
    b, h = pair // heads, pair % heads
    rows, keys = tl.arange(0, C), tl.arange(0, BK)
    values = (tl.program_id(0) % PARTS) * BV + tl.arange(0, BV)
    far = rows.to(tl.int64)[:, None]
    in_key, in_value = keys < K, values < V
    at = (pair * length + far) * K + keys[None, :]
    read_at, written_at = read + at, written + at
    v_at = v + b * v_b + h * v_h + far * v_t + values[None, :]
    y_at = y + b * y_b + h * y_h + far * y_t + values[None, :]
    place = pair * tl.cdiv(length, C)
    kind = read.dtype.element_ty

    s_at = pair * (K * V) + keys[:, None] * V + values[None, :]
    in_state = in_key[:, None] & in_value[None, :]
    s = tl.zeros([BK, BV], dtype=tl.float32)
    if before is not None:
        s = tl.load(before + s_at, mask=in_state, other=0.0)

    for start in range(0, length, C):
        there = rows < length - start
        of_keys, of_values = there[:, None] & in_key[None, :], there[:, None] & in_value[None, :]
        q_c = tl.load(read_at, mask=of_keys, other=0.0)
        k_c = tl.load(written_at, mask=of_keys, other=0.0)
        v_c = tl.load(v_at, mask=of_values, other=0.0)
        first = tl.load(scales + place * (2 * K) + keys, mask=in_key, other=0.0)
        then = tl.load(scales + place * (2 * K) + K + keys, mask=in_key, other=0.0)
        # 1. The pairs within the chunk, then what the earlier chunks give.
        if tl.load(strong + place) == 0:
            pairs = tl.dot(q_c, tl.trans(k_c), input_precision="tf32x3").to(kind)
        else:
            pairs = tl.load(
                scores + place * (C * C) + rows[:, None] * C + rows[None, :], mask=there[None, :], other=0.0
            )
        pairs = tl.where(rows[:, None] >= rows[None, :], pairs, 0.0)
        y_c = tl.dot(pairs, v_c, input_precision="tf32x3")
        s *= first[:, None]
        y_c = tl.dot(q_c, s.to(kind), y_c, input_precision="tf32x3")
        tl.store(y_at, y_c.to(y.dtype.element_ty), mask=of_values)
        # 2. The state after the chunk.
        s = tl.dot(tl.trans(k_c), v_c, s * then[:, None], input_precision="tf32x3")
        read_at += C * K
        written_at += C * K
        v_at += C * v_t
        y_at += C * y_t
        place += 1

    if after is not None:
        tl.store(after + s_at, s, mask=in_state)
