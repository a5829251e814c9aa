"""The filters of convolutional mixers: modules that compute the taps ``[N, D]`` of a causal convolution.

Legend: D width, N taps; tap s weighs the input s positions back.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from argap.models.mixer import at_least_float32


def position_features(count: int, taps: int, bands: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return time, cosine and negative sine of the first ``count`` taps s: ``[count, 1 + 2·bands]``.

    Time is s/(N − 1); the angles are 2π·s/N times frequencies from 0 (10⁻⁴) to ``bands`` − 1, evenly spaced (arXiv
    2302.10866, appendix D.3; arXiv 2312.04927, listing 2).
    """
    position = torch.arange(count, device=device, dtype=dtype)[:, None]
    frequencies = torch.linspace(1e-4, bands - 1, bands, device=device, dtype=dtype)
    angles = 2 * torch.pi / taps * position * frequencies
    return torch.cat([position / max(1, taps - 1), angles.cos(), -angles.sin()], dim=-1)


class ExplicitFilter(nn.Module):
    """A free parameter for each tap and channel; ``conv1d`` initialises it like torch's depthwise Conv1d."""

    def __init__(self, width: int, taps: int, *, conv1d: bool = False) -> None:
        super().__init__()
        self.conv1d = conv1d
        self.weight = nn.Parameter(torch.empty(taps, width))

    def initialize(self, std: float, residual_std: float) -> None:
        """Initialise a filter of gain ``residual_std``, or, as a Conv1d, uniformly within ±1/√N.

        All layers together then write about as much as the token embeddings hold; a gain near 1 would bury these under
        the first layer's output.
        """
        if self.conv1d:
            bound = 1 / math.sqrt(len(self.weight))
            nn.init.uniform_(self.weight, -bound, bound)
        else:
            nn.init.normal_(self.weight, std=residual_std / math.sqrt(len(self.weight)))

    def forward(self, taps: int) -> torch.Tensor:
        """Return the first ``taps`` of the filter, ``[≤ taps, D]``."""
        return self.weight[:taps]

    def flops(self, taps: int) -> int:
        """Return 0: the taps are parameters."""
        return 0


class ImplicitFilter(nn.Module):
    """An MLP of the tap's position; features and scale are ours (idea: arXiv 2302.10866, section 3.3).

    Its features are time s/(N − 1) in [0, 1], and sines and cosines of π·time times the first ``bands`` powers of 2.
    `ListingFilter` is arXiv 2312.04927's. The MLP's output is divided by √N. Its weights then have the usual size, and
    a step of AdamW, whose size is the learning rate whatever the gradient, does not overturn N taps at once.
    """

    def __init__(self, width: int, taps: int, bands: int, hidden: int) -> None:
        super().__init__()
        self.taps, self.bands = taps, bands
        self.inner_weight = nn.Parameter(torch.empty(hidden, 1 + 2 * bands))
        self.inner_bias = nn.Parameter(torch.empty(hidden))
        self.outer_weight = nn.Parameter(torch.empty(width, hidden))
        self.outer_bias = nn.Parameter(torch.empty(width))

    def initialize(self, std: float, residual_std: float) -> None:
        """Initialise to hidden values of about unit variance, and to the gain of `ExplicitFilter`."""
        hidden, features = self.inner_weight.shape
        nn.init.normal_(self.inner_weight, std=1 / math.sqrt(features))
        nn.init.normal_(self.inner_bias, std=0.5)
        nn.init.normal_(self.outer_weight, std=residual_std / math.sqrt(hidden))
        nn.init.zeros_(self.outer_bias)

    def forward(self, taps: int) -> torch.Tensor:
        """Return the first ``taps`` of the filter, ``[≤ taps, D]``, in float32 or wider even under autocast."""
        with torch.autocast(self.inner_weight.device.type, enabled=False):
            return self._mlp(min(taps, self.taps), F.gelu) / math.sqrt(self.taps)

    def _features(self, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return the features of the first ``count`` taps, ``[count, 1 + 2·bands]``."""
        time = torch.arange(count, device=device, dtype=dtype) / max(1, self.taps - 1)
        octaves = 2.0 ** torch.arange(self.bands, device=device, dtype=dtype)
        angles = torch.pi * time[:, None] * octaves
        return torch.cat([time[:, None], angles.sin(), angles.cos()], dim=-1)

    def _mlp(self, count: int, activation: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Return the MLP's output for the first ``count`` taps, ``[count, D]``."""
        dtype = at_least_float32(self.inner_weight.dtype)
        features = self._features(count, dtype, self.inner_weight.device)
        inner = activation(F.linear(features, self.inner_weight.to(dtype), self.inner_bias.to(dtype)))
        return F.linear(inner, self.outer_weight.to(dtype), self.outer_bias.to(dtype))

    def flops(self, taps: int) -> int:
        """Count the two maps of the MLP, for each tap."""
        hidden, features = self.inner_weight.shape
        return 2 * min(taps, self.taps) * hidden * (features + len(self.outer_weight))


class ListingFilter(ImplicitFilter):
    """The implicit filter as printed: an MLP of `position_features` with ReLU, without a scale.

    From arXiv 2312.04927, listing 2; HazyResearch/zoology, zoology/mixers/listing.py.
    """

    def initialize(self, std: float, residual_std: float) -> None:
        """Initialise as the authors' model does every linear map (zoology/model.py): normal(0.02), biases 0."""
        for weight in (self.inner_weight, self.outer_weight):
            nn.init.normal_(weight, std=std)
        for bias in (self.inner_bias, self.outer_bias):
            nn.init.zeros_(bias)

    def forward(self, taps: int) -> torch.Tensor:
        with torch.autocast(self.inner_weight.device.type, enabled=False):
            return self._mlp(min(taps, self.taps), F.relu)

    def _features(self, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return position_features(count, self.taps, self.bands, dtype, device)
