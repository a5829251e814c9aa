"""What the delta rule needs of a chunk before its state is known, for all chunks at once.

M = (I + tril(diag(β) K Kᵀ, −1))⁻¹ diag(β), the UT transform of arXiv 2406.06484, section 3; and one over the norms of
queries and keys, if they are to be normalized.

Legend: B batch, H heads, T positions, BT positions per chunk, NT = ⌈T / BT⌉ chunks, K key size.
"""

from __future__ import annotations

import torch

from argap.kernels.launch import Launch, LaunchTable, block_size, jit, key_class, strided, tl, triton

CHUNK = 64
"""Positions per chunk of the kernels: four blocks of 16."""
SMALLEST_NORM = 1e-6
"""Lower bound of a key's or query's norm before dividing by it."""

LAUNCHES = LaunchTable(
    "delta_rule: inverse",
    {
        "any": {
            **dict.fromkeys(("16", "32", "64", "128", "16 float32", "32 float32"), Launch({}, warps=1, stages=1)),
            **dict.fromkeys(("256", "64 float32", "128 float32"), Launch({}, warps=4, stages=1)),
        }
    },
)
NORM_LAUNCHES = LaunchTable("delta_rule: norms", {"any": {"any": Launch({}, warps=4, stages=1)}})


def inverse_norms(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """One over the norm of each query, then of each key.

    ``q``, ``k`` ``[B, H, T, K]`` with unit stride along K to float32 ``[2, B, H, NT · BT]``.
    """
    B, H, T, K = q.shape
    NT = triton.cdiv(T, CHUNK)
    norms = q.new_empty(2, B, H, NT * CHUNK, dtype=torch.float32)
    for r, x in zip(norms, (q, k), strict=True):
        _norms_kernel[(NT, B * H)](
            *(*strided(x, dims=3), r, T, H),
            K=K,
            BK=block_size(K),
            BT=CHUNK,
            SMALLEST=SMALLEST_NORM,
            **NORM_LAUNCHES.at(q.device, "any").arguments(),
        )
    return norms


def chunk_inverses(k: torch.Tensor, beta: torch.Tensor, norms: torch.Tensor | None) -> torch.Tensor:
    """M of every chunk, ``[B, H, NT, BT, BT]`` in the dtype of ``k``; blocks of 16 above the diagonal are not written.

    ``k [B, H, T, K]`` has unit stride along K, ``beta`` is ``[B, H, T]``, ``norms`` is the result of `inverse_norms` or
    None.
    """
    B, H, T, K = k.shape
    NT = triton.cdiv(T, CHUNK)
    m = k.new_empty(B, H, NT, CHUNK, CHUNK)
    _invert_kernel[(NT, B * H)](
        *(*strided(k, beta, dims=3), m, norms, T, H),
        K=K,
        BK=block_size(K),
        BT=CHUNK,
        # M is rounded to bfloat16 in the end, four times as coarse as one product in tf32.
        PRECISION="tf32" if k.dtype == torch.bfloat16 else "tf32x3",
        **LAUNCHES.at(k.device, key_class(K, k.dtype)).arguments(),
    )
    return m


@jit
def _norms_kernel(
    x,
    r,
    T,
    H,
    K: tl.constexpr,
    BK: tl.constexpr,
    BT: tl.constexpr,
    SMALLEST: tl.constexpr,
):
    # One over the norm of each row of a chunk, for one head.
    i_bh = tl.program_id(1).to(tl.int64)
    start = tl.program_id(0).to(tl.int64) * BT
    o_t, o_k = tl.arange(0, BT), tl.arange(0, BK)
    m_tk = (o_t < T - start)[:, None] & (o_k < K)[None, :]
    p_x = x[0] + (i_bh // H) * x[1] + (i_bh % H) * x[2] + start * x[3]
    b_x = tl.load(p_x + o_t[:, None] * x[3] + o_k[None, :], mask=m_tk, other=0.0).to(tl.float32)
    b_r = 1 / tl.maximum(tl.sqrt(tl.sum(b_x * b_x, 1)), SMALLEST)
    tl.store(r + i_bh * (tl.num_programs(0) * BT) + start + o_t, b_r)


@jit
def _invert_kernel(
    k,
    beta,
    m,
    norms,
    T,
    H,
    K: tl.constexpr,
    BK: tl.constexpr,
    BT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    # M of one chunk of one head, in blocks of 16. The geometric series of the nilpotent part would be shorter, but for
    # repeated keys its powers exceed 10¹⁷ and cancel; here no block's entries grow beyond those of the inverse.
    i_t = tl.program_id(0).to(tl.int64)
    i_bh = tl.program_id(1).to(tl.int64)
    i_b, i_h = i_bh // H, i_bh % H
    start = i_t * BT
    p_k = k[0] + i_b * k[1] + i_h * k[2]
    p_beta = beta[0] + i_b * beta[1] + i_h * beta[2]
    # 1. The blocks of keys, of β, and of A = K Kᵀ on and below the diagonal.
    b_k0 = _load_keys(p_k, start, T, k[3], K, BK)
    b_k1 = _load_keys(p_k, start + 16, T, k[3], K, BK)
    b_k2 = _load_keys(p_k, start + 32, T, k[3], K, BK)
    b_k3 = _load_keys(p_k, start + 48, T, k[3], K, BK)
    b_beta0 = _load_beta(p_beta, start, T, beta[3])
    b_beta1 = _load_beta(p_beta, start + 16, T, beta[3])
    b_beta2 = _load_beta(p_beta, start + 32, T, beta[3])
    b_beta3 = _load_beta(p_beta, start + 48, T, beta[3])
    b_a00 = _gram(b_k0, b_k0)
    b_a11 = _gram(b_k1, b_k1)
    b_a22 = _gram(b_k2, b_k2)
    b_a33 = _gram(b_k3, b_k3)
    b_a10 = _gram(b_k1, b_k0)
    b_a20 = _gram(b_k2, b_k0)
    b_a21 = _gram(b_k2, b_k1)
    b_a30 = _gram(b_k3, b_k0)
    b_a31 = _gram(b_k3, b_k1)
    b_a32 = _gram(b_k3, b_k2)
    if norms is not None:
        # 2. Normalized keys: divide row i and column j of A by their norms.
        NT_BT = tl.num_programs(0) * BT
        p_r = norms + (tl.num_programs(1) + i_bh) * NT_BT + start + tl.arange(0, 16)
        b_r0 = tl.load(p_r)
        b_r1 = tl.load(p_r + 16)
        b_r2 = tl.load(p_r + 32)
        b_r3 = tl.load(p_r + 48)
        b_a00 *= b_r0[:, None] * b_r0[None, :]
        b_a11 *= b_r1[:, None] * b_r1[None, :]
        b_a22 *= b_r2[:, None] * b_r2[None, :]
        b_a33 *= b_r3[:, None] * b_r3[None, :]
        b_a10 *= b_r1[:, None] * b_r0[None, :]
        b_a20 *= b_r2[:, None] * b_r0[None, :]
        b_a21 *= b_r2[:, None] * b_r1[None, :]
        b_a30 *= b_r3[:, None] * b_r0[None, :]
        b_a31 *= b_r3[:, None] * b_r1[None, :]
        b_a32 *= b_r3[:, None] * b_r2[None, :]

    # 3. T = (I + L)⁻¹ with L = tril(diag(β) A, −1), by blocks: T_ij = −T_ii Σ_{j≤m<i} L_im T_mj for i > j.
    b_t00 = _invert_block(b_a00, b_beta0, PRECISION)
    b_t11 = _invert_block(b_a11, b_beta1, PRECISION)
    b_t22 = _invert_block(b_a22, b_beta2, PRECISION)
    b_t33 = _invert_block(b_a33, b_beta3, PRECISION)
    b_a10 *= b_beta1[:, None]
    b_a20 *= b_beta2[:, None]
    b_a21 *= b_beta2[:, None]
    b_a30 *= b_beta3[:, None]
    b_a31 *= b_beta3[:, None]
    b_a32 *= b_beta3[:, None]
    b_t10 = -_dot(b_t11, _dot(b_a10, b_t00, PRECISION), PRECISION)
    b_t21 = -_dot(b_t22, _dot(b_a21, b_t11, PRECISION), PRECISION)
    b_t32 = -_dot(b_t33, _dot(b_a32, b_t22, PRECISION), PRECISION)
    b_t20 = -_dot(b_t22, _dot(b_a20, b_t00, PRECISION) + _dot(b_a21, b_t10, PRECISION), PRECISION)
    b_t31 = -_dot(b_t33, _dot(b_a31, b_t11, PRECISION) + _dot(b_a32, b_t21, PRECISION), PRECISION)
    b_t30 = -_dot(
        b_t33, _dot(b_a30, b_t00, PRECISION) + _dot(b_a31, b_t10, PRECISION) + _dot(b_a32, b_t20, PRECISION), PRECISION
    )

    # 4. M = T diag(β); blocks above the diagonal are neither written nor read.
    p_m = m + (i_bh * tl.num_programs(0) + i_t) * (BT * BT)
    _store_block(p_m, b_t00 * b_beta0[None, :], 0, 0, BT)
    _store_block(p_m, b_t10 * b_beta0[None, :], 16, 0, BT)
    _store_block(p_m, b_t11 * b_beta1[None, :], 16, 16, BT)
    _store_block(p_m, b_t20 * b_beta0[None, :], 32, 0, BT)
    _store_block(p_m, b_t21 * b_beta1[None, :], 32, 16, BT)
    _store_block(p_m, b_t22 * b_beta2[None, :], 32, 32, BT)
    _store_block(p_m, b_t30 * b_beta0[None, :], 48, 0, BT)
    _store_block(p_m, b_t31 * b_beta1[None, :], 48, 16, BT)
    _store_block(p_m, b_t32 * b_beta2[None, :], 48, 32, BT)
    _store_block(p_m, b_t33 * b_beta3[None, :], 48, 48, BT)


@jit
def _load_keys(p_k, start, T, s_kt, K: tl.constexpr, BK: tl.constexpr):
    o_t = start + tl.arange(0, 16).to(tl.int64)
    o_k = tl.arange(0, BK)
    m_tk = (o_t < T)[:, None] & (o_k < K)[None, :]
    return tl.load(p_k + o_t[:, None] * s_kt + o_k[None, :], mask=m_tk, other=0.0)


@jit
def _load_beta(p_beta, start, T, s_betat):
    o_t = start + tl.arange(0, 16).to(tl.int64)
    return tl.load(p_beta + o_t * s_betat, mask=o_t < T, other=0.0).to(tl.float32)


@jit
def _gram(b_a, b_b):
    return tl.dot(b_a, tl.trans(b_b), input_precision="tf32x3")


@jit
def _dot(b_a, b_b, PRECISION: tl.constexpr):
    return tl.dot(b_a, b_b, input_precision=PRECISION)


@jit
def _invert_block(b_a, b_beta, PRECISION: tl.constexpr):
    # (I + L)⁻¹ of 16 positions, by doubling: blocks of 2, then 4, 8 and 16.
    o_t = tl.arange(0, 16)
    o_i, o_j = o_t[:, None], o_t[None, :]
    b_l = tl.where(o_i > o_j, b_a * b_beta[:, None], 0.0)
    b_t = tl.where(o_i == o_j, 1.0, 0.0) - tl.where(o_i // 2 == o_j // 2, b_l, 0.0)
    b_t = _merge_inverses(b_t, b_l, o_i, o_j, 2, PRECISION)
    b_t = _merge_inverses(b_t, b_l, o_i, o_j, 4, PRECISION)
    return _merge_inverses(b_t, b_l, o_i, o_j, 8, PRECISION)


@jit
def _merge_inverses(b_t, b_l, o_i, o_j, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    # Two neighbouring blocks with inverses T₁ and T₂ have −T₂ L₂₁ T₁ below the diagonal of their joint inverse.
    b_l21 = tl.where((o_i // (2 * SIZE) == o_j // (2 * SIZE)) & (o_i // SIZE > o_j // SIZE), b_l, 0.0)
    return b_t - _dot(b_t, _dot(b_l21, b_t, PRECISION), PRECISION)


@jit
def _store_block(p_m, b_m, i, j, BT: tl.constexpr):
    o_t = tl.arange(0, 16)
    tl.store(p_m + (i + o_t[:, None]) * BT + j + o_t[None, :], b_m.to(p_m.dtype.element_ty))
