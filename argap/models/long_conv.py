"""The ungated long convolution: a free filter as long as the sequence, held short by its regularisation.

Legend: B batch, T positions, D width, N the filter's taps.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers.initialization import copy_

from argap.errors import ArgapError
from argap.models.convolution import SpectrumCache, convolution_flops, convolution_step
from argap.models.mixer import Mixer, ResidualLinear


class DecayingFilter(nn.Module):
    """A free parameter for each tap and channel, which starts with a decay and is squashed towards 0.

    Squash (arXiv 2302.06646, section 3.2) takes ``squash`` off every tap's magnitude, down to 0 at least:
    sign(h)·max(|h| − λ, 0). Taps that the loss does not hold up vanish.
    """

    def __init__(self, width: int, taps: int, squash: float) -> None:
        super().__init__()
        self.squash = squash
        self.weight = nn.Parameter(torch.empty(taps, width))
        # Squash is what regularises it; its own repository gives it no weight decay either.
        self.weight._no_weight_decay = True  # pyright: ignore[reportAttributeAccessIssue]

    def initialize(self, std: float, residual_std: float) -> None:
        """Normal values times the paper's decay e^{−(s/N)·(D/2)^{c/D}} at tap s of channel c, from one
        that reaches over the whole sequence to one that ends early. Each channel is scaled to gain √½: with
        the skip, unit variance in gives unit variance out."""
        taps, width = self.weight.shape
        like = {"dtype": torch.float32, "device": self.weight.device}
        rates = (width / 2) ** (torch.arange(width, **like) / width)
        decay = torch.exp(-torch.arange(taps, **like)[:, None] / taps * rates)
        copy_(self.weight, torch.randn_like(decay) * decay / (math.sqrt(2) * decay.norm(dim=0)))

    def forward(self, taps: int) -> torch.Tensor:
        """The first ``taps`` of the filter, ``[≤ taps, D]``."""
        return F.softshrink(self.weight[:taps], self.squash)


class LongConv(Mixer):
    """y = W GELU(h ∗ u + b ⊙ u) (arXiv 2302.06646, section 3), with a filter h a channel and no gate.

    The paper's language models add the gates of H3, its other ones a gated linear unit after W; without
    both, what is left is the convolution, as arXiv 2312.04927 measures it.

    Options:

    - ``kernel_size``: taps N of the filter; None: as long as the longest sequence, which the model's
      ``max_position_embeddings`` must then give.
    - ``squash``: λ of the filter's regularisation, by default 0.001 as in the paper's image models.

    Raises `ArgapError` for values that are none of these.
    """

    source = "arXiv 2302.06646, section 3"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        kernel_size: int | None = None,
        squash: float = 0.001,
    ) -> None:
        super().__init__()
        taps = max_positions if kernel_size is None else kernel_size
        if taps is None:
            raise ArgapError(
                "long_conv: kernel_size null needs the longest sequence; set the model's max_position_embeddings"
            )
        if taps < 1:
            raise ArgapError(f"long_conv: kernel_size {taps}; expected at least 1")
        if squash < 0:
            raise ArgapError(f"long_conv: squash {squash}; expected 0 or more")
        self.taps, self.spectra = taps, SpectrumCache()
        self.filter = DecayingFilter(width, taps, squash)
        self.skip = nn.Parameter(torch.empty(width))
        self.out = ResidualLinear(width, width, bias=False)

    def initialize(self, std: float, residual_std: float) -> None:
        """b of variance ½, as the filter's gain is √½."""
        nn.init.normal_(self.skip, std=math.sqrt(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        (convolve,) = self.spectra.convolutions(x, self.filter, self.taps, lambda: [self.filter(x.shape[1])])
        return self.out(F.gelu(convolve(x) + self.skip * x))

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """The last N − 1 inputs ``[B, ≤ N − 1, D]``."""
        return torch.empty(batch, 0, self.out.in_features, dtype=dtype, device=device)

    def step(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mixed, state = convolution_step(x, state, self.filter(state.shape[1] + 1), self.taps - 1)
        return self.out(F.gelu(mixed + self.skip * x)), state

    def state_size(self, length: int) -> int:
        """The inputs that the filter still reaches: min(N − 1, T)·D."""
        return min(self.taps - 1, length) * self.out.in_features

    def flops(self, batch: int, length: int) -> int:
        """The projection 2·B·T·D², the skip 2·B·T·D, and the convolution as `convolution_flops` has it;
        squash and GELU are left out."""
        width = self.out.in_features
        pointwise = batch * length * (2 * width**2 + 2 * width)
        return pointwise + convolution_flops(batch, length, width, self.taps)
