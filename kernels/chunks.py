"""Sequences in chunks of equal length."""

import torch
import torch.nn.functional as F


def in_chunks(x: torch.Tensor, size: int) -> torch.Tensor:
    """``[B, H, T, X]`` to ``[B, H, ⌈T / size⌉, size, X]``, filled up with zeros."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % size)).unflatten(2, (-1, size))
