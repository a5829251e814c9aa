"""How the kernels that walk over positions take and give their tensors ``[B, H, T, X]``."""

import torch


def with_rows(x: torch.Tensor) -> torch.Tensor:
    """``x`` itself where the elements of a row lie side by side, else a copy of it that does."""
    return x if x.stride(-1) == 1 else x.contiguous()


def empty_heads_inside(batch: int, heads: int, length: int, size: int, like: torch.Tensor) -> torch.Tensor:
    """An output ``[B, H, T, X]`` of the type of ``like`` that lies in memory as ``[B, T, H, X]``, so that the
    heads of a position can be joined without a copy."""
    return like.new_empty(batch, length, heads, size).transpose(1, 2)


def key_class(size: int, dtype: torch.dtype = torch.bfloat16) -> str:
    """The shape class of a launch: the size of a key, rounded up to a power of 2, at least 16; in float32,
    whose tiles are twice as large, a class of its own."""
    return f"{padded(size)} float32" if dtype == torch.float32 else str(padded(size))


def padded(size: int) -> int:
    """The block that holds a row of ``size``: a power of 2, at least the 16 that a tensor core takes."""
    return max(16, 1 << (size - 1).bit_length())
