"""Linear attention and retention vs. flash-linear-attention, which takes ``[B, T, H, D]``."""

from collections.abc import Iterator
from functools import partial

import torch
from kernel_case import SHAPES, Case, against, first_output, turned

from argap.kernels.recurrent.linear_attention import linear_attention, linear_attention_reference


def cases() -> Iterator[Case]:
    from fla.ops.linear_attn import chunk_linear_attn, fused_chunk_linear_attn
    from fla.ops.retention import chunk_retention, fused_chunk_retention

    for batch, length, heads, size in SHAPES:
        q, k, v = (torch.randn(batch, length, heads, size, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        least = {"flops": 4 * q.numel() * size, "bytes": 4 * q.nbytes}
        shape = f"B {batch}, T {length}, H {heads}, D {size}"
        undivided = {"scale": 1.0, "normalize": False}
        yield Case(
            "linear attention",
            shape,
            **least,
            ours=partial(turned, linear_attention, q, k, v, keep_state=False),
            check=against(partial(turned, linear_attention_reference), q, k, v),
            peers={
                "FLA chunk": first_output(chunk_linear_attn, q, k, v, **undivided),
                "FLA fused": first_output(fused_chunk_linear_attn, q, k, v, **undivided),
            },
        )
        rates = torch.log1p(-(2.0 ** (-5 - torch.arange(heads, device="cuda"))))
        yield Case(
            "retention",
            shape,
            **least,
            ours=partial(turned, linear_attention, q, k, v, log_decay=rates, keep_state=False),
            check=against(partial(turned, linear_attention_reference, log_decay=rates), q, k, v),
            peers={
                "FLA chunk": first_output(chunk_retention, q, k, v, scale=1.0),
                "FLA fused": first_output(fused_chunk_retention, q, k, v, scale=1.0),
            },
        )
