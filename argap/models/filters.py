"""The filters of convolutional mixers: what makes the taps ``[N, D]`` of a causal convolution.

Legend: D width, N taps; tap s weighs the input s positions back.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn


class ExplicitFilter(nn.Module):
    """A free parameter for each tap and channel."""

    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(taps, width))

    def initialize(self, std: float, residual_std: float) -> None:
        """A filter of gain ``residual_std``. All layers together then write about as much as the token
        embeddings hold; a gain near 1 would bury these under the first layer's output."""
        nn.init.normal_(self.weight, std=residual_std / math.sqrt(len(self.weight)))

    def forward(self, taps: int) -> torch.Tensor:
        """The first ``taps`` of the filter, ``[≤ taps, D]``."""
        return self.weight[:taps]

    def flops(self, taps: int) -> int:
        """None: the taps are there."""
        return 0


class ImplicitFilter(nn.Module):
    """An MLP of the tap's position: time s/(N − 1) in [0, 1], and sines and cosines of π·time times the
    first ``bands`` powers of 2 (arXiv 2312.04927, listing 2; the idea: arXiv 2302.10866, section 3.3).

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
        """Hidden values of about unit variance, and the gain that `ExplicitFilter` has."""
        hidden, features = self.inner_weight.shape
        nn.init.normal_(self.inner_weight, std=1 / math.sqrt(features))
        nn.init.normal_(self.inner_bias, std=0.5)
        nn.init.normal_(self.outer_weight, std=residual_std / math.sqrt(hidden))
        nn.init.zeros_(self.outer_bias)

    def forward(self, taps: int) -> torch.Tensor:
        """The first ``taps`` of the filter, ``[≤ taps, D]``, in float32 or wider whatever autocast says."""
        device = self.inner_weight.device
        compute_dtype = torch.promote_types(self.inner_weight.dtype, torch.float32)
        with torch.autocast(device.type, enabled=False):
            time = torch.arange(min(taps, self.taps), device=device, dtype=compute_dtype) / max(1, self.taps - 1)
            octaves = 2.0 ** torch.arange(self.bands, device=device, dtype=compute_dtype)
            angles = torch.pi * time[:, None] * octaves
            features = torch.cat([time[:, None], angles.sin(), angles.cos()], dim=-1)
            inner = F.gelu(F.linear(features, self.inner_weight.to(compute_dtype), self.inner_bias.to(compute_dtype)))
            outer = F.linear(inner, self.outer_weight.to(compute_dtype), self.outer_bias.to(compute_dtype))
            return outer / math.sqrt(self.taps)

    def flops(self, taps: int) -> int:
        """The two maps of the MLP, for each tap."""
        hidden, features = self.inner_weight.shape
        return 2 * min(taps, self.taps) * hidden * (features + len(self.outer_weight))
