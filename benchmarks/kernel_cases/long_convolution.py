"""The long convolution vs. torch.fft, in the models' layout and with contiguous positions.

Times include the transform of the filter, except in rows marked as keeping the spectrum. The rows in bfloat16 have gate
and skip, as in Hyena; their peers are our own convolution by transforms and torch.fft.
"""

from collections.abc import Iterator
from functools import partial

import torch
from kernel_case import Case, against

from argap.kernels.convolution.long_convolution import (
    filter_spectrum,
    long_convolution,
    long_convolution_reference,
    packed_convolution,
)
from argap.kernels.convolution.toeplitz_convolution import LONGEST, SHORTEST, shifted_taps, toeplitz_convolution

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
        if SHORTEST <= length <= LONGEST:
            yield in_bfloat16(length)


def in_bfloat16(length: int) -> Case:
    size = (WIDTH, BATCH, length)
    x, gate = (torch.randn(size, device="cuda", dtype=torch.bfloat16).permute(1, 2, 0) for _ in range(2))
    taps, skip = torch.randn(length, WIDTH, device="cuda") / length**0.5, torch.randn(WIDTH, device="cuda").to(x)
    copies, spectrum = shifted_taps(taps, length, x.dtype), filter_spectrum(taps, length)
    turned, response = x.permute(0, 2, 1).contiguous(), torch.fft.rfft(taps.T.contiguous(), n=2 * length)
    return Case(
        "long convolution, gated",
        f"B {BATCH}, T {length}, D {WIDTH}, bfloat16",
        flops=0.0,
        bytes=3 * x.nbytes + taps.nbytes // 2,
        ours=partial(toeplitz_convolution, x, copies, gate, skip),
        check=against(gated, x, gate, shared=(taps, skip), sequences=2),
        peers={
            "ours by transforms": partial(packed_convolution, x.contiguous(), spectrum, gate.contiguous(), skip),
            "torch.fft, positions side by side": lambda: (
                gate * (side_by_side(turned.float(), taps, response).to(x.dtype) + skip * x)
            ),
        },
    )


def gated(x: torch.Tensor, gate: torch.Tensor, taps: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
    return gate * (long_convolution_reference(x, taps) + skip * x)


def side_by_side(x: torch.Tensor, taps: torch.Tensor, response: torch.Tensor | None = None) -> torch.Tensor:
    """Return ``x [B, D, T]`` and ``taps [D, T]``, the fastest layout for torch.fft; transposing is not timed."""
    size = 2 * x.shape[-1]
    response = torch.fft.rfft(taps, n=size) if response is None else response
    return torch.fft.irfft(torch.fft.rfft(x, n=size) * response, n=size)[..., : x.shape[-1]].mT
