"""The short causal convolution with SiLU vs. flash-linear-attention and torch."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from kernel_case import Case, against, first_output

from argap.kernels.convolution.short_convolution import short_convolution, short_convolution_reference

BATCH, WIDTH, TAPS = 8, 1024, 4


def cases() -> Iterator[Case]:
    from fla.modules.causal_conv1d import causal_conv1d

    taps = torch.randn(TAPS, WIDTH, device="cuda", dtype=torch.bfloat16)
    latest_last = taps.T.flip(1).contiguous()  # the peers' order of taps
    for length in (512, 2048, 8192):
        x = torch.randn(BATCH, length, WIDTH, device="cuda", dtype=torch.bfloat16)
        yield Case(
            "short convolution",
            f"B {BATCH}, T {length}, D {WIDTH}, N {TAPS}",
            flops=2 * TAPS * x.numel(),
            bytes=2 * x.nbytes,
            ours=first_output(short_convolution, x, taps, silu=True),
            check=against(short_convolution_reference, x, shared=(taps,), silu=True),
            peers={
                "FLA": first_output(causal_conv1d, x, latest_last, activation="silu"),
                "torch": partial(by_torch, x, latest_last),
            },
        )


def by_torch(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    y = F.conv1d(x.mT, weight[:, None], padding=TAPS - 1, groups=WIDTH)
    return F.silu(y[..., : x.shape[1]]).mT
