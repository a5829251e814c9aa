"""Gated linear attention vs. flash-linear-attention, which takes ``[B, T, H, D]``."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from kernel_case import SHAPES, Case, first_output, relative_error, turned

from argap.kernels.recurrent.gla import gla, gla_reference

TEMPERATURE = 16


def cases() -> Iterator[Case]:
    from fla.ops.gla import chunk_gla

    for batch, length, heads, size in SHAPES:
        q, k, v, x = (torch.randn(batch, length, heads, size, device="cuda", dtype=torch.bfloat16) for _ in range(4))
        g = F.logsigmoid(x) / TEMPERATURE
        yield Case(
            "gla",
            f"B {batch}, T {length}, H {heads}, D {size}",
            flops=4 * q.numel() * size,
            bytes=5 * q.nbytes,
            ours=partial(turned, gla, q, k, v, g, keep_state=False),
            check=partial(error, (q, k, v, g)),
            peers={"FLA chunk": first_output(chunk_gla, q, k, v, g, scale=1.0)},
        )


def error(inputs: tuple[torch.Tensor, ...], y: torch.Tensor) -> float:
    """Compute the error of the first sequence and head against the float64 reference."""
    return relative_error(y[:1, :, :1], turned(gla_reference, *(x[:1, :, :1].double() for x in inputs)))
