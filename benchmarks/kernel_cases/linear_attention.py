"""Linear attention, retention and Mamba-2's SSD vs. flash-linear-attention, which takes ``[B, T, H, D]``.

SSD (arXiv 2405.21060) has heads of 64 with 128 states, and one B and C for all heads. Its peers are the kernels of
mamba-ssm, where that is installed, and simple GLA with B and C repeated for each head; step and skip are part of every
time. Decays are those of initial gates: A from 1 to 16 and steps of 0.001 to 0.1.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from kernel_case import SHAPES, Case, against, first_output, relative_error, turned

from argap.kernels.recurrent.linear_attention import linear_attention, linear_attention_reference

HEAD, STATES = 64, 128
SSD_SHAPES = [(8, 512, 32), (8, 2048, 32), (8, 8192, 32), (1, 131072, 32)]
"""Batch, positions and heads of SSD."""


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
    for batch, length, heads in SSD_SHAPES:
        yield ssd(batch, length, heads)


def ssd(batch: int, length: int, heads: int) -> Case:
    """Return the case of one shape of Mamba-2's SSD."""
    from fla.ops.simple_gla import chunk_simple_gla

    x = torch.randn(batch, length, heads, HEAD, device="cuda", dtype=torch.bfloat16)
    B, C = (torch.randn(batch, length, 1, STATES, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    step = torch.exp(torch.empty(batch, length, heads, device="cuda").uniform_(math.log(1e-3), math.log(0.1)))
    A, D = -(1 + 15 * torch.rand(heads, device="cuda")), torch.ones(heads, device="cuda")

    def run(function: Callable[..., Any], x: Any, step: Any, B: Any, C: Any, **options: Any) -> torch.Tensor:
        decay = step * A[: x.shape[2]].to(step.dtype)
        inputs = (each.transpose(1, 2) for each in (C, B, x))
        gates = {"log_decay": decay.transpose(1, 2), "step": step.transpose(1, 2), "skip": D[: x.shape[2]]}
        return function(*inputs, **gates, **options)[0].transpose(1, 2)

    def simple_gla() -> torch.Tensor:
        q, k = (each.expand(-1, -1, heads, -1) for each in (C, B))
        y = chunk_simple_gla(q, k, x * step[..., None].to(x.dtype), g=step * A, scale=1.0)[0]
        return y.addcmul(x, D[:, None].to(x.dtype))

    peers: dict[str, Callable[[], Any]] = {"FLA simple GLA": simple_gla}
    if find_spec("mamba_ssm"):
        from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

        peers["mamba-ssm"] = partial(mamba_chunk_scan_combined, x, step, A, B, C, chunk_size=256, D=D)
    return Case(
        "SSD",
        f"B {batch}, T {length}, H {heads}, D {HEAD}, N {STATES}",
        flops=4 * x.numel() * STATES,
        bytes=2 * x.nbytes + 2 * B.nbytes + step.nbytes,
        ours=partial(run, linear_attention, x, step, B, C, keep_state=False),
        check=lambda y: relative_error(
            y[:1, :, :2],
            run(linear_attention_reference, *(z[:1, :, :2].double() for z in (x, step, B, C))),
        ),
        peers=peers,
    )
