"""Ungated long convolution: an explicit filter as long as the sequence, regularised towards short ones.

Legend: B batch, T positions, D width, N filter taps.
"""

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import nn
from transformers.initialization import copy_

from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, longest, without_decay
from argap.models.mixers.convolution import SpectrumCache, convolution_flops, convolution_step
from argap.models.past import Recent


class DecayingFilter(nn.Module):
    """An explicit filter, one parameter per tap and channel, initialised with a decay and regularised by squashing.

    Squash (arXiv 2302.06646, section 3.2) soft-thresholds every tap at λ = ``squash``: sign(h)·max(|h| − λ, 0). Taps
    that do not reduce the loss vanish.
    """

    def __init__(self, width: int, taps: int, squash: float) -> None:
        super().__init__()
        self.squash = squash
        self.weight = nn.Parameter(torch.empty(taps, width))
        without_decay(self.weight)  # squash already regularises it; the paper's code exempts it too

    def initialize(self, std: float, residual_std: float) -> None:
        """Initialise with a Gaussian times the paper's decay e^{−(s/N)·(D/2)^{c/D}} at tap s of channel c.

        The first channels span the whole sequence, the last ones decay early. Each filter is scaled to gain √½, so that
        together with the skip it preserves unit variance.
        """
        taps, width = self.weight.shape
        like = {"dtype": torch.float32, "device": self.weight.device}
        rates = (width / 2) ** (torch.arange(width, **like) / width)
        decay = torch.exp(-torch.arange(taps, **like)[:, None] / taps * rates)
        copy_(self.weight, torch.randn_like(decay) * decay / (math.sqrt(2) * decay.norm(dim=0)))

    def forward(self, taps: int) -> torch.Tensor:
        """Return the first ``taps`` of the filter, ``[≤ taps, D]``."""
        return F.softshrink(self.weight[:taps], self.squash)


class LongConv(Mixer):
    """y = W GELU(h ∗ u + b ⊙ u) (arXiv 2302.06646, section 3), with one filter h per channel and no gate.

    The paper's language models add H3's gates and its other models a gated linear unit after W. This mixer has
    neither, like the plain convolution measured in arXiv 2312.04927.

    Options:

    - ``kernel_size``: filter taps N. None means the model's ``max_position_embeddings``, which must then be set.
    - ``squash``: λ of the filter's regularisation; by default 0.001, as in the paper's image models.

    Raises `ArgapError` without either.
    """

    source = "arXiv 2302.06646, section 3"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        kernel_size: AtLeastOne | None = None,
        squash: Annotated[float, Meta(ge=0)] = 0.001,
    ) -> None:
        super().__init__()
        taps = kernel_size or longest(max_positions, "long_conv: kernel_size null needs")
        self.taps, self.spectra = taps, SpectrumCache()
        self.filter = DecayingFilter(width, taps, squash)
        self.skip = nn.Parameter(torch.empty(width))
        self.out = ResidualLinear(width, width, bias=False)

    def initialize(self, std: float, residual_std: float) -> None:
        """Initialise b with variance ½, to match the filter's gain of √½."""
        nn.init.normal_(self.skip, std=math.sqrt(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (convolve,) = self.spectra.convolutions(x, self.filter, self.taps, lambda: [self.filter(x.shape[1])])
        return self.out(F.gelu(convolve(x) + self.skip * x))

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Recent:
        """Return the last N − 1 inputs ``[B, ≤ N − 1, D]``."""
        return Recent.of(torch.empty(batch, 0, self.out.in_features, dtype=dtype, device=device), self.taps - 1)

    def step(self, x: torch.Tensor, state: Recent) -> tuple[torch.Tensor, Recent]:
        mixed, state = convolution_step(x, state, self.spectra.taps(self.filter, state.values.shape[1] + 1))
        return self.out(F.gelu(mixed + self.skip * x)), state

    def state_size(self, length: int) -> int:
        """Count the inputs still within the filter's reach: min(N − 1, T)·D."""
        return min(self.taps - 1, length) * self.out.in_features

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count the skip, 2·B·T·D, and `convolution_flops`; squash and GELU are not counted."""
        width = self.out.in_features
        return 2 * batch * length * width + convolution_flops(batch, length, width, self.taps)
