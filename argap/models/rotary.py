"""Rotary positions (RoPE, arXiv 2104.09864, eq. 34): the angle between two vectors tells their distance."""

import torch


def rotation(positions: torch.Tensor, size: int, theta: float, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin of the angles ``[T, K / 2]`` at ``positions [T]`` in ``dtype``, for vectors of ``size`` K.

    Computed anew each time: a buffer would have to survive saving and loading."""
    exponent = torch.arange(0, size, 2, device=positions.device, dtype=dtype) / size
    angles = positions[:, None].to(dtype) * theta**-exponent
    return angles.cos(), angles.sin()


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn each pair (x_i, x_{i + K/2}) by its angle; rounded to the type of ``x`` at the end only."""
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1).to(x.dtype)
