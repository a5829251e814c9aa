"""Linear attention with the Taylor features of Based, which never reach memory.

φ(q)·φ(k) = 1 + s + s²/2 with s = q·k / √K, the second order of exp(s) (arXiv 2402.18668, section 3.1). Two
kernels, over segments of one length, wherever a sequence ends and however many there are. The first
(`argap.kernels.taylor_sums`) passes over the keys and writes Σ φ(k)ᵀv before each segment. The second, all
queries at once, reads that sum for what is before a query's segment, and compares it with the keys within,
where s is enough.

Legend: B batch, H heads, T positions, K key size, V value size, F = 1 + K + K² features, P of them in the kernels.
"""

from __future__ import annotations

import math

import torch

from argap.kernels.language import jit, runs_kernels, tl, triton
from argap.kernels.launch import Launch, LaunchTable
from argap.kernels.layout import empty_heads_inside, key_class, with_rows
from argap.kernels.linear_attention import SMALLEST_SUM, linear_attention_reference
from argap.kernels.taylor_sums import feature_table, sizes, sums_of_keys

LAUNCHES = LaunchTable(
    "taylor_attention",
    {
        "hopper": {
            "16": Launch({"C": 64, "BV": 64}, warps=4, stages=3),
            "32": Launch({"C": 64, "BV": 64}, warps=4, stages=2),
            "16 float32": Launch({"C": 32, "BV": 32}, warps=4, stages=2),
            "32 float32": Launch({"C": 32, "BV": 32}, warps=4, stages=2),
        },
        "any": {
            "16": Launch({"C": 64, "BV": 64}, warps=4, stages=2),
            "32": Launch({"C": 64, "BV": 64}, warps=4, stages=2),
            "16 float32": Launch({"C": 32, "BV": 32}, warps=4, stages=2),
            "32 float32": Launch({"C": 32, "BV": 32}, warps=4, stages=2),
        },
    },
)
LARGEST_KEY = 32


def taylor_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    state: torch.Tensor | None = None,
    normalize: bool = True,
    keep_state: bool = True,
    chunk: int | None = 64,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """y_t = Σ_{s≤t} w_ts v_s with w_ts = φ(q_t)·φ(k_s); with ``normalize`` divided by Σ_{s≤t} w_ts.

    ``q``, ``k`` ``[B, H, T, K]``, ``v [B, H, T, V]``, sequences of one length, any strides; a view of
    ``[B, T, H, …]`` costs no copy. Gives y ``[B, H, T, V]`` in the type of ``v`` and, in float32 or wider,
    Σ φ(k_s)ᵀ v_s over all positions, ``[B, H, F, V]``, with ``normalize`` ``[B, H, F, V + 1]``, whose last
    column is Σ φ(k_s); the features are those of `taylor_features`. ``state`` is the same before the
    first position; None: 0. Of it one of a product's two places is read, for they hold the same.

    On a GPU, where no gradient is asked for and K ≤ 32, one kernel; sums in float32, products of
    float16 and bfloat16 on the tensor cores. Else the reference, in float32 or wider, which compares
    ``chunk`` positions at once, or all with None.
    """
    if runs_kernels(q, k, v, state) and q.shape[-1] <= LARGEST_KEY and q.dtype != torch.float64:
        return _by_kernel(q, k, v, state, normalize, keep_state)
    return taylor_attention_reference(q, k, v, state=state, normalize=normalize, keep_state=keep_state, chunk=chunk)


def taylor_attention_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    state: torch.Tensor | None = None,
    normalize: bool = True,
    keep_state: bool = True,
    chunk: int | None = 64,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`taylor_attention` in PyTorch, with all the features, differentiable."""
    kind = torch.promote_types(q.dtype, torch.float32)
    features = taylor_features(q.to(kind)), taylor_features(k.to(kind))
    return linear_attention_reference(
        *features, v, state=state, normalize=normalize, keep_state=keep_state, chunk=chunk
    )


def taylor_features(x: torch.Tensor) -> torch.Tensor:
    """φ(x) = (1, x / K^¼, x ⊗ x / √(2K)): ``[..., K]`` to ``[..., F]``."""
    x = x * x.shape[-1] ** -0.25
    second = (x[..., :, None] * x[..., None, :]).flatten(-2) * math.sqrt(0.5)
    return torch.cat([torch.ones_like(x[..., :1]), x, second], dim=-1)


def _by_kernel(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    state: torch.Tensor | None,
    normalize: bool,
    keep_state: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    batch, heads, length, key = q.shape
    value = v.shape[-1]
    kind = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    y = empty_heads_inside(batch, heads, length, value, v)
    q, k, v = (with_rows(x.to(kind)) for x in (q, k, v))
    table, factor = feature_table(key, q.device)
    sums = sums_of_keys(k, v, state, normalize=normalize, keep_state=keep_state)
    launch = LAUNCHES.at(q.device, key_class(key, kind))
    programs = triton.cdiv(length, launch.blocks["C"]) * triton.cdiv(value, launch.blocks["BV"])
    _attend[(programs * batch * heads,)](
        *(q, k, v, y, sums.passed, sums.passed_keys, table, length, heads, sums.first_read),
        *(*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *y.stride()[:3]),
        **sizes(key, value, len(factor)),
        SMALLEST=SMALLEST_SUM,
        **launch.arguments(),
    )
    return y, sums.after


@jit
def _attend(
    q,
    k,
    v,
    y,
    passed,
    passed_keys,
    table,
    length,
    heads,
    first_read,
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
    K: tl.constexpr,
    V: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    BK: tl.constexpr,
    L: tl.constexpr,
    SMALLEST: tl.constexpr,
    C: tl.constexpr,
    BV: tl.constexpr,
):
    # C queries of one head, columns BV of V; the programs of a head are neighbours.
    PARTS: tl.constexpr = (V + BV - 1) // BV
    tiles = tl.cdiv(length, C)
    pair = (tl.program_id(0) // (PARTS * tiles)).to(tl.int64)  # offsets may pass 2³¹
    program = tl.program_id(0) % (PARTS * tiles)
    start = (program // PARTS) * C
    segment = start // L
    b, h = pair // heads, pair % heads
    values = (program % PARTS) * BV + tl.arange(0, BV)
    rows, keys = tl.arange(0, C), tl.arange(0, BK)
    in_key, in_value = keys < K, values < V
    kind = q.dtype.element_ty
    queries = (start + rows).to(tl.int64)
    there = queries < length
    q_at = q + b * q_b + h * q_h + queries[:, None] * q_t + keys[None, :]
    q_c = tl.load(q_at, mask=there[:, None] & in_key[None, :], other=0.0)
    y_c = tl.zeros([C, BV], dtype=tl.float32)
    total = tl.zeros([C], dtype=tl.float32)

    # 1. What is before the segment, by features.
    if segment >= first_read:
        for group in tl.static_range(P // G):
            features = group * G + tl.arange(0, G)
            place = (pair * tl.cdiv(length, L) + segment) * P + features
            s = tl.load(passed + place[:, None] * V + values[None, :], mask=in_value[None, :], other=0.0)
            first, second = tl.load(table + features), tl.load(table + P + features)
            pick_first = tl.where(keys[:, None] == first[None, :], 1.0, 0.0).to(kind)
            pick_second = tl.where(keys[:, None] == second[None, :], 1.0, 0.0).to(kind)
            made = tl.dot(q_c, pick_first, input_precision="tf32x3")
            other = tl.dot(q_c, pick_second, input_precision="tf32x3")
            if (group + 1) * G > K * (K + 1) // 2:  # a group that holds more than products of two
                made += tl.where(first == -1, 1.0, 0.0)[None, :]
                other += tl.where(second == -1, 1.0, 0.0)[None, :]
            made *= other
            y_c = tl.dot(made.to(kind), s, y_c, input_precision="tf32x3")
            if passed_keys is not None:
                total += tl.sum(made * tl.load(passed_keys + place)[None, :], 1)

    # 2. The keys of the segment before these queries: 1 + s + s²/2 = (s + 1)²/2 + 1/2.
    HALF: tl.constexpr = 0.5**0.5
    from_key = (segment * L + rows).to(tl.int64)[:, None]
    k_at = k + b * k_b + h * k_h + from_key * k_t + keys[None, :]
    v_at = v + b * v_b + h * v_h + from_key * v_t + values[None, :]
    for _ in range(segment * L, start, C):
        k_c = tl.load(k_at, mask=in_key[None, :], other=0.0)
        v_c = tl.load(v_at, mask=in_value[None, :], other=0.0)
        scores = tl.dot(q_c, tl.trans(k_c), input_precision="tf32x3") * (HALF * K**-0.5) + HALF
        scores = scores * scores + 0.5
        y_c = tl.dot(scores.to(kind), v_c, y_c, input_precision="tf32x3")
        total += tl.sum(scores, 1)
        k_at += C * k_t
        v_at += C * v_t
    # 3. And those among them.
    k_c = tl.load(k_at, mask=there[:, None] & in_key[None, :], other=0.0)
    v_c = tl.load(v_at, mask=there[:, None] & in_value[None, :], other=0.0)
    scores = tl.dot(q_c, tl.trans(k_c), input_precision="tf32x3") * (HALF * K**-0.5) + HALF
    scores = tl.where(rows[:, None] >= rows[None, :], scores * scores + 0.5, 0.0)
    y_c = tl.dot(scores.to(kind), v_c, y_c, input_precision="tf32x3")
    total += tl.sum(scores, 1)

    if passed_keys is not None:
        y_c = y_c / tl.maximum(total, SMALLEST)[:, None]
    y_at = y + b * y_b + h * y_h + queries[:, None] * y_t + values[None, :]
    tl.store(y_at, y_c.to(y.dtype.element_ty), mask=there[:, None] & in_value[None, :])
