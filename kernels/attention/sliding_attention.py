"""Sliding-window attention: each position sees itself and the w − 1 before.

One program attends from a block of queries to the blocks of keys in their windows and keeps the softmax's largest
logit and sum as it goes (arXiv 2307.08691, algorithm 1). Only blocks cut by a window or the diagonal are masked.

Legend: B batch, H heads, G of keys and values, T positions, K key and value size, w window, BM queries and BN keys
per block.
"""

# Inside kernels types are Triton's, which come without stubs.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from argap.kernels.launch import (
    Launch,
    LaunchTable,
    block_size,
    common_dtype,
    jit,
    key_class,
    rows,
    runs_kernels,
    strided,
    tl,
    triton,
    unit_stride,
)
from argap.kernels.recurrent.recurrence import for_each_head, in_chunks

_IN_FLOAT32 = {
    **dict.fromkeys(("16 float32", "32 float32", "64 float32"), Launch({"BM": 64, "BN": 32}, warps=4, stages=1)),
    **dict.fromkeys(("128 float32", "256 float32"), Launch({"BM": 32, "BN": 32}, warps=4, stages=1)),
}
LAUNCHES = LaunchTable(
    "sliding_attention",
    {
        "hopper": {
            **dict.fromkeys(("16", "32", "64", "128"), Launch({"BM": 64, "BN": 64}, warps=4, stages=3)),
            "256": Launch({"BM": 128, "BN": 64}, warps=8, stages=2),
            **_IN_FLOAT32,
        },
        "any": {
            **dict.fromkeys(("16", "32", "64"), Launch({"BM": 64, "BN": 64}, warps=4, stages=2)),
            "128": Launch({"BM": 64, "BN": 32}, warps=4, stages=2),
            "256": Launch({"BM": 32, "BN": 32}, warps=4, stages=1),
            **_IN_FLOAT32,
        },
    },
)
LARGEST_KEY = 256


def sliding_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, *, scale: float | None = None
) -> torch.Tensor:
    """Compute softmax attention over the last ``window`` positions.

    Args:
        q: ``[B, H, T, K]``, any strides; a view of ``[B, T, H, K]`` costs no copy.
        k, v: ``[B, G, T, K]``, each for H / G neighbouring heads, any strides.
        window: w ≥ 1.
        scale: of the logits; None: 1/√K.

    Returns:
        ``[B, H, T, K]`` in the dtype of ``v``; in memory it is ``[B, T, H, K]``.

    Runs a kernel on a GPU if no gradient is needed and K ≤ 256: logits and sums in float32, products of float16 and
    bfloat16 on the tensor cores. Otherwise runs the reference.
    """
    B, H, T, K = q.shape
    factor = K**-0.5 if scale is None else scale
    dtype = common_dtype(q, k, v)
    if not runs_kernels(q, k, v) or K > LARGEST_KEY or dtype == torch.float64:
        return sliding_attention_reference(q, k, v, window, scale=factor)
    y = v.new_empty(B, T, H, K).transpose(1, 2)
    q, k, v = (unit_stride(x.to(dtype)) for x in (q, k, v))
    launch = LAUNCHES.at(q.device, key_class(K, dtype))
    _attend_kernel[(triton.cdiv(T, launch.blocks["BM"]), B * H)](
        *(*strided(q, k, v, y, dims=3), T, H, H // k.shape[1], window, factor * math.log2(math.e)),
        K=K,
        BK=block_size(K),
        **launch.arguments(),
    )
    return y


def sliding_attention_reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, *, scale: float | None = None
) -> torch.Tensor:
    """Compute `sliding_attention` in blocks of ``window`` queries, in PyTorch: time and memory grow as T·w."""
    heads, length = q.shape[1:3]
    k, v = (for_each_head(x, heads) for x in (k, v))
    q, k, v = (in_chunks(x, window) for x in (q, k, v))
    k, v = (torch.cat([F.pad(x, (0, 0, 0, 0, 1, 0))[:, :, :-1], x], dim=-2) for x in (k, v))
    query = torch.arange(window, device=q.device)[:, None]
    key = torch.arange(2 * window, device=q.device)  # the previous block, then the block itself
    mask = ((key > query) & (key <= query + window)).repeat(q.shape[2], 1, 1)
    mask[0, :, :window] = False  # nothing precedes the first block
    q, k, v = (x.flatten(1, 2) for x in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.repeat(heads, 1, 1), scale=scale)
    return y.unflatten(1, (heads, -1)).flatten(2, 3)[:, :, :length]


@jit
def _attend_kernel(
    q, k, v, y, T, H, R, W, scale, K: tl.constexpr, BK: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    # BM queries of one head; R heads share keys and values. Logits are in units of log 2.
    i_bh = tl.program_id(1).to(tl.int64)
    i_b, i_h = i_bh // H, i_bh % H
    start = tl.program_id(0) * BM
    o_m, o_k = start + tl.arange(0, BM), tl.arange(0, BK)
    m_m, m_k = (o_m < T)[:, None], (o_k < K)[None, :]
    p_q = rows(q, i_b, i_h, o_m.to(tl.int64)[:, None], o_k)
    p_k = k[0] + i_b * k[1] + i_h // R * k[2]
    p_v = v[0] + i_b * v[1] + i_h // R * v[2]
    b_q = tl.load(p_q, mask=m_m & m_k, other=0.0)
    b_y = tl.zeros([BM, BK], dtype=tl.float32)
    b_top = tl.full([BM], float("-inf"), dtype=tl.float32)
    b_sum = tl.zeros([BM], dtype=tl.float32)
    # 1. Blocks of keys that the windows' beginnings cut, from the first query's to the last one's.
    first = tl.maximum(start - W + 1, 0) // BN * BN
    inside = tl.minimum(tl.maximum(tl.cdiv(tl.maximum(start + BM - W, 0), BN) * BN, first), start)
    for at in range(first, inside, BN):
        b_y, b_top, b_sum = _attend(b_q, p_k, p_v, k, v, at, o_m, o_k, m_k, T, W, scale, b_y, b_top, b_sum, True, BN)
    # 2. Blocks that all queries see.
    for at in range(inside, start, BN):
        b_y, b_top, b_sum = _attend(b_q, p_k, p_v, k, v, at, o_m, o_k, m_k, T, W, scale, b_y, b_top, b_sum, False, BN)
    # 3. Blocks on the diagonal.
    for at in range(start, tl.minimum(start + BM, T), BN):
        b_y, b_top, b_sum = _attend(b_q, p_k, p_v, k, v, at, o_m, o_k, m_k, T, W, scale, b_y, b_top, b_sum, True, BN)
    p_y = rows(y, i_b, i_h, o_m.to(tl.int64)[:, None], o_k)
    b_sum = tl.where(b_sum == 0, 1.0, b_sum)  # of rows past the end, which see nothing
    tl.store(p_y, (b_y / b_sum[:, None]).to(y[0].dtype.element_ty), mask=m_m & m_k)


@jit
def _attend(
    b_q,
    p_k,
    p_v,
    k,
    v,
    at,
    o_m,
    o_k,
    m_k,
    T,
    W,
    scale,
    b_y,
    b_top,
    b_sum,
    MASKED: tl.constexpr,
    BN: tl.constexpr,
):
    # Takes a block of keys into the output, the largest logit and the sum of weights.
    o_n = at + tl.arange(0, BN)
    o_n64 = o_n.to(tl.int64)[:, None]
    m_n = m_k
    if MASKED:
        m_n = (o_n < T)[:, None] & m_k
    b_k = tl.load(p_k + o_n64 * k[3] + o_k[None, :], mask=m_n, other=0.0)
    b_v = tl.load(p_v + o_n64 * v[3] + o_k[None, :], mask=m_n, other=0.0)
    b_s = tl.dot(b_q, tl.trans(b_k), input_precision="tf32x3") * scale
    if MASKED:
        back = o_m[:, None] - o_n[None, :]
        b_s = tl.where((back >= 0) & (back < W), b_s, float("-inf"))
    b_new = tl.maximum(b_top, tl.max(b_s, 1))
    b_at = b_new
    if MASKED:
        b_at = tl.where(b_new == float("-inf"), 0.0, b_new)  # no key yet
    b_p = tl.exp2(b_s - b_at[:, None])
    b_kept = tl.exp2(b_top - b_at)
    b_sum = b_sum * b_kept + tl.sum(b_p, 1)
    b_y = tl.dot(b_p.to(b_v.dtype), b_v, b_y * b_kept[:, None], input_precision="tf32x3")
    return b_y, b_new, b_sum
