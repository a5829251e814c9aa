"""Linear attention with Based's Taylor features vs. flash-linear-attention, which takes ``[B, T, H, D]``."""

from collections.abc import Iterator
from functools import partial

import torch
from kernel_case import Case, against, turned

from argap.kernels.recurrent.taylor_attention import taylor_attention, taylor_attention_reference

SHAPES = [(8, length, 16, 16, 64) for length in (512, 2048, 8192)]


def cases() -> Iterator[Case]:
    from fla.ops.based import fused_chunk_based, parallel_based

    for batch, length, heads, key, value in SHAPES:
        q, k, v = (
            torch.randn(batch, length, heads, size, device="cuda", dtype=torch.bfloat16) for size in (key, key, value)
        )
        features = 1 + key + key * (key + 1) // 2
        yield Case(
            "taylor attention",
            f"B {batch}, T {length}, H {heads}, K {key}, V {value}",
            flops=4 * batch * length * heads * features * value,
            bytes=2 * q.nbytes + 2 * v.nbytes,
            ours=partial(turned, taylor_attention, q, k, v, keep_state=False),
            check=against(partial(turned, taylor_attention_reference), q, k, v),
            peers={
                "FLA parallel": partial(parallel_based, q, k, v),
                "FLA fused": partial(fused_chunk_based, q, k, v),
            },
        )
