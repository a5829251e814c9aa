"""Linear attention with the Taylor feature map of Based; the features never reach memory.

φ(q)·φ(k) = 1 + s + s²/2 with s = q·k / √K, the second-order Taylor polynomial of exp(s) (arXiv 2402.18668, section
3.1). Two kernels work over segments of L positions, which start at the same positions for any T. The first
(`argap.kernels.recurrent.taylor_sums`) passes over the keys and writes Σ φ(k)ᵀv before each segment. The second handles
all queries at once: it reads that sum for everything before a query's segment and compares the query directly with the
keys inside the segment, which needs only s.

Legend: B batch, H heads, T positions, L positions per segment, K key size, V value size, F = 1 + K + K² features, P
distinct features (padded) in the kernels.
"""

from __future__ import annotations

import math

import torch

from argap.kernels.launch import HeadTensors, Launch, LaunchTable, jit, rows, runs_kernels, strided, tl, triton
from argap.kernels.recurrent.linear_attention import SMALLEST_SUM, linear_attention_reference
from argap.kernels.recurrent.taylor_sums import feature_table, sums_of_keys

_IN_FLOAT32 = dict.fromkeys(("16 float32", "32 float32"), Launch({"BT": 32, "BV": 32}, warps=4, stages=2))
LAUNCHES = LaunchTable(
    "taylor_attention",
    {
        "hopper": {
            "16": Launch({"BT": 64, "BV": 64}, warps=4, stages=3),
            "32": Launch({"BT": 64, "BV": 64}, warps=4, stages=2),
            **_IN_FLOAT32,
        },
        "any": {**dict.fromkeys(("16", "32"), Launch({"BT": 64, "BV": 64}, warps=4, stages=2)), **_IN_FLOAT32},
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
    """Compute y_t = Σ_{s≤t} w_ts v_s with w_ts = φ(q_t)·φ(k_s), divided by Σ_{s≤t} w_ts with ``normalize``.

    Args:
        q, k: ``[B, H, T, K]``, any strides; a view of ``[B, T, H, K]`` costs no copy.
        v: ``[B, H, T, V]``, any strides.
        state: Σ φ(k_s)ᵀ v_s over earlier positions, ``[B, H, F, V]``, or ``[B, H, F, V + 1]`` with ``normalize``, whose
            last column is Σ φ(k_s); None: 0. Features are ordered as in `taylor_features`; the second-order part is
            symmetric, and the kernels read only one triangle of it.
        keep_state: return the state after the last position.
        chunk: positions that the reference compares at once; None: all.

    Returns:
        y ``[B, H, T, V]`` in the dtype of ``v``, and the state after the last position in float32 or wider, or None.

    Runs kernels on a GPU if no gradient is needed and K ≤ 32: sums in float32, products of float16 and bfloat16 on the
    tensor cores. Otherwise runs the reference, in float32 or wider.
    """
    if not runs_kernels(q, k, v, state) or q.shape[-1] > LARGEST_KEY or q.dtype == torch.float64:
        options = {"normalize": normalize, "keep_state": keep_state, "chunk": chunk}
        return taylor_attention_reference(q, k, v, state=state, **options)
    x = HeadTensors.of(q, k, v, state)
    _, H, T, K, _ = x.shape
    table, _ = feature_table(K, x.q.device)
    sums = sums_of_keys(x, normalize=normalize, keep_state=keep_state)
    launch = LAUNCHES.at(x.q.device, x.shape_class)
    _attend_kernel[(triton.cdiv(T, launch.blocks["BT"]) * x.programs(launch),)](
        *strided(x.q, x.k, x.v, x.y, dims=3),
        *(sums.before, sums.keys_before, table, T, H, sums.first_segment),
        **sums.sizes,
        SMALLEST=SMALLEST_SUM,
        **launch.arguments(),
    )
    return x.y, sums.ht


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
    """Compute `taylor_attention` in PyTorch with all F features in memory; differentiable."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    features = taylor_features(q.to(dtype)), taylor_features(k.to(dtype))
    return linear_attention_reference(
        *features, v, state=state, normalize=normalize, keep_state=keep_state, chunk=chunk
    )


def taylor_features(x: torch.Tensor) -> torch.Tensor:
    """Compute φ(x) = (1, x / K^¼, x ⊗ x / √(2K)): ``[..., K]`` to ``[..., F]``."""
    x = x * x.shape[-1] ** -0.25
    second = (x[..., :, None] * x[..., None, :]).flatten(-2) * math.sqrt(0.5)
    return torch.cat([torch.ones_like(x[..., :1]), x, second], dim=-1)


@jit
def _attend_kernel(
    q,
    k,
    v,
    y,
    before,
    keys_before,
    table,
    T,
    H,
    first_segment,
    K: tl.constexpr,
    V: tl.constexpr,
    P: tl.constexpr,
    BP: tl.constexpr,
    BK: tl.constexpr,
    L: tl.constexpr,
    SMALLEST: tl.constexpr,
    BT: tl.constexpr,
    BV: tl.constexpr,
):
    # BT queries of one head and BV columns of V; the programs of a head are neighbours in the grid.
    NV: tl.constexpr = (V + BV - 1) // BV
    NT = tl.cdiv(T, BT)
    i_bh = (tl.program_id(0) // (NV * NT)).to(tl.int64)  # offsets may exceed 2³¹
    i_tv = tl.program_id(0) % (NV * NT)
    start = (i_tv // NV) * BT
    i_l = start // L
    i_b, i_h = i_bh // H, i_bh % H
    o_v = (i_tv % NV) * BV + tl.arange(0, BV)
    o_t, o_k = tl.arange(0, BT), tl.arange(0, BK)
    m_k, m_v = o_k < K, o_v < V
    dtype = q[0].dtype.element_ty
    o_q = (start + o_t).to(tl.int64)
    m_t = o_q < T
    p_q = rows(q, i_b, i_h, o_q[:, None], o_k)
    b_q = tl.load(p_q, mask=m_t[:, None] & m_k[None, :], other=0.0)
    b_y = tl.zeros([BT, BV], dtype=tl.float32)
    b_total = tl.zeros([BT], dtype=tl.float32)

    # 1. Everything before the segment, by features: φ = (q A + a) ⊙ (q B + b), where A and B select one column each.
    if i_l >= first_segment:
        for i_g in tl.static_range(P // BP):
            o_p = i_g * BP + tl.arange(0, BP)
            o_h = (i_bh * tl.cdiv(T, L) + i_l) * P + o_p
            b_h = tl.load(before + o_h[:, None] * V + o_v[None, :], mask=m_v[None, :], other=0.0)
            b_first, b_second = tl.load(table + o_p), tl.load(table + P + o_p)
            b_pick_first = tl.where(o_k[:, None] == b_first[None, :], 1.0, 0.0).to(dtype)
            b_pick_second = tl.where(o_k[:, None] == b_second[None, :], 1.0, 0.0).to(dtype)
            b_phi = tl.dot(b_q, b_pick_first, input_precision="tf32x3")
            b_other = tl.dot(b_q, b_pick_second, input_precision="tf32x3")
            if (i_g + 1) * BP > K * (K + 1) // 2:  # the group has features other than products of two elements
                b_phi += tl.where(b_first == -1, 1.0, 0.0)[None, :]
                b_other += tl.where(b_second == -1, 1.0, 0.0)[None, :]
            b_phi *= b_other
            b_y = tl.dot(b_phi.to(dtype), b_h, b_y, input_precision="tf32x3")
            if keys_before is not None:
                b_total += tl.sum(b_phi * tl.load(keys_before + o_h)[None, :], 1)

    # 2. The segment's keys before these queries: 1 + s + s²/2 = (s + 1)²/2 + 1/2.
    HALF: tl.constexpr = 0.5**0.5
    o_s = (i_l * L + o_t).to(tl.int64)[:, None]
    p_k = rows(k, i_b, i_h, o_s, o_k)
    p_v = rows(v, i_b, i_h, o_s, o_v)
    for _ in range(i_l * L, start, BT):
        b_k = tl.load(p_k, mask=m_k[None, :], other=0.0)
        b_v = tl.load(p_v, mask=m_v[None, :], other=0.0)
        b_s = tl.dot(b_q, tl.trans(b_k), input_precision="tf32x3") * (HALF * K**-0.5) + HALF
        b_s = b_s * b_s + 0.5
        b_y = tl.dot(b_s.to(dtype), b_v, b_y, input_precision="tf32x3")
        b_total += tl.sum(b_s, 1)
        p_k += BT * k[3]
        p_v += BT * v[3]
    # 3. The keys at these queries' own positions.
    b_k = tl.load(p_k, mask=m_t[:, None] & m_k[None, :], other=0.0)
    b_v = tl.load(p_v, mask=m_t[:, None] & m_v[None, :], other=0.0)
    b_s = tl.dot(b_q, tl.trans(b_k), input_precision="tf32x3") * (HALF * K**-0.5) + HALF
    b_s = tl.where(o_t[:, None] >= o_t[None, :], b_s * b_s + 0.5, 0.0)
    b_y = tl.dot(b_s.to(dtype), b_v, b_y, input_precision="tf32x3")
    b_total += tl.sum(b_s, 1)

    # 4. Normalize and store.
    if keys_before is not None:
        b_y = b_y / tl.maximum(b_total, SMALLEST)[:, None]
    p_y = rows(y, i_b, i_h, o_q[:, None], o_v)
    tl.store(p_y, b_y.to(y[0].dtype.element_ty), mask=m_t[:, None] & m_v[None, :])
