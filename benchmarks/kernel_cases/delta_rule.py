"""The delta rule vs. flash-linear-attention, which takes ``[B, T, H, D]``."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from kernel_case import Case, first_output, relative_error

from argap.kernels.delta_rule import delta_rule, delta_rule_reference

BATCH = 8
SHAPES = [(length, heads, size) for heads, size in ((16, 64), (8, 128)) for length in (512, 2048, 8192)]


def cases() -> Iterator[Case]:
    from fla.ops.delta_rule import chunk_delta_rule

    for length, heads, size in SHAPES:
        q, k, v = (torch.randn(BATCH, length, heads, size, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        beta = torch.rand(BATCH, length, heads, device="cuda", dtype=torch.bfloat16)
        for norm in (False, True):
            yield Case(
                "delta rule, norms" if norm else "delta rule",
                f"B {BATCH}, T {length}, H {heads}, D {size}",
                flops=8 * q.numel() * size,  # per position S is read twice and written once; valid for small chunks
                bytes=4 * q.nbytes + beta.nbytes,
                ours=partial(ours, q, k, v, beta, norm),
                check=partial(error, q, k, v, beta),
                peers={
                    "FLA": first_output(chunk_delta_rule, q, k, v, beta, scale=1.0, use_qk_l2norm_in_kernel=norm),
                },
            )


def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, norm: bool) -> torch.Tensor:
    q, k, v, beta = (x.transpose(1, 2) for x in (q, k, v, beta))
    return delta_rule(q, k, v, beta, normalize=norm)[0].transpose(1, 2)


def error(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, y: torch.Tensor) -> float:
    """Error of the first sequence against the float64 reference; keys have unit length up to rounding."""
    q, k, v, beta = (x[:1].transpose(1, 2).double() for x in (q, k, v, beta))
    return relative_error(y[:1], delta_rule_reference(q, k, v, beta)[0].transpose(1, 2))
