"""Causal depthwise convolution: y_t = Σ_s h_s ⊙ x_{t−s}, s from 0 to N − 1, with a filter h a channel.

Legend: B batch, T positions, D width, N taps.
"""

import math

import torch

from argap.kernels.long_convolution import long_convolution
from argap.kernels.short_convolution import short_convolution

SHORT = 32
"""Filters of up to so many taps are applied directly, longer ones by FFT."""


def causal_convolution(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """``x [B, T, D]`` with ``taps [N, D]``, tap s weighing the input s positions back; as ``x`` in shape
    and type, summed in float32 or wider."""
    taps = taps[: x.shape[1]]  # the others reach before the first position
    return short_convolution(x, taps)[0] if len(taps) <= SHORT else long_convolution(x, taps)


def convolution_step(
    x: torch.Tensor, past: torch.Tensor, taps: torch.Tensor, reach: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`causal_convolution` at one position: ``x [B, D]`` after the inputs ``past [B, P, D]``, with at least
    P + 1 of the ``taps``; the output ``[B, D]``, and the inputs, ``reach`` at most, that later ones see."""
    reached = torch.cat([past, x[:, None]], dim=1)
    kind = torch.promote_types(x.dtype, torch.float32)
    y = (reached.to(kind) * taps[: reached.shape[1]].to(kind).flip(0)).sum(dim=1).to(x.dtype)
    return y, reached[:, max(0, reached.shape[1] - reach) :]


def convolution_flops(batch: int, length: int, width: int, taps: int) -> int:
    """Operations of `causal_convolution`: directly 2·N a value. By FFT, with real transforms of length
    M = 2T at 2.5·M·log₂ M: two for each channel of each sequence, one for each filter, 3·M of products."""
    taps = min(taps, length)
    if taps <= SHORT:
        return 2 * taps * batch * length * width
    size = 2 * length
    transform = 2.5 * size * math.log2(size)
    return round(batch * width * (2 * transform + 3 * size) + width * transform)
