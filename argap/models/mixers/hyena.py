"""Hyena: alternating long convolutions and gates, with filters computed by an MLP of the position.

Legend: B batch, T positions, D width, O order, H heads, C = D / H, N taps of a filter.
"""

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from argap.kernels.convolution.toeplitz_convolution import takes_products
from argap.kernels.convolution.trained_convolution import trains_products
from argap.models.mixer import (
    AtLeastOne,
    AtLeastTwo,
    Mixer,
    ResidualLinear,
    at_least_float32,
    longest,
    split_heads,
    without_decay,
)
from argap.models.mixers.convolution import (
    ShortConvolution,
    SpectrumCache,
    by_channel,
    convolution_flops,
    convolution_step,
)
from argap.models.mixers.filters import position_features
from argap.models.past import Recent

FAST, SLOW, TARGET, SHIFT = 0.3, 1.5, 0.01, 0.05
"""The window: the fastest channel falls to ``TARGET`` at 0.3 of the longest sequence, the slowest at 1.5 of it, and
``SHIFT`` is added so that every tap stays within reach."""

State = tuple[Recent, tuple[Recent, ...]]


class Hyena(Mixer):
    """y = z^{O+1} with z^1 = v and z^{n+1} = x^n ⊙ (h^n ∗ z^n + b^n ⊙ z^n) (arXiv 2302.10866, definition 3.1).

    v, x^1 … x^O are linear maps of the input, each followed by a short convolution (algorithm 1); the h^n are implicit
    filters (algorithm 2, equation 7) and b^n is one skip per channel, as in the published models; a projection follows.
    The published code omits h^1, whose place the short convolution takes; here all O filters of algorithm 3 are long.

    Options: ``order`` O; ``heads`` H: channels c, c + C, … share a filter; ``short_kernel``, taps of the short
    convolution; for the filter's MLP ``bands``, the frequencies of its features, ``filter_width``, ``filter_depth``,
    its number of layers, and ``sine_frequency``, the initial ω of its sines.

    Raises `ArgapError` for a width that does not split into the heads, and without ``max_positions``, where the filters
    end.
    """

    source = "arXiv 2302.10866, definition 3.1, algorithms 1 to 3"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        order: AtLeastTwo = 2,
        heads: int = 1,
        short_kernel: AtLeastOne = 3,
        bands: AtLeastOne = 16,
        filter_width: AtLeastOne = 64,
        filter_depth: AtLeastTwo = 4,
        sine_frequency: float = 14.0,
    ) -> None:
        super().__init__()
        self.heads = split_heads("hyena", width, heads)
        taps = longest(max_positions, "hyena: its filters need")
        self.order, self.taps, self.spectra = order, taps, SpectrumCache()
        self.projection = nn.Linear(width, (order + 1) * width, bias=False)
        self.short = ShortConvolution((order + 1) * width, short_kernel, bias=True)
        channels = order * width // heads
        self.filter = HyenaFilter(channels, taps, bands, filter_width, filter_depth, sine_frequency)
        self.skip = nn.Parameter(torch.empty(order, width))
        self.out = ResidualLinear(width, width, bias=False)
        without_decay(self.skip, *self.filter.parameters())  # as the authors register them (safari, hyena.py)

    def initialize(self, std: float, residual_std: float) -> None:
        """Initialise b with unit variance, as in the published code."""
        nn.init.normal_(self.skip)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        trains = trains_products(x, self.projection.weight)
        mapped = by_channel(self.projection, x) if trains else self.projection(x)
        mixed = self.short(mapped, by_channel=trains or takes_products(x))
        z, *gates = mixed.chunk(self.order + 1, dim=-1)
        convolutions = self.spectra.convolutions(
            z, self.filter, self.taps, lambda: self._by_order(self.filter(x.shape[1]))
        )
        for gate, convolve, skip in zip(gates, convolutions, self.skip, strict=True):
            z = convolve(z, gate=gate, skip=skip)
        return self.out(z)

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return the short convolution's state, and the inputs ``[B, ≤ N − 1, D]`` of each long one."""
        empty = Recent.of(torch.empty(batch, 0, self.out.in_features, dtype=dtype, device=device), self.taps - 1)
        return self.short.init_state(batch, dtype, device), (empty,) * self.order

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        short, pasts = state
        mixed, short = self.short.step(self.projection(x), short)
        z, *gates = mixed.chunk(self.order + 1, dim=-1)
        filters = self._by_order(self.spectra.taps(self.filter, pasts[0].values.shape[1] + 1))
        after = []
        for gate, past, taps, skip in zip(gates, pasts, filters, self.skip, strict=True):
            convolved, past = convolution_step(z, past, taps)
            z = gate * (convolved + skip * z)
            after.append(past)
        return self.out(z), (short, tuple(after))

    def state_size(self, length: int) -> int:
        """Count the short convolution's state, and O·D for each position that the filters reach, min(N − 1, T)."""
        return self.short.state_size(length) + self.order * min(self.taps - 1, length) * self.out.in_features

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count the short convolution, the filters, and for each order a long convolution, skip and gate.

        The long convolution is that of `convolution_flops`; skip and gate take 3·B·T·D.
        """
        width = self.out.in_features
        each = convolution_flops(batch, length, width, self.taps) + 3 * batch * length * width
        return self.short.flops(batch, length) + self.filter.flops(length) + self.order * each

    def _by_order(self, taps: torch.Tensor) -> list[torch.Tensor]:
        """Split the ``taps [N, channels]`` of all orders into each order's filter ``[N, D]``."""
        filters = taps.chunk(self.order, dim=-1)
        return [each.repeat(1, self.heads) for each in filters] if self.heads > 1 else list(filters)


class HyenaFilter(nn.Module):
    """h_s = (e^{−α s/(N−1)} + shift)·MLP(features of s)/√N, each channel with its own decay rate α.

    The features are `argap.models.mixers.filters.position_features`; the MLP's nonlinearity is sin(ω·), with a learned
    ω per unit. 1/√N is ours, as in `argap.models.mixers.filters.ImplicitFilter`.
    """

    def __init__(self, width: int, taps: int, bands: int, hidden: int, depth: int, frequency: float) -> None:
        super().__init__()
        self.taps, self.bands, self.initial_frequency = taps, bands, frequency
        sizes = [1 + 2 * bands] + [hidden] * (depth - 1)
        self.inner = nn.ModuleList(FilterLinear(size, after) for size, after in pairwise(sizes))
        self.frequency = nn.Parameter(torch.empty(depth - 1, hidden))
        self.outer = FilterLinear(hidden, width, bias=False)

    def initialize(self, std: float, residual_std: float) -> None:
        """Set every ω to its option's value."""
        nn.init.constant_(self.frequency, self.initial_frequency)

    def forward(self, taps: int) -> torch.Tensor:
        """Return the first ``taps`` of the filter, ``[≤ taps, channels]``, in float32 or wider even under autocast."""
        weight = self.outer.weight
        compute_dtype = at_least_float32(weight.dtype)
        with torch.autocast(weight.device.type, enabled=False):
            z = position_features(min(taps, self.taps), self.taps, self.bands, compute_dtype, weight.device)
            time = z[:, :1]
            for layer, frequency in zip(self.inner, self.frequency.to(compute_dtype), strict=True):
                z = torch.sin(frequency * layer(z))
            fall = -math.log(TARGET)
            rates = torch.linspace(fall / SLOW, fall / FAST, len(weight), device=weight.device, dtype=compute_dtype)
            return self.outer(z) * (torch.exp(-time * rates) + SHIFT) / math.sqrt(self.taps)

    def flops(self, taps: int) -> int:
        """Count the maps of the MLP, for each tap."""
        layers = [layer for layer in (*self.inner, self.outer) if isinstance(layer, nn.Linear)]
        return 2 * min(taps, self.taps) * sum(layer.weight.numel() for layer in layers)


class FilterLinear(nn.Linear):
    """A linear map of a filter's MLP, applied in the dtype of its input."""

    def initialize(self, std: float, residual_std: float) -> None:
        """Initialise as torch does linear maps, to match the sines' frequencies: uniform within ±1/√(inputs)."""
        bound = 1 / math.sqrt(self.in_features)
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        bias = None if self.bias is None else self.bias.to(input.dtype)
        return F.linear(input, self.weight.to(input.dtype), bias)
