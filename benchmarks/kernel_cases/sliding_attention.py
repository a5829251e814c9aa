"""Sliding-window attention vs. PyTorch's flash kernel with a window, FlexAttention, and SDPA with a mask."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from kernel_case import Case, against
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.attention.varlen import varlen_attn

from argap.kernels.attention.sliding_attention import sliding_attention, sliding_attention_reference

BATCH, LENGTH = 8, 2048
SHAPES = [(16, 64, 64), (16, 64, 256), (16, 64, 512), (8, 128, 512), (8, 256, 512)]
"""Heads, head size and window."""


def cases() -> Iterator[Case]:
    back = torch.arange(LENGTH, device="cuda")[:, None] - torch.arange(LENGTH, device="cuda")
    compiled = torch.compile(flex_attention)
    for heads, size, window in SHAPES:
        q, k, v = (
            torch.randn(BATCH, LENGTH, heads, size, device="cuda", dtype=torch.bfloat16).transpose(1, 2)
            for _ in range(3)
        )
        blocks = create_block_mask(partial(seen, window), None, None, LENGTH, LENGTH, device="cuda")
        mask = (back >= 0) & (back < window)
        yield Case(
            "sliding attention",
            f"B {BATCH}, T {LENGTH}, H {heads}, D {size}, w {window}",
            flops=4 * q.numel() * window,
            bytes=4 * q.nbytes,
            ours=partial(sliding_attention, q, k, v, window),
            check=against(partial(sliding_attention_reference, window=window), q, k, v),
            peers={
                "flash, windowed": partial(by_flash, q, k, v, window),
                "FlexAttention, compiled": partial(compiled, q, k, v, block_mask=blocks),
                "SDPA, mask": partial(F.scaled_dot_product_attention, q, k, v, attn_mask=mask),
                "our reference": partial(sliding_attention_reference, q, k, v, window),
            },
        )


def by_flash(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """Attend through PyTorch's flash kernel for packed sequences, the one of its kernels that takes a window."""
    ends = torch.arange(BATCH + 1, device=q.device, dtype=torch.int32) * LENGTH
    packed = (x.transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    y = varlen_attn(*packed, ends, ends, LENGTH, LENGTH, window_size=(window - 1, 0))
    assert isinstance(y, torch.Tensor)  # a tuple only if the log-sum-exp is requested
    return y.unflatten(0, (BATCH, LENGTH)).transpose(1, 2)


def seen(window: int, _batch: object, _head: object, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return (query >= key) & (query - key < window)
