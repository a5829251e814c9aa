"""Rotary positions of queries and keys, rotated in place where their projection wrote them.

A program owns the queries or the keys of a position and rotates the pairs of all their heads. For native models the
angles' cosines and sines are computed once for all layers.

Legend: B batch, T positions, P parts of the projection (query, key, perhaps value), H heads, K key size, R ≤ K rotated
dimensions.
"""

from __future__ import annotations

import torch

from argap.kernels.launch import Launch, LaunchTable, block_size, jit, runs_kernels, strided, tl, unit_stride
from argap.kernels.shared import shared

# By the number of pairs of a position's queries.
LAUNCHES = LaunchTable("rotary", {"any": {"few": Launch({}, warps=4, stages=1), "many": Launch({}, warps=8, stages=1)}})
FEW, LARGEST = 1024, 8192
"""The largest number of pairs in the class ``few``, and the largest the kernel supports."""

BLOCK = 64
"""Positions whose angles are computed together when a step needs one of them."""


def rotary(
    projection: torch.Tensor, first: int | torch.Tensor, theta: float, key_scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate each pair (x_i, x_{i + K/2}) at position t by t·θ^(−2i/K) (arXiv 2104.09864, eq. 34).

    Args:
        projection: queries, keys and any further parts, ``[B, T, P, H, K]``. **Its queries and keys may be
            overwritten.**
        first: the position of ``projection[:, 0]``, as a number or ``[1]``.
        theta: θ.
        key_scale: a factor of the rotated keys.

    Returns:
        The rotated queries and keys, ``[B, H, T, K]`` each.

    Runs one kernel with float32 arithmetic on a GPU if no gradient is needed; otherwise the reference.
    """
    length, size = projection.shape[1], projection.shape[-1]
    q, k = projection[:, :, :2].permute(2, 0, 3, 1, 4)
    fits = projection.stride(-1) == 1 and projection.dtype != torch.float64 and q.shape[1] * size <= 2 * LARGEST
    if fits and runs_kernels(projection):
        tables = rotation(first, length, size, theta, torch.float32, projection.device)
        return rotate_in_place(q, k, *tables, key_scale)
    compute_dtype = torch.promote_types(q.dtype, torch.float32)
    cos, sin = rotation(first, length, size, theta, compute_dtype, projection.device)
    q, k = rotate(projection[:, :, :2].permute(2, 0, 3, 1, 4), cos, sin)
    return q, k if key_scale == 1 else k * key_scale


@shared
def rotation(
    first: int | torch.Tensor, length: int, size: int, theta: float, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute cos and sin of the angles ``[T, ⌈K / 2⌉]`` at ``length`` T positions from ``first``, for ``size`` K.

    A single position is a row of the tables of `BLOCK` positions, which the next steps read too. The tables are not a
    module's buffer, which would have to survive saving and loading.
    """
    if length == 1 and isinstance(first, int):
        row = first % BLOCK
        cos, sin = rotation(first - row, BLOCK, size, theta, dtype, device)
        return cos[row : row + 1], sin[row : row + 1]
    positions = first + torch.arange(length, device=device)
    exponent = torch.arange(0, size, 2, device=device, dtype=dtype) / size
    angles = positions[:, None].to(dtype) * theta**-exponent
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (x_i, x_{i + K/2}) by its angle; round to the dtype of ``x`` only at the end."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)


def rotate_in_place(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, key_scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `rotate` by the kernel: the first R of each head's K dimensions in place, where the last stride is 1.

    ``q [B, H, T, K]`` and ``k`` may differ in their number of heads. Cosines and sines are ``[1 or B, T, ≥ R / 2]`` or
    ``[T, R / 2]``. With three dimensions the last holds R, the angles of both halves, as in transformers.
    """
    q, k = unit_stride(q), unit_stride(k)
    B, H, T, _ = q.shape
    R = 2 * cos.shape[-1] if cos.dim() == 2 else cos.shape[-1]
    cos, sin = (unit_stride(x).expand(B, T, -1) for x in (cos, sin))
    most = max(H, k.shape[1]) * R // 2
    if q.numel():
        _rotary_kernel[(B * T, 2)](
            *(*strided(q, k, dims=3), *strided(cos, sin, dims=2), key_scale, T),
            H=H,
            KEY_HEADS=k.shape[1],
            HALF=R // 2,
            BP=block_size(most),
            **LAUNCHES.at(q.device, "few" if most <= FEW else "many").arguments(),
        )
    return q, k


@jit
def _rotary_kernel(
    q, k, cos, sin, key_scale, T, H: tl.constexpr, KEY_HEADS: tl.constexpr, HALF: tl.constexpr, BP: tl.constexpr
):
    # The queries or the keys of one position of one sequence. Offsets may exceed 2³¹.
    i_b, i_t = (tl.program_id(0) // T).to(tl.int64), (tl.program_id(0) % T).to(tl.int64)
    o_p = tl.arange(0, BP)
    i_head, o_pair = o_p // HALF, o_p % HALF
    if tl.program_id(1) == 0:
        p_a = q[0] + i_b * q[1] + i_t * q[3] + i_head * q[2] + o_pair
        m_p = o_p < H * HALF
        scale = 1.0
    else:
        p_a = k[0] + i_b * k[1] + i_t * k[3] + i_head * k[2] + o_pair
        m_p = o_p < KEY_HEADS * HALF
        scale = key_scale
    b_a = tl.load(p_a, mask=m_p, other=0.0).to(tl.float32)
    b_b = tl.load(p_a + HALF, mask=m_p, other=0.0).to(tl.float32)
    b_cos = tl.load(cos[0] + i_b * cos[1] + i_t * cos[2] + o_pair, mask=m_p, other=0.0).to(tl.float32)
    b_sin = tl.load(sin[0] + i_b * sin[1] + i_t * sin[2] + o_pair, mask=m_p, other=0.0).to(tl.float32)
    tl.store(p_a, ((b_a * b_cos - b_b * b_sin) * scale).to(q[0].dtype.element_ty), mask=m_p)
    tl.store(p_a + HALF, ((b_a * b_sin + b_b * b_cos) * scale).to(q[0].dtype.element_ty), mask=m_p)
