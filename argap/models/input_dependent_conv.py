"""Gated convolutions whose filter is made from the sequence itself: where a token repeats, it has a spike.

Legend: B batch, T positions, D width; shift s, a tap that reads the position s before.
"""

import math
from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from argap.errors import ArgapError
from argap.models.mixer import Mixer, ResidualLinear


class InputDependentConv(Mixer):
    """y = (u W + b1) ⊙ (h(u) ∗ u + b2): BaseConv (arXiv 2312.04927, definition 4.1) with one filter h a
    sequence, the same for all channels, in place of one a channel for all sequences.

    Section 4.3 of the paper asks what such filters add: a fixed filter needs a channel for each distance at
    which a key may return (theorem 4.4), one that follows the input only those that occur (theorem 4.5).
    h has a spike at shift d − 1 for a repeat at distance d: from the second occurrence it reads what
    followed the first, which is the value of a key. (The paper leaves the place of the spike open; so read,
    one layer recalls.)

    h sees all repeats, later ones too, and the paper knows no way to make it causal. So ``causal`` is False:
    such a mixer serves multi-query associative recall, and no language model is scored with it.
    """

    causal: ClassVar[bool] = False
    source = "arXiv 2312.04927, section 4.3, theorem 4.5"

    def __init__(self, width: int, max_positions: int | None = None) -> None:
        super().__init__()
        self.projection = ResidualLinear(width, width, bias=False)  # its product goes to the residual stream
        self.gate_bias = nn.Parameter(torch.empty(width))
        self.conv_bias = nn.Parameter(torch.empty(width))

    def initialize(self, std: float, residual_std: float) -> None:
        """b1 = ``residual_std`` and b2 = 0: at the start what is read passes through, as quietly as another
        layer's output (the spikes have gain 1, and no parameter of their own to start small)."""
        nn.init.constant_(self.gate_bias, residual_std)
        nn.init.zeros_(self.conv_bias)

    @abstractmethod
    def taps(self, x: torch.Tensor, *ids: torch.Tensor) -> torch.Tensor:
        """The filter of each sequence, ``[B, T]``, of ``x [B, T, D]`` and, where asked for, the tokens."""

    def forward(self, x: torch.Tensor, *ids: torch.Tensor) -> torch.Tensor:
        read = sequence_convolution(x, self.taps(x, *ids))
        return (self.projection(x) + self.gate_bias) * (read + self.conv_bias)

    def state_size(self, length: int) -> int:
        """All inputs, T·D: which of them are read is known only at the end."""
        return length * self.projection.in_features

    def flops(self, batch: int, length: int) -> int:
        """The projection 2·B·T·D², biases and gate 3·B·T·D, and the convolution, by FFT of length M = 2T at
        2.5·M·log₂ M: two for each channel and one for the filter of each sequence, 3·M of products a channel."""
        width, size = self.projection.in_features, 2 * length
        pointwise = batch * length * (2 * width**2 + 3 * width)
        return pointwise + round(batch * ((2 * width + 1) * _transform(size) + 3 * size * width))


class ProgrammaticConv(InputDependentConv):
    """The filter from the token ids: h_s = 1 if any token equals the one s + 1 before it, else 0.

    A fill token that stands everywhere repeats at every distance, and the filter is then all ones: give it
    sequences whose noise is drawn.
    """

    needs_ids: ClassVar[bool] = True

    def taps(self, x: torch.Tensor, *ids: torch.Tensor) -> torch.Tensor:
        """``[B, T]`` of zeros and ones, from the tokens ``[B, T]``."""
        (tokens,) = ids
        length = tokens.shape[1]
        before = F.pad(tokens, (length, 0), value=-1).unfold(1, length, 1)[:, :length]  # tokens t − T … t − 1
        return (before == tokens[..., None]).any(dim=1).flip(1).to(x.dtype)


class AutocorrelationConv(InputDependentConv):
    """The filter from the autocorrelation of k = u W_k: r_s = Σ_t ⟨k_t, k_{t−s−1}⟩, by FFT.

    h keeps the ``shifts`` largest r_s, divided by the sum of their magnitudes, so that its gain is at most
    1; through their values W_k learns which parts of a token count as the same. (The paper names the
    autocorrelation; keeping the largest, and their scale, are ours.)

    Option ``shifts``: how many taps h keeps. Raises `ArgapError` for fewer than one.
    """

    def __init__(self, width: int, max_positions: int | None = None, *, shifts: int = 16) -> None:
        super().__init__(width, max_positions)
        if shifts < 1:
            raise ArgapError(f"base_conv_autocorrelation: shifts {shifts}; expected at least 1")
        self.shifts = shifts
        self.key = nn.Linear(width, width, bias=False)

    def taps(self, x: torch.Tensor, *ids: torch.Tensor) -> torch.Tensor:
        """``[B, T]``, ``shifts`` of them not 0, in float32 or wider whatever autocast says."""
        scores = autocorrelation(self.key(x))
        highest = scores.topk(min(self.shifts, scores.shape[1]), dim=1)
        tiny = torch.finfo(scores.dtype).tiny
        weights = highest.values / highest.values.abs().sum(dim=1, keepdim=True).clamp_min(tiny)
        return torch.zeros_like(scores).scatter(1, highest.indices, weights)

    def flops(self, batch: int, length: int) -> int:
        """As its base, with W_k, 2·B·T·D², and the autocorrelation: a transform for each channel and one
        back, 4·M of squares and their sum a channel."""
        width, size = self.projection.in_features, 2 * length
        correlation = batch * ((width + 1) * _transform(size) + 4 * size * width)
        return super().flops(batch, length) + 2 * batch * length * width**2 + round(correlation)


def sequence_convolution(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """y_t = Σ_s h_s x_{t−s} of ``x [B, T, D]`` with a filter a sequence, ``taps [B, T]``; by FFT of length
    2T, so that nothing wraps around, in float32 or wider; of the type of ``x``."""
    size = 2 * x.shape[1]
    compute_dtype = torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        spectrum = torch.fft.rfft(x.to(compute_dtype), n=size, dim=1)
        response = torch.fft.rfft(taps.to(compute_dtype), n=size, dim=1)[..., None]
        return torch.fft.irfft(spectrum * response, n=size, dim=1)[:, : x.shape[1]].to(x.dtype)


def autocorrelation(keys: torch.Tensor) -> torch.Tensor:
    """r_s = Σ_t ⟨k_t, k_{t−s−1}⟩ for s from 0 to T − 1, ``[B, T]``, of ``keys [B, T, D]``; the last is 0."""
    size = 2 * keys.shape[1]
    compute_dtype = torch.promote_types(keys.dtype, torch.float32)
    with torch.autocast(keys.device.type, enabled=False):
        spectrum = torch.fft.rfft(keys.to(compute_dtype), n=size, dim=1)
        power = (spectrum.real.square() + spectrum.imag.square()).sum(dim=-1)
        return torch.fft.irfft(power, n=size, dim=1)[:, 1 : keys.shape[1] + 1]


def _transform(size: int) -> float:
    """Operations of a real FFT of length ``size``."""
    return 2.5 * size * math.log2(size)
