"""Gated convolutions with an input-dependent filter, which has a spike at each distance at which tokens repeat.

Legend: B batch, T positions, D width. The tap at shift s reads the input s positions earlier.
"""

import math
from abc import abstractmethod
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, at_least_float32


class InputDependentConv(Mixer):
    """y = (u W + b1) ⊙ (h(u) ∗ u + b2): BaseConv (arXiv 2312.04927, definition 4.1) with an input-dependent filter.

    Each sequence has one filter h, shared by all channels; BaseConv has one filter per channel, shared by all
    sequences. Section 4.3 of the paper motivates this: fixed filters need a channel for every distance at which a key
    may recur (theorem 4.4), an input-dependent filter only covers distances that occur (theorem 4.5). For a repeat at
    distance d, h has a spike at shift d − 1, which reads the token after the first occurrence: the key's value. (The
    paper leaves the spike's position open; with this choice one layer suffices for recall.)

    h depends on later repeats too, and the paper gives no causal version. ``causal`` is therefore False: the mixer is
    for multi-query associative recall only, not for language models.
    """

    causal: ClassVar[bool] = False
    source = "arXiv 2312.04927, section 4.3, theorem 4.5"

    def __init__(self, width: int, max_positions: int | None = None) -> None:
        super().__init__()
        self.projection = ResidualLinear(width, width, bias=False)  # the gated product goes to the residual stream
        self.gate_bias = nn.Parameter(torch.empty(width))
        self.conv_bias = nn.Parameter(torch.empty(width))

    def initialize(self, std: float, residual_std: float) -> None:
        """Set b1 = ``residual_std`` and b2 = 0: the layer starts by passing the convolution on at other layers' scale.

        The spikes have gain 1 and no parameter that could start small.
        """
        nn.init.constant_(self.gate_bias, residual_std)
        nn.init.zeros_(self.conv_bias)

    @abstractmethod
    def taps(self, x: torch.Tensor, *ids: torch.Tensor) -> torch.Tensor:
        """Compute the filter of each sequence, ``[B, T]``, from ``x [B, T, D]`` and, with ``needs_ids``, the tokens."""

    def forward(self, x: torch.Tensor, *ids: torch.Tensor) -> torch.Tensor:
        read = sequence_convolution(x, self.taps(x, *ids))
        return (self.projection(x) + self.gate_bias) * (read + self.conv_bias)

    def state_size(self, length: int) -> int:
        """Return T·D, all inputs: the filter is known only at the end of the sequence."""
        return length * self.projection.in_features

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count biases and gate, 3·B·T·D, and the convolution by FFTs of length M = 2T at 2.5·M·log₂ M each.

        Per sequence there are two FFTs for each channel and one for the filter, plus 3·M per channel for products.
        """
        width, size = self.projection.in_features, 2 * length
        pointwise = 3 * batch * length * width
        return pointwise + round(batch * ((2 * width + 1) * _transform(size) + 3 * size * width))


class ProgrammaticConv(InputDependentConv):
    """Filter from token ids: h_s = 1 if any token equals the one s + 1 positions earlier, else 0.

    A constant fill token repeats at every distance and makes the filter all ones: use random noise tokens instead.
    """

    needs_ids: ClassVar[bool] = True

    def taps(self, x: torch.Tensor, *ids: torch.Tensor) -> torch.Tensor:
        """Return zeros and ones ``[B, T]``, from the tokens ``[B, T]``."""
        (tokens,) = ids
        length = tokens.shape[1]
        before = F.pad(tokens, (length, 0), value=-1).unfold(1, length, 1)[:, :length]  # tokens t − T … t − 1
        return (before == tokens[..., None]).any(dim=1).flip(1).to(x.dtype)


class AutocorrelationConv(InputDependentConv):
    """Filter from the autocorrelation of k = u W_k: r_s = Σ_t ⟨k_t, k_{t−s−1}⟩, computed by FFT.

    h keeps the ``shifts`` largest r_s, divided by the sum of their magnitudes so that its gain is at most 1. Gradients
    through these values teach W_k which tokens count as equal. (The paper proposes the autocorrelation; keeping the
    largest values and their normalisation are our choices.)

    Option ``shifts``: taps that h keeps.
    """

    def __init__(self, width: int, max_positions: int | None = None, *, shifts: AtLeastOne = 16) -> None:
        super().__init__(width, max_positions)
        self.shifts = shifts
        self.key = nn.Linear(width, width, bias=False)

    def taps(self, x: torch.Tensor, *ids: torch.Tensor) -> torch.Tensor:
        """Return ``[B, T]`` with at most ``shifts`` nonzero taps, in float32 or wider even under autocast."""
        scores = autocorrelation(self.key(x))
        highest = scores.topk(min(self.shifts, scores.shape[1]), dim=1)
        tiny = torch.finfo(scores.dtype).tiny
        weights = highest.values / highest.values.abs().sum(dim=1, keepdim=True).clamp_min(tiny)
        return torch.zeros_like(scores).scatter(1, highest.indices, weights)

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count the base class's operations and the autocorrelation.

        That is one transform per channel, one inverse transform, and 4·M per channel for squares and their sum.
        """
        width, size = self.projection.in_features, 2 * length
        correlation = batch * ((width + 1) * _transform(size) + 4 * size * width)
        return super().mixing_flops(batch, length) + round(correlation)


def sequence_convolution(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Compute y_t = Σ_s h_s x_{t−s} for ``x [B, T, D]``, with one filter per sequence, ``taps [B, T]``.

    Uses FFTs of length 2T, to avoid wrap-around, in float32 or wider. Returns the dtype of ``x``.
    """
    size = 2 * x.shape[1]
    compute_dtype = at_least_float32(x.dtype)
    with torch.autocast(x.device.type, enabled=False):
        spectrum = torch.fft.rfft(x.to(compute_dtype), n=size, dim=1)
        response = torch.fft.rfft(taps.to(compute_dtype), n=size, dim=1)[..., None]
        return torch.fft.irfft(spectrum * response, n=size, dim=1)[:, : x.shape[1]].to(x.dtype)


def autocorrelation(keys: torch.Tensor) -> torch.Tensor:
    """Compute r_s = Σ_t ⟨k_t, k_{t−s−1}⟩ of ``keys [B, T, D]`` for s = 0 … T − 1, as ``[B, T]``; the last is 0."""
    size = 2 * keys.shape[1]
    compute_dtype = at_least_float32(keys.dtype)
    with torch.autocast(keys.device.type, enabled=False):
        spectrum = torch.fft.rfft(keys.to(compute_dtype), n=size, dim=1)
        power = (spectrum.real.square() + spectrum.imag.square()).sum(dim=-1)
        return torch.fft.irfft(power, n=size, dim=1)[:, 1 : keys.shape[1] + 1]


def _transform(size: int) -> float:
    """Count the operations of a real FFT of length ``size``."""
    return 2.5 * size * math.log2(size)
