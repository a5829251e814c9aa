"""RG-LRU's diagonal recurrence vs. flash-linear-attention's HGRN, which takes log decays."""

from collections.abc import Iterator
from functools import partial

import torch
from kernel_case import Case, against, first_output

from argap.kernels.scan.diagonal_scan import diagonal_scan, diagonal_scan_reference

SHAPES = [(8, 512, 2560), (8, 2048, 1024), (8, 2048, 2560), (8, 8192, 2560)]
"""Batch, positions and channels."""


def cases() -> Iterator[Case]:
    from fla.ops.hgrn import chunk_hgrn, fused_recurrent_hgrn

    for batch, length, width in SHAPES:
        log_decay = -0.5 * torch.rand(batch, length, width, device="cuda")
        value = torch.randn(batch, length, width, device="cuda", dtype=torch.bfloat16)
        decay = log_decay.exp()

        def reference(decay: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
            return diagonal_scan_reference(decay, value)[0]

        yield Case(
            "diagonal scan",
            f"B {batch}, T {length}, D {width}",
            flops=0,
            bytes=decay.nbytes + 2 * value.nbytes,
            ours=first_output(diagonal_scan, decay, value),
            check=against(reference, decay, value),
            peers={
                "FLA chunk": first_output(chunk_hgrn, value, log_decay),
                "FLA recurrent": first_output(fused_recurrent_hgrn, value, log_decay),
                "our reference": partial(reference, decay, value),
            },
        )
