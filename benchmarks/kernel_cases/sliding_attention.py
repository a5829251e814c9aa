"""Sliding-window attention vs. FlexAttention, SDPA with a mask, and SDPA over the whole past."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from kernel_case import Case, against
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from argap.kernels.attention.sliding_attention import sliding_attention, sliding_attention_reference

BATCH, LENGTH, HEADS, SIZE = 8, 2048, 16, 64


def cases() -> Iterator[Case]:
    q, k, v = (
        torch.randn(BATCH, LENGTH, HEADS, SIZE, device="cuda", dtype=torch.bfloat16).transpose(1, 2) for _ in range(3)
    )
    back = torch.arange(LENGTH, device="cuda")[:, None] - torch.arange(LENGTH, device="cuda")
    compiled = torch.compile(flex_attention)
    for window in (64, 256):
        blocks = create_block_mask(partial(seen, window), None, None, LENGTH, LENGTH, device="cuda")
        mask = (back >= 0) & (back < window)
        yield Case(
            "sliding attention",
            f"B {BATCH}, T {LENGTH}, H {HEADS}, D {SIZE}, w {window}",
            flops=4 * q.numel() * window,
            bytes=4 * q.nbytes,
            ours=partial(sliding_attention, q, k, v, window),
            check=against(partial(sliding_attention_reference, window=window), q, k, v),
            peers={
                "FlexAttention, compiled": partial(compiled, q, k, v, block_mask=blocks),
                "SDPA, mask": partial(F.scaled_dot_product_attention, q, k, v, attn_mask=mask),
                "our reference": partial(sliding_attention_reference, q, k, v, window),
            },
        )


def seen(window: int, _batch: object, _head: object, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    return (query >= key) & (query - key < window)
