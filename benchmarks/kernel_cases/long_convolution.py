"""The long convolution in float32 vs. torch.fft, in the models' layout and with contiguous positions.

Times include the transform of the filter, except in rows marked as keeping the spectrum.
"""

from collections.abc import Iterator
from functools import partial

import torch
from kernel_case import Case, against

from argap.kernels.long_convolution import (
    filter_spectrum,
    long_convolution,
    long_convolution_reference,
    packed_convolution,
)

BATCH, WIDTH = 8, 1024


def cases() -> Iterator[Case]:
    for length in (512, 2048, 8192):
        x, taps = torch.randn(BATCH, length, WIDTH, device="cuda"), torch.randn(length, WIDTH, device="cuda")
        shape = f"B {BATCH}, T {length}, D {WIDTH}"
        least = {"flops": 0.0, "bytes": 2 * x.nbytes + taps.nbytes}
        turned = x.mT.contiguous(), taps.T.contiguous()
        peers = {
            "torch.fft": partial(long_convolution_reference, x, taps),
            "torch.fft, positions side by side": partial(side_by_side, *turned),
        }
        check = against(long_convolution_reference, x, shared=(taps,), sequences=2)
        yield Case(
            "long convolution", shape, **least, ours=partial(long_convolution, x, taps), check=check, peers=peers
        )
        kept = filter_spectrum(taps, length)
        response = torch.fft.rfft(turned[1], n=2 * length)
        yield Case(
            "long convolution, kept",
            shape,
            **least,
            ours=partial(packed_convolution, x, kept),
            check=check,
            peers={"torch.fft, positions side by side": partial(side_by_side, *turned, response)},
        )


def side_by_side(x: torch.Tensor, taps: torch.Tensor, response: torch.Tensor | None = None) -> torch.Tensor:
    """``x [B, D, T]`` and ``taps [D, T]``, the fastest layout for torch.fft; transposing is not timed."""
    size = 2 * x.shape[-1]
    response = torch.fft.rfft(taps, n=size) if response is None else response
    return torch.fft.irfft(torch.fft.rfft(x, n=size) * response, n=size)[..., : x.shape[-1]].mT
