"""What a chunk of the delta rule needs before its state is known, for all chunks at once.

M = (I + tril(diag(β) K Kᵀ, −1))⁻¹ diag(β), the UT transform of arXiv 2406.06484, section 3, and the norms of
queries and keys where they are to be divided by them.

Legend: B batch, H heads, T positions, C positions of a chunk, N = ⌈T / C⌉ chunks, K key size.
"""

from __future__ import annotations

import torch

from argap.kernels.language import jit, tl, triton
from argap.kernels.launch import Launch, LaunchTable
from argap.kernels.layout import padded

C = 64
"""Positions of a kernel's chunk: four blocks of 16."""
SMALLEST_NORM = 1e-6
"""What the norm of a key or query is taken for where it is less."""

# By the key size, rounded up to a power of 2; float32 doubles the tiles.
LAUNCHES = LaunchTable(
    "delta_rule: inverse",
    {
        "any": {
            **{key: Launch({}, warps=1, stages=1) for key in ("16", "32", "64", "128", "float32 16", "float32 32")},
            **{key: Launch({}, warps=4, stages=1) for key in ("256", "float32 64", "float32 128")},
        }
    },
)
NORM_LAUNCHES = LaunchTable("delta_rule: norms", {"any": {"any": Launch({}, warps=4, stages=1)}})


def inverse_norms(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """One over the norm of each query and key: ``[B, H, T, K]`` with rows at unit stride, twice, to float32
    ``[2, B, H, N · C]``."""
    batch, heads, length, key = q.shape
    chunks = triton.cdiv(length, C)
    norms = q.new_empty(2, batch, heads, chunks * C, dtype=torch.float32)
    for of_x, x in zip(norms, (q, k), strict=True):
        _take_norms[(chunks, batch * heads)](
            *(x, of_x, length, heads, *x.stride()[:3]),
            K=key,
            BK=padded(key),
            C=C,
            SMALLEST=SMALLEST_NORM,
            **NORM_LAUNCHES.at(q.device, "any").arguments(),
        )
    return norms


def chunk_inverses(k: torch.Tensor, beta: torch.Tensor, norms: torch.Tensor | None, shape_class: str) -> torch.Tensor:
    """M of every chunk, ``[B, H, N, C, C]`` in the type of ``k``; above the diagonal nothing is written.

    ``k [B, H, T, K]`` has rows at unit stride, ``beta`` is ``[B, H, T]``, ``norms`` those of `inverse_norms` or None,
    ``shape_class`` a key of `LAUNCHES`.
    """
    batch, heads, length, key = k.shape
    chunks = triton.cdiv(length, C)
    inverse = k.new_empty(batch, heads, chunks, C, C)
    _invert[(chunks, batch * heads)](
        *(k, beta, inverse, norms, length, heads),
        *(*k.stride()[:3], *beta.stride()),
        K=key,
        BK=padded(key),
        C=C,
        # The inverse ends up in bfloat16, whose rounding is four times that of one product in tf32.
        PRECISION="tf32" if k.dtype == torch.bfloat16 else "tf32x3",
        **LAUNCHES.at(k.device, shape_class).arguments(),
    )
    return inverse


@jit
def _take_norms(
    x,
    norms,
    length,
    heads,
    x_b,
    x_h,
    x_t,
    K: tl.constexpr,
    BK: tl.constexpr,
    C: tl.constexpr,
    SMALLEST: tl.constexpr,
):
    # One over the norm of each row of a chunk.
    pair = tl.program_id(1).to(tl.int64)
    start = tl.program_id(0).to(tl.int64) * C
    rows, keys = tl.arange(0, C), tl.arange(0, BK)
    inside = (rows < length - start)[:, None] & (keys < K)[None, :]
    x += (pair // heads) * x_b + (pair % heads) * x_h + start * x_t
    row = tl.load(x + rows[:, None] * x_t + keys[None, :], mask=inside, other=0.0).to(tl.float32)
    inverse = 1 / tl.maximum(tl.sqrt(tl.sum(row * row, 1)), SMALLEST)
    tl.store(norms + pair * (tl.num_programs(0) * C) + start + rows, inverse)


@jit
def _invert(
    k,
    beta,
    inverse,
    norms,
    length,
    heads,
    k_b,
    k_h,
    k_t,
    beta_b,
    beta_h,
    beta_t,
    K: tl.constexpr,
    BK: tl.constexpr,
    C: tl.constexpr,
    PRECISION: tl.constexpr,
):
    # One chunk: M by blocks of 16, joined as the halves of each are. The geometric series of the nilpotent
    # part would be shorter, but where keys repeat its powers cancel from 10¹⁷ and more; here no block's
    # entries grow beyond those of the inverse.
    n = tl.program_id(0).to(tl.int64)
    pair = tl.program_id(1).to(tl.int64)
    b, h = pair // heads, pair % heads
    start = n * C
    k_at = k + b * k_b + h * k_h
    beta_at = beta + b * beta_b + h * beta_h
    k0 = _block(k_at, start, length, k_t, K, BK)
    k1 = _block(k_at, start + 16, length, k_t, K, BK)
    k2 = _block(k_at, start + 32, length, k_t, K, BK)
    k3 = _block(k_at, start + 48, length, k_t, K, BK)
    b0 = _rates(beta_at, start, length, beta_t)
    b1 = _rates(beta_at, start + 16, length, beta_t)
    b2 = _rates(beta_at, start + 32, length, beta_t)
    b3 = _rates(beta_at, start + 48, length, beta_t)
    a00 = _products(k0, k0)
    a11 = _products(k1, k1)
    a22 = _products(k2, k2)
    a33 = _products(k3, k3)
    a10 = _products(k1, k0)
    a20 = _products(k2, k0)
    a21 = _products(k2, k1)
    a30 = _products(k3, k0)
    a31 = _products(k3, k1)
    a32 = _products(k3, k2)
    if norms is not None:
        # Every key of length 1: row i and column j of K Kᵀ over their norms.
        count = tl.num_programs(0) * C
        of_k = norms + (tl.num_programs(1) + pair) * count + start + tl.arange(0, 16)
        r0 = tl.load(of_k)
        r1 = tl.load(of_k + 16)
        r2 = tl.load(of_k + 32)
        r3 = tl.load(of_k + 48)
        a00 *= r0[:, None] * r0[None, :]
        a11 *= r1[:, None] * r1[None, :]
        a22 *= r2[:, None] * r2[None, :]
        a33 *= r3[:, None] * r3[None, :]
        a10 *= r1[:, None] * r0[None, :]
        a20 *= r2[:, None] * r0[None, :]
        a21 *= r2[:, None] * r1[None, :]
        a30 *= r3[:, None] * r0[None, :]
        a31 *= r3[:, None] * r1[None, :]
        a32 *= r3[:, None] * r2[None, :]

    # T = (I + L)⁻¹, block by block: what multiplies T_jj from the left in row i is −T_ii Σ_m L_im T_mj.
    t00 = _inverse_of_block(a00, b0, PRECISION)
    t11 = _inverse_of_block(a11, b1, PRECISION)
    t22 = _inverse_of_block(a22, b2, PRECISION)
    t33 = _inverse_of_block(a33, b3, PRECISION)
    a10 *= b1[:, None]
    a20 *= b2[:, None]
    a21 *= b2[:, None]
    a30 *= b3[:, None]
    a31 *= b3[:, None]
    a32 *= b3[:, None]
    t10 = -_times(t11, _times(a10, t00, PRECISION), PRECISION)
    t21 = -_times(t22, _times(a21, t11, PRECISION), PRECISION)
    t32 = -_times(t33, _times(a32, t22, PRECISION), PRECISION)
    t20 = -_times(t22, _times(a20, t00, PRECISION) + _times(a21, t10, PRECISION), PRECISION)
    t31 = -_times(t33, _times(a31, t11, PRECISION) + _times(a32, t21, PRECISION), PRECISION)
    t30 = -_times(
        t33, _times(a30, t00, PRECISION) + _times(a31, t10, PRECISION) + _times(a32, t20, PRECISION), PRECISION
    )

    # M = T diag(β); above the diagonal nothing is written, nor read.
    at = inverse + (pair * tl.num_programs(0) + n) * (C * C)
    _store(at, t00 * b0[None, :], 0, 0, C)
    _store(at, t10 * b0[None, :], 16, 0, C)
    _store(at, t11 * b1[None, :], 16, 16, C)
    _store(at, t20 * b0[None, :], 32, 0, C)
    _store(at, t21 * b1[None, :], 32, 16, C)
    _store(at, t22 * b2[None, :], 32, 32, C)
    _store(at, t30 * b0[None, :], 48, 0, C)
    _store(at, t31 * b1[None, :], 48, 16, C)
    _store(at, t32 * b2[None, :], 48, 32, C)
    _store(at, t33 * b3[None, :], 48, 48, C)


@jit
def _block(x, start, length, x_t, K: tl.constexpr, BK: tl.constexpr):
    rows = start + tl.arange(0, 16).to(tl.int64)
    keys = tl.arange(0, BK)
    inside = (rows < length)[:, None] & (keys < K)[None, :]
    return tl.load(x + rows[:, None] * x_t + keys[None, :], mask=inside, other=0.0)


@jit
def _rates(beta, start, length, beta_t):
    rows = start + tl.arange(0, 16).to(tl.int64)
    return tl.load(beta + rows * beta_t, mask=rows < length, other=0.0).to(tl.float32)


@jit
def _products(a, b):
    return tl.dot(a, tl.trans(b), input_precision="tf32x3")


@jit
def _times(a, b, PRECISION: tl.constexpr):
    return tl.dot(a, b, input_precision=PRECISION)


@jit
def _inverse_of_block(products, rates, PRECISION: tl.constexpr):
    # (I + L)⁻¹ with L = tril(diag(β) K Kᵀ, −1) of 16 positions, from blocks of 2 to blocks of 4, 8 and 16: of
    # two neighbours with inverses T₁ and T₂ what stands below is −T₂ L₂₁ T₁.
    rows = tl.arange(0, 16)
    row, column = rows[:, None], rows[None, :]
    lower = tl.where(row > column, products * rates[:, None], 0.0)
    inverse = tl.where(row == column, 1.0, 0.0) - tl.where(row // 2 == column // 2, lower, 0.0)
    inverse = _joined(inverse, lower, row, column, 2, PRECISION)
    inverse = _joined(inverse, lower, row, column, 4, PRECISION)
    return _joined(inverse, lower, row, column, 8, PRECISION)


@jit
def _joined(inverse, lower, row, column, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    below = tl.where((row // (2 * SIZE) == column // (2 * SIZE)) & (row // SIZE > column // SIZE), lower, 0.0)
    return inverse - _times(inverse, _times(below, inverse, PRECISION), PRECISION)


@jit
def _store(at, block, row, column, C: tl.constexpr):
    rows = tl.arange(0, 16)
    tl.store(at + (row + rows[:, None]) * C + column + rows[None, :], block.to(at.dtype.element_ty))
