"""The long convolution in float32 beside torch.fft, in the models' layout and with positions side by side.

All transform the filter too, but for the rows that say that its spectrum is kept.
"""

from collections.abc import Iterator
from functools import partial

import torch
from kernel_case import Case, relative_error

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
        check = partial(error, x, taps)
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
    """``x [B, D, T]`` and ``taps [D, T]``, where torch.fft is fastest; turning them is not counted."""
    size = 2 * x.shape[-1]
    response = torch.fft.rfft(taps, n=size) if response is None else response
    return torch.fft.irfft(torch.fft.rfft(x, n=size) * response, n=size)[..., : x.shape[-1]].mT


def error(x: torch.Tensor, taps: torch.Tensor, y: torch.Tensor) -> float:
    """Of the first pair of sequences, against the reference in float64."""
    return relative_error(y[:2], long_convolution_reference(x[:2].double(), taps.double()))
