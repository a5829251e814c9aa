"""RWKV-4's WKV vs. flash-linear-attention and the PyTorch reference."""

from collections.abc import Iterator

import torch
from kernel_case import Case, against, first_output

from argap.kernels.recurrent.wkv import wkv, wkv_reference

BATCH, WIDTH = 8, 1024


def cases() -> Iterator[Case]:
    from fla.ops.rwkv4 import fused_recurrent_rwkv4

    log_decay = torch.linspace(-5, 3, WIDTH, device="cuda")
    shared = log_decay.exp(), torch.randn(WIDTH, device="cuda")
    for length in (512, 2048, 8192):
        k, v = (torch.randn(BATCH, length, WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        start = torch.zeros(BATCH, 3, 1, WIDTH, device="cuda")
        start[:, 2] = -1e30  # the exponent of an empty sum
        yield Case(
            "WKV",
            f"B {BATCH}, T {length}, D {WIDTH}",
            flops=17 * k.numel(),  # not matrix products
            bytes=3 * k.nbytes,
            ours=first_output(wkv, k, v, *shared),
            check=against(lambda *inputs: wkv_reference(*inputs)[0], k, v, shared=shared),
            peers={
                "FLA": first_output(fused_recurrent_rwkv4, log_decay, shared[1], k, v, start),
                "our reference": first_output(wkv_reference, k, v, *shared),
            },
        )
