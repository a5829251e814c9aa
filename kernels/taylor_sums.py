"""Sums over the keys that Taylor attention reads: Σ φ(k)ᵀv before each segment, and over all.

Of the K² products of two elements of a key the K(K + 1)/2 that differ are taken, in groups of `GROUP`, a program
each. Features are made as (x A + a) ⊙ (x B + b), where A and B pick a column each: exact, and on the tensor cores.

Legend: B batch, H heads, T positions, L = `SEGMENT`, N = ⌈T / L⌉ segments, K key size, V value size,
F = 1 + K + K² features, P of them here: 1 + K + K(K + 1)/2, filled up to a multiple of `GROUP`.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from argap.kernels.language import jit, tl, triton
from argap.kernels.launch import Launch, LaunchTable
from argap.kernels.layout import key_class, padded

SEGMENT = 512
GROUP = 64

LAUNCHES = LaunchTable(
    "taylor_attention: sums of keys",
    {
        "hopper": {
            "16": Launch({"C": 32, "BV": 64}, warps=4, stages=3),
            "32": Launch({"C": 64, "BV": 64}, warps=4, stages=3),
            "16 float32": Launch({"C": 32, "BV": 32}, warps=4, stages=2),
            "32 float32": Launch({"C": 32, "BV": 32}, warps=4, stages=2),
        },
        "any": {
            "16": Launch({"C": 64, "BV": 64}, warps=4, stages=3),
            "32": Launch({"C": 64, "BV": 64}, warps=4, stages=3),
            "16 float32": Launch({"C": 32, "BV": 32}, warps=4, stages=2),
            "32 float32": Launch({"C": 32, "BV": 32}, warps=4, stages=2),
        },
    },
)


class Sums(NamedTuple):
    """What `sums_of_keys` gives."""

    passed: torch.Tensor
    """Σ φ(k)ᵀv before each segment, ``[B, H, N, P, V]``, without the features' factors but with their weights."""
    passed_keys: torch.Tensor | None
    """Σ φ(k) before each segment, ``[B, H, N, P]`` float32; None unless it was asked for."""
    after: torch.Tensor | None
    """The state after the last position, as `argap.kernels.taylor_attention.taylor_attention` gives it."""
    first_read: int
    """The first segment that anything is before: earlier ones of ``passed`` are not written."""


def sums_of_keys(
    k: torch.Tensor, v: torch.Tensor, state: torch.Tensor | None, *, normalize: bool, keep_state: bool
) -> Sums:
    """``k [B, H, T, K]`` and ``v [B, H, T, V]`` of one type, rows at unit stride; ``state`` and the rest as
    `argap.kernels.taylor_attention.taylor_attention` takes them."""
    batch, heads, length, key = k.shape
    value = v.shape[-1]
    table, factor = feature_table(key, k.device)
    before = None if state is None else state.float().contiguous()
    after = None
    if keep_state:
        after = k.new_empty(batch, heads, 1 + key + key**2, value + normalize, dtype=torch.float32)
    segments = triton.cdiv(length, SEGMENT)
    passed = k.new_empty(batch, heads, segments, len(factor), value)
    passed_keys = k.new_empty(batch, heads, segments, len(factor), dtype=torch.float32) if normalize else None
    first_read = 0 if before is not None else 1
    if keep_state or segments > first_read:
        launch = LAUNCHES.at(k.device, key_class(key, k.dtype))
        programs = len(factor) // GROUP * triton.cdiv(value, launch.blocks["BV"])
        _sum_keys[(programs * batch * heads,)](
            *(k, v, before, after, passed, passed_keys, table, factor, length, heads),
            *(length if keep_state else (segments - 1) * SEGMENT + 1, *k.stride()[:3], *v.stride()[:3]),
            **sizes(key, value, len(factor)),
            **launch.arguments(),
        )
    return Sums(passed, passed_keys, after, first_read)


def sizes(key: int, value: int, features: int) -> dict[str, int]:
    """What both kernels of Taylor attention are compiled for; ``features`` P."""
    return {"K": key, "V": value, "P": features, "G": GROUP, "BK": padded(key), "L": SEGMENT}


@cache
def feature_table(key: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """What the P features are. int32 ``[4, P]``: the two elements whose product each is (−1: the number 1;
    −2: none, the feature is 0), and its one or two places among the F. float32 ``[P]``: its factor there."""
    low, places = key**-0.25, 1 + key
    rows = [
        (a, b, places + a * key + b, places + b * key + a, (2 * key) ** -0.5) for a in range(key) for b in range(a + 1)
    ]
    rows += [(a, -1, 1 + a, 1 + a, low) for a in range(key)]
    rows += [(-1, -1, 0, 0, 1.0)]
    rows += [(-2, -2, 0, 0, 1.0)] * (-len(rows) % GROUP)
    table = torch.tensor([row[:4] for row in rows], dtype=torch.int32, device=device).T.contiguous()
    return table, torch.tensor([row[4] for row in rows], dtype=torch.float32, device=device)


@jit
def _sum_keys(
    k,
    v,
    before,
    after,
    passed,
    passed_keys,
    table,
    factor,
    length,
    heads,
    until,
    k_b,
    k_h,
    k_t,
    v_b,
    v_h,
    v_t,
    K: tl.constexpr,
    V: tl.constexpr,
    P: tl.constexpr,
    G: tl.constexpr,
    BK: tl.constexpr,
    L: tl.constexpr,
    C: tl.constexpr,
    BV: tl.constexpr,
):
    # A group of features and columns BV of V, of one head; the programs of a head are neighbours.
    PARTS: tl.constexpr = (V + BV - 1) // BV
    pair = (tl.program_id(0) // (PARTS * (P // G))).to(tl.int64)  # offsets may pass 2³¹
    program = tl.program_id(0) % (PARTS * (P // G))
    b, h = pair // heads, pair % heads
    features = (program // PARTS) * G + tl.arange(0, G)
    values = (program % PARTS) * BV + tl.arange(0, BV)
    rows, keys = tl.arange(0, C), tl.arange(0, BK)
    far = rows.to(tl.int64)[:, None]
    k_at = k + b * k_b + h * k_h + far * k_t + keys[None, :]
    v_at = v + b * v_b + h * v_h + far * v_t + values[None, :]
    in_key, in_value = keys < K, values < V
    kind = k.dtype.element_ty

    # What makes the features, for the columns of kᵀ, so that no product has to be transposed.
    first, second = tl.load(table + features), tl.load(table + P + features)
    pick_first = tl.where(first[:, None] == keys[None, :], 1.0, 0.0).to(kind)
    pick_second = tl.where(second[:, None] == keys[None, :], 1.0, 0.0).to(kind)
    one_first, one_second = tl.where(first == -1, 1.0, 0.0), tl.where(second == -1, 1.0, 0.0)
    # In φ(q)·φ(k) the factor counts for both, and a product of two different elements occurs twice.
    scale = tl.load(factor + features)
    weight = scale * scale * tl.where((second >= 0) & (first != second), 2.0, 1.0)

    # The sums without the features' factors; those of keys alone in every part of V.
    COLUMNS: tl.constexpr = V if passed_keys is None else V + 1
    in_state = (first > -2)[:, None] & in_value[None, :]
    state = pair * ((1 + K + K * K) * COLUMNS)
    s = tl.zeros([G, BV], dtype=tl.float32)
    z = tl.zeros([G], dtype=tl.float32)
    of_rows = tl.zeros([G, C], dtype=tl.float32)  # added up over C where it is needed
    if before is not None:
        place = tl.load(table + 2 * P + features)
        s_at = before + state + place[:, None] * COLUMNS + values[None, :]
        s = tl.load(s_at, mask=in_state, other=0.0) / scale[:, None]
        if passed_keys is not None:
            z = tl.load(before + state + place * COLUMNS + V, mask=first > -2, other=0.0) / scale

    for start in range(0, until, C):
        if start % L == 0:
            passed_row = (pair * tl.cdiv(length, L) + start // L) * P + features
            passed_at = passed + passed_row[:, None] * V + values[None, :]
            tl.store(passed_at, (s * weight[:, None]).to(kind), mask=in_value[None, :])
            if passed_keys is not None:
                tl.store(passed_keys + passed_row, (z + tl.sum(of_rows, 1)) * weight)
        there = rows < length - start
        k_c = tl.load(k_at, mask=there[:, None] & in_key[None, :], other=0.0)
        v_c = tl.load(v_at, mask=there[:, None] & in_value[None, :], other=0.0)
        made = tl.dot(pick_first, tl.trans(k_c), input_precision="tf32x3") + one_first[:, None]
        made *= tl.dot(pick_second, tl.trans(k_c), input_precision="tf32x3") + one_second[:, None]
        s = tl.dot(made.to(kind), v_c, s, input_precision="tf32x3")
        if passed_keys is not None:
            of_rows += made
        k_at += C * k_t
        v_at += C * v_t

    if after is not None:
        # What fills up the last chunk is 0, and of all features counts for the number 1 alone.
        filling = tl.cdiv(length, C) * C - length
        z += tl.sum(of_rows, 1) - tl.where(first == -1, filling.to(tl.float32), 0.0)
        # A product of two different elements has two places among the features; else both are the same.
        for which in tl.static_range(2, 4):
            place = tl.load(table + which * P + features)
            s_at = after + state + place[:, None] * COLUMNS + values[None, :]
            tl.store(s_at, s * scale[:, None], mask=in_state)
            if passed_keys is not None:
                tl.store(after + state + place * COLUMNS + V, z * scale, mask=first > -2)
