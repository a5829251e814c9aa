"""BaseConv: the gated convolution to which the Zoology paper reduces the others.

Legend: B batch, T positions, D width, N filter taps.
"""

import math
from typing import Literal

import torch
from torch import nn

from argap.kernels.fused.gated_product import gated_product
from argap.models.mixer import AtLeastOne, Mixer, longest
from argap.models.mixers.convolution import SpectrumCache, convolution_flops, convolution_step
from argap.models.mixers.filters import ExplicitFilter, ImplicitFilter, ListingFilter
from argap.models.past import Recent

Filter = Literal["explicit", "implicit", "listing"]
Bias = Literal["vector", "definition"]
State = tuple[Recent, int | torch.Tensor]


class BaseConv(Mixer):
    """y = (u W + b1) ⊙ (h ∗ u + b2) (arXiv 2312.04927, definition 4.1), with one filter h per channel.

    Options:

    - ``filter``: ``explicit``, a free parameter for each tap (listing 1 of the paper's appendix B); ``listing``, the
      MLP of the tap's position printed in listing 2; ``implicit``, ours, with octaves as features and scaled.
    - ``kernel_size``: taps N of the filter; None: as long as the longest sequence, in which case the model must set
      ``max_position_embeddings``.
    - ``bias``: ``vector``, b1 and b2 in R^D as in the listings; ``definition``, in R^{N_max×D}, one for
      each position of the longest sequence, as in definition 4.1.
    - ``skip``: adds u, as both listings and the published code do; the block still adds its residual. b1 then
      starts at 0, and an explicit filter and its b2 start like the Conv1d of the published code.
    - ``bands``, ``filter_width``: frequencies of an MLP's features and its hidden width; None: 1 and 16 for
      ``listing``, 8 and 32 for ``implicit``.

    Raises `ArgapError` if the longest sequence is needed and not given.
    """

    source = "arXiv 2312.04927, definition 4.1, listings 1 and 2"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        filter: Filter = "explicit",
        kernel_size: AtLeastOne | None = 3,
        bias: Bias = "vector",
        skip: bool = False,
        bands: AtLeastOne | None = None,
        filter_width: AtLeastOne | None = None,
    ) -> None:
        super().__init__()
        taps = longest(max_positions, "base_conv: kernel_size null needs") if kernel_size is None else kernel_size
        shape = (width,) if bias == "vector" else (longest(max_positions, "base_conv: bias 'definition' needs"), width)
        self.taps, self.skip, self.spectra = taps, skip, SpectrumCache()
        self.projection = nn.Linear(width, width, bias=False)
        self.gate_bias = nn.Parameter(torch.empty(shape))
        if filter == "explicit":
            self.filter = ExplicitFilter(width, taps, conv1d=skip)
        else:
            made, usual_bands, usual_width = (ListingFilter, 1, 16) if filter == "listing" else (ImplicitFilter, 8, 32)
            self.filter = made(width, taps, bands or usual_bands, filter_width or usual_width)
        self.conv_bias = nn.Parameter(torch.empty(shape))

    def initialize(self, std: float, residual_std: float) -> None:
        """Set b1 = 1 and b2 = 0, so that the layer starts as a convolution modulated by its gate.

        With both at 0 it would be quadratic in a small input, and its gradient would vanish. With ``skip`` u itself
        passes: b1 = 0, and b2 of an explicit filter is uniform within ±1/√N.
        """
        if not self.skip:
            nn.init.ones_(self.gate_bias)
            nn.init.zeros_(self.conv_bias)
            return
        bound = 1 / math.sqrt(self.taps) if isinstance(self.filter, ExplicitFilter) else 0.0
        nn.init.zeros_(self.gate_bias)
        nn.init.uniform_(self.conv_bias, -bound, bound)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        (convolve,) = self.spectra.convolutions(x, self.filter, self.taps, lambda: [self.filter(length)])
        gate_bias, conv_bias = (_at(bias, slice(length)) for bias in (self.gate_bias, self.conv_bias))
        y = gated_product(self.projection(x), convolve(x), gate_bias=gate_bias, value_bias=conv_bias)
        return y + x if self.skip else y

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return the last N − 1 inputs ``[B, ≤ N − 1, D]`` and the number of positions so far."""
        empty = torch.empty(batch, 0, self.projection.in_features, dtype=dtype, device=device)
        return Recent.of(empty, self.taps - 1), 0

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor) -> tuple[torch.Tensor, State]:
        return self(x), (Recent.of(x, self.taps - 1), x.shape[1])

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        past, position = state
        mixed, past = convolution_step(x, past, self.spectra.taps(self.filter, past.values.shape[1] + 1))
        gate = self.projection(x) + _at(self.gate_bias, position)
        y = gate * (mixed + _at(self.conv_bias, position))
        return y + x if self.skip else y, (past, position + 1)

    def state_size(self, length: int) -> int:
        """Count the inputs that the filter still reaches: min(N − 1, T)·D."""
        return min(self.taps - 1, length) * self.projection.in_features

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count biases, gate and skip, 3 or 4·B·T·D, the filter, and the convolution (`convolution_flops`)."""
        width = self.projection.in_features
        pointwise = (3 + self.skip) * batch * length * width
        return pointwise + self.filter.flops(length) + convolution_flops(batch, length, width, self.taps)


def _at(bias: torch.Tensor, position: slice | int | torch.Tensor) -> torch.Tensor:
    """Return the bias at a position, a number or ``[1]``, or the same bias everywhere."""
    return bias if bias.ndim == 1 else bias[position]
