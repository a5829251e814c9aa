"""Causal depthwise convolution with a filter as long as the sequence, by FFT.

Legend: B batch, T positions, D width, N ≤ T taps.
"""

import torch


def long_convolution(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """y_t = Σ_s h_s ⊙ x_{t−s}: ``x [B, T, D]`` with ``taps [N, D]``, as ``x`` in shape and type, in float32 or
    wider. Transforms of length 2T, so that nothing wraps around."""
    size = 2 * x.shape[1]
    kind = torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        spectrum = torch.fft.rfft(x.to(kind), n=size, dim=1)
        response = torch.fft.rfft(taps.to(kind), n=size, dim=0)
        return torch.fft.irfft(spectrum * response, n=size, dim=1)[:, : x.shape[1]].to(x.dtype)
