"""BaseConv: the gated convolution to which the Zoology paper reduces the others.

Legend: B batch, T positions, D width, N the filter's length.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from argap.errors import ArgapError
from argap.models.mixer import Mixer

Bias = Literal["vector", "definition"]


class BaseConv(Mixer):
    """y = (u W + b1) ⊙ (h ∗ u + b2) (arXiv 2312.04927, definition 4.1), with a filter a channel.

    Options:

    - ``filter``: ``explicit``, a free parameter for each tap; ``implicit``, an MLP of the tap's position
      (listings 1 and 2 of the paper's appendix B, without their ``+ u``: the block adds the residual).
    - ``kernel_size``: taps N of the filter; None: as long as the longest sequence, which the model's
      ``max_position_embeddings`` must then give.
    - ``bias``: ``vector``, b1 and b2 in R^D as in the listings; ``definition``, in R^{N_max×D}, one for
      each position, as in definition 4.1.
    - ``bands``, ``filter_width``: sines in the implicit filter's features, and its MLP's hidden width.
    """

    source = "arXiv 2312.04927, definition 4.1, listings 1 and 2"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        filter: Literal["explicit", "implicit"] = "explicit",
        kernel_size: int | None = 3,
        bias: Bias = "vector",
        bands: int = 8,
        filter_width: int = 32,
    ) -> None:
        super().__init__()
        taps = kernel_size or max_positions
        if taps is None or (bias == "definition" and max_positions is None):
            raise ArgapError("base_conv: a long filter or bias per position needs the model's max_position_embeddings")
        if filter not in ("explicit", "implicit"):
            raise ArgapError(f"base_conv: filter {filter!r}; expected explicit or implicit")
        if bias not in ("vector", "definition"):
            raise ArgapError(f"base_conv: bias {bias!r}; expected vector or definition")
        shape = (width,) if bias == "vector" else (max_positions or 0, width)
        self.taps = taps
        self.projection = nn.Linear(width, width, bias=False)
        self.gate_bias = nn.Parameter(torch.empty(shape))
        self.filter = (
            ExplicitFilter(width, taps) if filter == "explicit" else ImplicitFilter(width, taps, bands, filter_width)
        )
        self.conv_bias = nn.Parameter(torch.empty(shape))

    def initialize(self, std: float, residual_std: float) -> None:
        """b1 = 1 and b2 = 0, so that the layer starts as a convolution that its gate modulates: with both
        at 0 it would be quadratic in a small input, and its gradient would vanish."""
        nn.init.ones_(self.gate_bias)
        nn.init.zeros_(self.conv_bias)

    def forward(self, x: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        gate = self.projection(x) + self._at(self.gate_bias, slice(length))
        taps = min(self.taps, length)
        convolve = short_convolution if taps <= SHORT else long_convolution
        return gate * (convolve(x, self.filter(taps)) + self._at(self.conv_bias, slice(length)))

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, int]:
        """The last N − 1 inputs ``[B, ≤ N − 1, D]`` and the number of positions so far."""
        return torch.empty(batch, 0, self.projection.in_features, dtype=dtype, device=device), 0

    def step(self, x: torch.Tensor, state: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, tuple[torch.Tensor, int]]:
        past, position = state
        seen = torch.cat([past, x[:, None]], dim=1)
        taps = self.filter(seen.shape[1])
        mixed = torch.einsum("btd,td->bd", seen.to(taps.dtype), taps.flip(0)).to(x.dtype)
        gate = self.projection(x) + self._at(self.gate_bias, position)
        y = gate * (mixed + self._at(self.conv_bias, position))
        return y, (seen[:, max(0, seen.shape[1] - self.taps + 1) :], position + 1)

    def state_size(self, length: int) -> int:
        """The inputs that the filter still reaches: min(N − 1, T)·D."""
        return min(self.taps - 1, length) * self.projection.in_features

    def flops(self, batch: int, length: int) -> int:
        """Projection 2·B·T·D², gate 2·B·T·D, and the convolution: 2·N a value directly, or three real
        transforms of length M = 2T at 2.5·M·log₂ M a channel with 3·M of products between."""
        width = self.projection.in_features
        taps = min(self.taps, length)
        if taps <= SHORT:
            per_channel = 2 * taps * length
        else:
            size = 2 * length
            per_channel = round(3 * 2.5 * size * math.log2(size)) + 3 * size
        return 2 * batch * length * width**2 + 2 * batch * length * width + batch * width * per_channel

    @staticmethod
    def _at(bias: torch.Tensor, position: slice | int) -> torch.Tensor:
        """The bias at a position, or the same everywhere."""
        return bias if bias.ndim == 1 else bias[position]


class ExplicitFilter(nn.Module):
    """A free parameter for each tap and channel."""

    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(taps, width))

    def initialize(self, std: float, residual_std: float) -> None:
        """The output's size is that of a ``[D, D]`` map that writes to the residual stream: a filter of
        gain 1 would bury the token embeddings under the first layer's output."""
        taps, width = self.weight.shape
        nn.init.normal_(self.weight, std=residual_std * math.sqrt(width / taps))

    def forward(self, taps: int) -> torch.Tensor:
        """The first ``taps`` of the filter, ``[taps, D]``; tap s weighs the input s positions back."""
        return self.weight[:taps]


class ImplicitFilter(nn.Module):
    """An MLP of the tap's position: time in [0, 1], sines and cosines of ``bands`` frequencies.

    The MLP's output is divided by √N. Its weights then have the size that weights usually have, and a
    step of AdamW, whose size is the learning rate whatever the gradient, does not overturn N taps at once.
    """

    def __init__(self, width: int, taps: int, bands: int, hidden: int) -> None:
        super().__init__()
        self.taps, self.bands = taps, bands
        self.inner_weight = nn.Parameter(torch.empty(hidden, 1 + 2 * bands))
        self.inner_bias = nn.Parameter(torch.empty(hidden))
        self.outer_weight = nn.Parameter(torch.empty(width, hidden))
        self.outer_bias = nn.Parameter(torch.empty(width))

    def initialize(self, std: float, residual_std: float) -> None:
        """Hidden values of about unit variance, and an output as `ExplicitFilter` has."""
        hidden, features = self.inner_weight.shape
        width = len(self.outer_weight)
        nn.init.normal_(self.inner_weight, std=1 / math.sqrt(features))
        nn.init.normal_(self.inner_bias, std=0.5)
        nn.init.normal_(self.outer_weight, std=residual_std * math.sqrt(width / hidden))
        nn.init.zeros_(self.outer_bias)

    def forward(self, taps: int) -> torch.Tensor:
        """The first ``taps`` of the filter, ``[taps, D]``, in float32 (or wider) whatever autocast says."""
        device = self.inner_weight.device
        kind = torch.promote_types(self.inner_weight.dtype, torch.float32)
        with torch.autocast(device.type, enabled=False):
            position = torch.arange(taps, device=device, dtype=kind)
            time = position / max(1, self.taps - 1)
            octaves = 2.0 ** torch.arange(self.bands, device=device, dtype=kind)
            angles = torch.pi * time[:, None] * octaves
            features = torch.cat([time[:, None], angles.sin(), angles.cos()], dim=-1)
            inner = F.gelu(F.linear(features, self.inner_weight.to(kind), self.inner_bias.to(kind)))
            return F.linear(inner, self.outer_weight.to(kind), self.outer_bias.to(kind)) / math.sqrt(self.taps)


SHORT = 32
"""Filters up to so many taps are applied directly, longer ones by FFT."""


def short_convolution(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Causal depthwise convolution of ``x [B, T, D]`` with ``taps [N, D]``, tap by tap."""
    length = x.shape[1]
    padded = F.pad(x, (0, 0, len(taps) - 1, 0))
    y = torch.zeros_like(x)
    for back, tap in enumerate(taps.unbind(0)):
        start = len(taps) - 1 - back
        y = y + padded[:, start : start + length] * tap.to(x.dtype)
    return y


def long_convolution(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """The same by FFT in float32 or wider, padded to 2T so that nothing wraps around."""
    length = x.shape[1]
    kind = torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        spectrum = torch.fft.rfft(x.to(kind), n=2 * length, dim=1)
        response = torch.fft.rfft(taps.to(kind), n=2 * length, dim=0)
        return torch.fft.irfft(spectrum * response, n=2 * length, dim=1)[:, :length].to(x.dtype)
