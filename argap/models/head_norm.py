"""The norm of each head's output, where nothing else sets its size."""

import math

import torch
from torch import nn

EPSILON = 1e-5


class HeadNorm(nn.RMSNorm):
    """RMSNorm over a head's values ``[..., V]``, one weight for each of the V that all heads share.

    The weight starts at the size of a projection of the normed input. At 1 the layer would write several
    times what the token embeddings hold, however small its values.
    """

    def __init__(self, size: int, width: int, eps: float = EPSILON) -> None:
        super().__init__(size, eps=eps)
        self.width = width

    def initialize(self, std: float, residual_std: float) -> None:
        nn.init.constant_(self.weight, std * math.sqrt(self.width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(self.weight.dtype))
