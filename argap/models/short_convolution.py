"""The short depthwise convolution in front of many mixers, with its recurrent step.

Legend: B batch, T positions, D width, N taps.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from argap.kernels.short_convolution import short_convolution
from argap.models.convolution import SHORT, causal_convolution, convolution_flops, convolution_step


class ShortConvolution(nn.Module):
    """y_t = Σ_s h_s ⊙ x_{t−s} + b over N taps, s from 0 to N − 1, a filter and a bias a channel."""

    def __init__(self, width: int, taps: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(taps, width))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    def initialize(self, std: float, residual_std: float) -> None:
        """As torch starts a convolution: uniform within ±1/√N, filter and bias."""
        bound = 1 / math.sqrt(len(self.weight))
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: torch.Tensor, *, silu: bool = False, gate: torch.Tensor | None = None) -> torch.Tensor:
        """``x [B, T, D]``, to the same shape and type; with ``silu`` that is applied, then the ``gate
        [B, T, D]`` multiplied, in the same kernel."""
        if len(self.weight) <= SHORT:
            return short_convolution(x, self.weight, self.bias, silu=silu, gate=gate)[0]
        y = self._biased(causal_convolution(x, self.weight))
        y = F.silu(y) if silu else y
        return y if gate is None else y * gate

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The last N − 1 inputs ``[B, ≤ N − 1, D]``."""
        return torch.empty(batch, 0, self.weight.shape[1], dtype=dtype, device=device)

    def state_after(self, x: torch.Tensor) -> torch.Tensor:
        """The state after the inputs ``x [B, T, D]``."""
        return x[:, max(0, x.shape[1] - len(self.weight) + 1) :]

    def step(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``x [B, D]`` of one position."""
        y, state = convolution_step(x, state, self.weight, len(self.weight) - 1)
        return self._biased(y), state

    def state_size(self, length: int) -> int:
        """The inputs that the filter still reaches: min(N − 1, T)·D."""
        taps, width = self.weight.shape
        return min(taps - 1, length) * width

    def flops(self, batch: int, length: int) -> int:
        """The convolution, and B·T·D of a bias."""
        taps, width = self.weight.shape
        biased = 0 if self.bias is None else batch * length * width
        return biased + convolution_flops(batch, length, width, taps)

    def _biased(self, y: torch.Tensor) -> torch.Tensor:
        return y if self.bias is None else y + self.bias
