"""RWKV-7's delta rule vs. flash-linear-attention, which takes ``[B, T, H, D]``."""

import math
from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from kernel_case import SHAPES, Case, first_output, relative_error

from argap.kernels.recurrent.generalized_delta_rule import generalized_delta_rule, generalized_delta_rule_reference

FASTEST = -math.exp(-0.5)


def cases() -> Iterator[Case]:
    from fla.ops.rwkv7 import chunk_rwkv7

    for batch, length, heads, size in SHAPES:
        q, k, v, removed = (
            torch.randn(batch, length, heads, size, device="cuda", dtype=torch.bfloat16) for _ in range(4)
        )
        removed = F.normalize(removed, dim=-1)
        rate = torch.rand_like(removed)
        decay = FASTEST * torch.rand(batch, length, heads, size, device="cuda")
        given = q, k / size**0.5, v, -removed, removed * rate

        def ours(*given: torch.Tensor, decay: torch.Tensor, function=generalized_delta_rule) -> torch.Tensor:
            parts = (x.transpose(1, 2) for x in given)
            y, _ = function(*parts, log_decay=decay.transpose(1, 2), least_log_decay=FASTEST)
            return y.transpose(1, 2)

        def error(y: torch.Tensor, given: tuple[torch.Tensor, ...], decay: torch.Tensor, ours=ours) -> float:
            few = (x[:1, :, :2].double() for x in given)
            expected = ours(*few, decay=decay[:1, :, :2].double(), function=generalized_delta_rule_reference)
            return relative_error(y[:1, :, :2], expected)

        r, k, v, a, b = given
        yield Case(
            "RWKV-7",
            f"B {batch}, T {length}, H {heads}, D {size}",
            flops=12 * q.numel() * size,  # per position S is read twice and written twice
            bytes=6 * q.nbytes + decay.nbytes,
            ours=partial(ours, *given, decay=decay),
            check=partial(error, given=given, decay=decay),
            peers={"FLA": first_output(chunk_rwkv7, r, w=decay, k=k, v=v, a=a, b=b, scale=1.0)},
        )
