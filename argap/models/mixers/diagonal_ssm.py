"""A linear state space model per channel with a diagonal state matrix (S4D): a recurrence and a long filter.

Legend: B batch, T positions, C channels, S complex states per channel.
"""

import math

import torch
from torch import nn
from transformers.initialization import copy_

from argap.models.mixer import at_least_float32, without_decay


class DiagonalSSM(nn.Module):
    """x' = A x + B u, y = 2 Re(C x), discretised with one step Δ per channel (arXiv 2206.11893, sections 3 and 4).

    Zero-order hold: Ā = e^{ΔA}, B̄ = (Ā − 1)/A, hence x_t = Ā x_{t−1} + B̄ u_t and tap s of the filter is 2 Re(Σ_n C_n
    B̄_n Ā_n^s). ``states`` N counts both halves of the conjugate pairs; S = N/2 are kept. Re A = −e^{log_decay} stays
    negative, so that the state decays. B = 1, since C can absorb it, unless ``free_input`` is set, for mixers that need
    powers of B̄.
    """

    def __init__(self, channels: int, states: int, *, free_input: bool = False) -> None:
        super().__init__()
        pairs = states // 2
        self.log_step = nn.Parameter(torch.empty(channels))
        self.log_decay = nn.Parameter(torch.empty(channels, pairs))
        self.frequency = nn.Parameter(torch.empty(channels, pairs))
        self.readout = nn.Parameter(torch.empty(channels, pairs, 2))
        self.input = nn.Parameter(torch.empty(channels, pairs, 2)) if free_input else None
        without_decay(*self.parameters())  # S4 trains the dynamics without decay

    def initialize(self, std: float, residual_std: float) -> None:
        """Initialise as S4D-Lin: A_n = −½ + πn i (arXiv 2206.11893, equation 9).

        Δ is log-uniform from 0.001 to 0.1, B = 1, and C has unit complex variance.
        """
        nn.init.uniform_(self.log_step, math.log(0.001), math.log(0.1))
        nn.init.constant_(self.log_decay, math.log(0.5))
        numbers = torch.arange(self.frequency.shape[1], device=self.frequency.device, dtype=torch.float32)
        copy_(self.frequency, (torch.pi * numbers).expand_as(self.frequency))
        nn.init.normal_(self.readout, std=math.sqrt(0.5))
        if self.input is not None:
            copy_(self.input, torch.tensor([1.0, 0.0], device=self.input.device).expand_as(self.input))

    def taps(self, count: int, power: int = 1) -> torch.Tensor:
        """Return the first ``count`` taps ``[count, C]`` of the filter, with B̄ to a ``power``, in float32 or wider."""
        exponent, b, c = self.discrete()
        position = torch.arange(count, device=exponent.device, dtype=exponent.real.dtype)
        grown = torch.exp(position[:, None, None] * exponent)  # [count, C, S]
        return 2 * (c * b**power * grown).real.sum(dim=-1)

    def discrete(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return ΔA, B̄ and C, complex ``[C, S]``, in complex64 or wider even under autocast."""
        compute_dtype = at_least_float32(self.log_step.dtype)
        with torch.autocast(self.log_step.device.type, enabled=False):
            matrix = torch.complex(-self.log_decay.to(compute_dtype).exp(), self.frequency.to(compute_dtype))
            exponent = self.log_step.to(compute_dtype).exp()[:, None] * matrix
            b = (exponent.exp() - 1) / matrix
            if self.input is not None:
                b = b * torch.view_as_complex(self.input.to(compute_dtype).contiguous())
            return exponent, b, torch.view_as_complex(self.readout.to(compute_dtype).contiguous())

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return x before the first position, complex ``[B, C, S]``."""
        return torch.zeros(batch, *self.frequency.shape, dtype=at_least_float32(dtype).to_complex(), device=device)

    def step(self, inputs: list[torch.Tensor], state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Advance one position: x = Ā x + Σ_p B̄^p u_p, and its readout ``[B, C]`` in float32 or wider.

        ``inputs`` are u_1, u_2, … ``[B, C]``; a linear model has only one.
        """
        exponent, b, c = self.discrete()
        state = exponent.exp() * state
        for power, u in enumerate(inputs, start=1):
            state = state + b**power * u[..., None].to(state.real.dtype)
        return 2 * (c * state).real.sum(dim=-1), state

    def flops(self, taps: int) -> int:
        """Count the operations that make the filter: a complex product and a sum, 8 per tap, channel and state."""
        return 8 * taps * self.frequency.numel()
