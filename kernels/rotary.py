"""Rotary positions of queries and keys, turned in place in the projection that holds both.

A program owns a position: it turns the pairs of all its heads, of queries and of keys. The angles' cosines and sines
are computed once for all layers.

Legend: B batch, T positions, P parts of the projection (query, key, perhaps value), H heads, K key size.
"""

from __future__ import annotations

from functools import lru_cache

import torch

from argap.kernels.launch import Launch, LaunchTable, block_size, jit, runs_kernels, tl

# By the number of pairs of a position's queries and keys.
LAUNCHES = LaunchTable("rotary", {"any": {"few": Launch({}, warps=4, stages=1), "many": Launch({}, warps=8, stages=1)}})
FEW, LARGEST = 2048, 16384
"""The largest number of pairs of the class ``few``, and of those that the kernel takes."""


def rotary(
    projection: torch.Tensor, first: int, theta: float, key_scale: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary embedding (arXiv 2104.09864, eq. 34): each pair (x_i, x_{i + K/2}) at position t turned by t·θ^(−2i/K).

    Args:
        projection: queries, keys and any further parts, ``[B, T, P, H, K]``. **Its queries and keys may be
            overwritten.**
        first: the position of ``projection[:, 0]``.
        theta: θ.
        key_scale: a factor of the turned keys.

    Returns:
        The turned queries and keys, ``[B, H, T, K]`` each.

    Runs one kernel with float32 arithmetic on a GPU if no gradient is needed; otherwise the reference.
    """
    length, size = projection.shape[1], projection.shape[-1]
    pairs = projection.shape[3] * size
    fits = projection.is_contiguous() and projection.dtype != torch.float64 and pairs <= LARGEST
    if fits and runs_kernels(projection):
        _rotate_(projection, *_tables(first, length, size, theta, projection.device), key_scale)
        q, k = (projection[:, :, part].transpose(1, 2) for part in (0, 1))
        return q, k
    q, k = projection[:, :, :2].permute(2, 0, 3, 1, 4)
    compute_dtype = torch.promote_types(q.dtype, torch.float32)
    cos, sin = rotation(first, length, size, theta, compute_dtype, projection.device)
    k = rotate(k, cos, sin)
    return rotate(q, cos, sin), k if key_scale == 1 else k * key_scale


def rotation(
    first: int, length: int, size: int, theta: float, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of the angles ``[T, ⌈K / 2⌉]`` at ``length`` T positions from ``first``, for vectors of ``size`` K.

    No buffer of a module: it would have to survive saving and loading.
    """
    positions = torch.arange(first, first + length, device=device)
    exponent = torch.arange(0, size, 2, device=device, dtype=dtype) / size
    angles = positions[:, None].to(dtype) * theta**-exponent
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate each pair (x_i, x_{i + K/2}) by its angle; rounded to the dtype of ``x`` only at the end."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)


@lru_cache(maxsize=4)
def _tables(
    first: int, length: int, size: int, theta: float, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """`rotation` in float32, shared by the layers of a model."""
    return rotation(first, length, size, theta, torch.float32, device)


def _rotate_(projection: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, key_scale: float) -> None:
    """Turn the queries and keys of ``projection`` in place by the kernel."""
    B, T, P, H, K = projection.shape
    launch = LAUNCHES.at(projection.device, "few" if H * K <= FEW else "many")
    if projection.numel():
        _rotary_kernel[(B * T,)](
            *(projection, cos, sin, key_scale, T, P),
            H=H,
            HALF=K // 2,
            BP=block_size(H * K),
            **launch.arguments(),
        )


@jit
def _rotary_kernel(projection, cos, sin, key_scale, T, P, H: tl.constexpr, HALF: tl.constexpr, BP: tl.constexpr):
    # One position of one sequence: H heads of queries, then H of keys. Offsets may exceed 2³¹.
    i_bt = tl.program_id(0)
    o_p = tl.arange(0, BP)
    m_p = o_p < 2 * H * HALF
    i_head, o_pair = o_p // HALF, o_p % HALF
    p_a = projection + i_bt.to(tl.int64) * P * H * 2 * HALF + i_head * 2 * HALF + o_pair
    o_angle = (i_bt % T) * HALF + o_pair
    b_a = tl.load(p_a, mask=m_p, other=0.0).to(tl.float32)
    b_b = tl.load(p_a + HALF, mask=m_p, other=0.0).to(tl.float32)
    b_cos, b_sin = tl.load(cos + o_angle, mask=m_p, other=0.0), tl.load(sin + o_angle, mask=m_p, other=0.0)
    b_scale = tl.where(i_head < H, 1.0, key_scale)
    tl.store(p_a, ((b_a * b_cos - b_b * b_sin) * b_scale).to(projection.dtype.element_ty), mask=m_p)
    tl.store(p_a + HALF, ((b_a * b_sin + b_b * b_cos) * b_scale).to(projection.dtype.element_ty), mask=m_p)
