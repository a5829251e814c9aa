"""The sums over keys that Taylor attention reads: Σ φ(k)ᵀv before each segment, and over all positions.

Of the K² products of two elements of a key, only the K(K + 1)/2 distinct ones are formed, in groups of `GROUP`, one
program per group. Features are formed as (k A + a) ⊙ (k B + b), where A and B select one column each: exact, and on
the tensor cores.

Legend: B batch, H heads, T positions, L = `SEGMENT`, N = ⌈T / L⌉ segments, K key size, V value size,
F = 1 + K + K² features, P = 1 + K + K(K + 1)/2 distinct ones, padded to a multiple of `GROUP`.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from argap.kernels.launch import HeadTensors, Launch, LaunchTable, block_size, jit, rows, strided, tl, triton

SEGMENT = 512
GROUP = 64

_IN_FLOAT32 = dict.fromkeys(("16 float32", "32 float32"), Launch({"BT": 32, "BV": 32}, warps=4, stages=2))
LAUNCHES = LaunchTable(
    "taylor_attention: sums of keys",
    {
        "hopper": {
            "16": Launch({"BT": 32, "BV": 64}, warps=4, stages=3),
            "32": Launch({"BT": 64, "BV": 64}, warps=4, stages=3),
            **_IN_FLOAT32,
        },
        "any": {**dict.fromkeys(("16", "32"), Launch({"BT": 64, "BV": 64}, warps=4, stages=3)), **_IN_FLOAT32},
    },
)


class Sums(NamedTuple):
    """The result of `sums_of_keys`."""

    before: torch.Tensor
    """Σ φ(k)ᵀv before each segment, ``[B, H, N, P, V]``, with φ's factors for q and k both applied."""
    keys_before: torch.Tensor | None
    """Σ φ(k) before each segment, ``[B, H, N, P]`` float32; None without ``normalize``."""
    ht: torch.Tensor | None
    """The state after the last position, as returned by `argap.kernels.recurrent.taylor_attention.taylor_attention`."""
    first_segment: int
    """The first segment with anything before it; ``before`` is not written for earlier ones."""
    sizes: dict[str, int]
    """The sizes for which both kernels of Taylor attention are compiled."""


def sums_of_keys(x: HeadTensors, *, normalize: bool, keep_state: bool) -> Sums:
    """Sum over ``x.k`` and ``x.v``, continuing from the state ``x.h0``.

    ``normalize`` and ``keep_state`` are those of `argap.kernels.recurrent.taylor_attention.taylor_attention`.
    """
    B, H, T, K, V = x.shape
    table, factor = feature_table(K, x.k.device)
    P, N = len(factor), triton.cdiv(T, SEGMENT)
    sizes = {"K": K, "V": V, "P": P, "BP": GROUP, "BK": block_size(K), "L": SEGMENT}
    ht = x.new_state(1 + K + K**2, V + normalize) if keep_state else None
    before = x.k.new_empty(B, H, N, P, V)
    keys_before = x.k.new_empty(B, H, N, P, dtype=torch.float32) if normalize else None
    first_segment = 0 if x.h0 is not None else 1
    if keep_state or first_segment < N:
        launch = LAUNCHES.at(x.k.device, x.shape_class)
        last = T if keep_state else (N - 1) * SEGMENT + 1
        _sum_keys_kernel[(P // GROUP * x.programs(launch),)](
            *(*strided(x.k, x.v, dims=3), x.h0, ht, before, keys_before, table, factor, T, H, last),
            **sizes,
            **launch.arguments(),
        )
    return Sums(before, keys_before, ht, first_segment, sizes)


@cache
def feature_table(key: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """List the P features of a key of size ``key``, in the order of the kernels.

    Returns int32 ``[4, P]``: the indices of the two elements whose product is the feature (−1 for the constant 1, −2
    for padding), and its one or two indices among the F features. Also returns float32 ``[P]``: its factor in φ.
    """
    low, second = key**-0.25, 1 + key
    rows = [
        (a, b, second + a * key + b, second + b * key + a, (2 * key) ** -0.5) for a in range(key) for b in range(a + 1)
    ]
    rows += [(a, -1, 1 + a, 1 + a, low) for a in range(key)]
    rows += [(-1, -1, 0, 0, 1.0)]
    rows += [(-2, -2, 0, 0, 1.0)] * (-len(rows) % GROUP)
    table = torch.tensor([row[:4] for row in rows], dtype=torch.int32, device=device).T.contiguous()
    return table, torch.tensor([row[4] for row in rows], dtype=torch.float32, device=device)


@jit
def _sum_keys_kernel(
    k,
    v,
    h0,
    ht,
    before,
    keys_before,
    table,
    factor,
    T,
    H,
    last,
    K: tl.constexpr,
    V: tl.constexpr,
    P: tl.constexpr,
    BP: tl.constexpr,
    BK: tl.constexpr,
    L: tl.constexpr,
    BT: tl.constexpr,
    BV: tl.constexpr,
):
    # BP features and BV columns of V of one head; the programs of a head are neighbours in the grid.
    NV: tl.constexpr = (V + BV - 1) // BV
    i_bh = (tl.program_id(0) // (NV * (P // BP))).to(tl.int64)  # offsets may exceed 2³¹
    i_pv = tl.program_id(0) % (NV * (P // BP))
    i_b, i_h = i_bh // H, i_bh % H
    o_p = (i_pv // NV) * BP + tl.arange(0, BP)
    o_v = (i_pv % NV) * BV + tl.arange(0, BV)
    o_t, o_k = tl.arange(0, BT), tl.arange(0, BK)
    o_t64 = o_t.to(tl.int64)[:, None]
    p_k = rows(k, i_b, i_h, o_t64, o_k)
    p_v = rows(v, i_b, i_h, o_t64, o_v)
    m_k, m_v = o_k < K, o_v < V
    dtype = k[0].dtype.element_ty

    # 1. What forms the features: A, a, B and b, for the columns of kᵀ, so that no product needs transposing.
    b_first, b_second = tl.load(table + o_p), tl.load(table + P + o_p)
    b_pick_first = tl.where(b_first[:, None] == o_k[None, :], 1.0, 0.0).to(dtype)
    b_pick_second = tl.where(b_second[:, None] == o_k[None, :], 1.0, 0.0).to(dtype)
    b_one_first, b_one_second = tl.where(b_first == -1, 1.0, 0.0), tl.where(b_second == -1, 1.0, 0.0)
    # φ(q)·φ(k) has the feature's factor squared, and a product of two different elements twice.
    b_factor = tl.load(factor + o_p)
    b_weight = b_factor * b_factor * tl.where((b_second >= 0) & (b_first != b_second), 2.0, 1.0)

    # 2. The initial sums, kept without the features' factors: b_h of φ(k)ᵀv, b_z of φ(k) (the same in every program
    #    of these features). b_phis collects φ(k) of the positions since; its rows are summed only where needed.
    COLUMNS: tl.constexpr = V if keys_before is None else V + 1
    m_h = (b_first > -2)[:, None] & m_v[None, :]
    o_state = i_bh * ((1 + K + K * K) * COLUMNS)
    b_h = tl.zeros([BP, BV], dtype=tl.float32)
    b_z = tl.zeros([BP], dtype=tl.float32)
    b_phis = tl.zeros([BP, BT], dtype=tl.float32)
    if h0 is not None:
        o_f = tl.load(table + 2 * P + o_p)
        p_h = h0 + o_state + o_f[:, None] * COLUMNS + o_v[None, :]
        b_h = tl.load(p_h, mask=m_h, other=0.0) / b_factor[:, None]
        if keys_before is not None:
            b_z = tl.load(h0 + o_state + o_f * COLUMNS + V, mask=b_first > -2, other=0.0) / b_factor

    for start in range(0, last, BT):
        # 3. At the start of a segment, store the sums before it.
        if start % L == 0:
            o_row = (i_bh * tl.cdiv(T, L) + start // L) * P + o_p
            p_before = before + o_row[:, None] * V + o_v[None, :]
            tl.store(p_before, (b_h * b_weight[:, None]).to(dtype), mask=m_v[None, :])
            if keys_before is not None:
                tl.store(keys_before + o_row, (b_z + tl.sum(b_phis, 1)) * b_weight)
        # 4. Form the chunk's features and add them.
        m_t = o_t < T - start
        b_k = tl.load(p_k, mask=m_t[:, None] & m_k[None, :], other=0.0)
        b_v = tl.load(p_v, mask=m_t[:, None] & m_v[None, :], other=0.0)
        b_phi = tl.dot(b_pick_first, tl.trans(b_k), input_precision="tf32x3") + b_one_first[:, None]
        b_phi *= tl.dot(b_pick_second, tl.trans(b_k), input_precision="tf32x3") + b_one_second[:, None]
        b_h = tl.dot(b_phi.to(dtype), b_v, b_h, input_precision="tf32x3")
        if keys_before is not None:
            b_phis += b_phi
        p_k += BT * k[3]
        p_v += BT * v[3]

    if ht is not None:
        # 5. The final state. The zeros that pad the last chunk count only in the constant feature.
        padding = tl.cdiv(T, BT) * BT - T
        b_z += tl.sum(b_phis, 1) - tl.where(b_first == -1, padding.to(tl.float32), 0.0)
        # A product of two different elements is two of the F features; for the others both indices are equal.
        for i in tl.static_range(2, 4):
            o_f = tl.load(table + i * P + o_p)
            p_h = ht + o_state + o_f[:, None] * COLUMNS + o_v[None, :]
            tl.store(p_h, b_h * b_factor[:, None], mask=m_h)
            if keys_before is not None:
                tl.store(ht + o_state + o_f * COLUMNS + V, b_z * b_factor, mask=b_first > -2)
