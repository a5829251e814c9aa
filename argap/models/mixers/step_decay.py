"""Decays from step sizes: log a = −Δ e^λ with Δ = softplus(x + b), as in Mamba-2, Gated DeltaNet and KDA.

Legend: H heads, C channels of a head.
"""

import math

import torch
from torch import nn
from transformers.initialization import copy_

from argap.kernels.fused.step_decay import step_and_decay, step_decay
from argap.models.mixer import at_least_float32, without_decay

SMALLEST_STEP, LARGEST_STEP = 0.001, 0.1


class StepDecay(nn.Module):
    """Step sizes and log decays of H heads, from logits of one number per head or one per channel."""

    def __init__(self, heads: int, channels: int = 1, *, slowest: float = 1.0) -> None:
        """Take the smallest initial e^λ as ``slowest``; the largest is 16, as in the authors' code of all three."""
        super().__init__()
        self.slowest = slowest
        self.log_rate = nn.Parameter(torch.empty(heads))
        self.bias = nn.Parameter(torch.empty(heads, channels))
        without_decay(self.log_rate, self.bias)  # dynamics

    def initialize(self, std: float, residual_std: float) -> None:
        """Draw e^λ uniformly up to 16; biases give step sizes log-uniform in [0.001, 0.1]."""
        copy_(self.log_rate, torch.empty_like(self.log_rate, dtype=torch.float32).uniform_(self.slowest, 16).log())
        copy_(self.bias, step_biases(self.bias))

    def forward(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return Δ and log a ``[..., H, C]`` of ``logits [..., H·C]``, in float32 or wider."""
        rate = -self.log_rate.to(at_least_float32(logits.dtype)).exp()
        step, decay = step_and_decay(logits, self.bias.flatten(), rate)
        return step.unflatten(-1, self.bias.shape), decay.unflatten(-1, self.bias.shape)

    def log_decay(self, logits: torch.Tensor) -> torch.Tensor:
        """Return log a alone, in one pass over memory on a GPU."""
        return step_decay(logits, self.bias.flatten(), self.log_rate).unflatten(-1, self.bias.shape)


def step_biases(like: torch.Tensor) -> torch.Tensor:
    """Draw biases before softplus that give step sizes log-uniform in [0.001, 0.1] (arXiv 2312.00752, section 3.6)."""
    steps = torch.empty_like(like, dtype=torch.float32).uniform_(math.log(SMALLEST_STEP), math.log(LARGEST_STEP))
    return steps.exp().expm1().log()  # the inverse of softplus
