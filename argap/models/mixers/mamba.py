"""Mamba: a diagonal state space model whose step size, input and output matrices depend on the input.

Legend: B batch, T positions, D width, E inner width, N states per channel, R rank of the step-size projection.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers.initialization import copy_

from argap.kernels.scan.selective_scan import selective_scan
from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, at_least_float32, without_decay
from argap.models.mixers.convolution import ShortConvolution
from argap.models.mixers.step_decay import step_biases
from argap.models.past import Recent

State = tuple[Recent, torch.Tensor]


class Mamba(Mixer):
    """The selective state space model S6 with a short convolution and an output gate.

    From arXiv 2312.00752, algorithm 2 and section 3.4. Let u = SiLU(conv(W_u x)). B, C and a rank-R vector s_Δ are
    linear in u, and Δ = softplus(W_Δ s_Δ + b). Each of the E channels has N states: h_t = e^{Δ_t A} ⊙ h_{t−1} + Δ_t u_t
    B_t and y_t = C_t · h_t + D ⊙ u_t. The output is W_O (y ⊙ SiLU(W_z x)). As in the paper's code, A is discretised by
    zero-order hold and B to first order.

    Options: ``states`` N; ``expand`` E / D; ``short_kernel``, taps of the convolution; ``step_rank`` R, by default
    ⌈D/16⌉.
    """

    source = "arXiv 2312.00752, algorithm 2 and section 3.4"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        states: AtLeastOne = 16,
        expand: AtLeastOne = 2,
        short_kernel: AtLeastOne = 4,
        step_rank: AtLeastOne | None = None,
    ) -> None:
        super().__init__()
        rank = math.ceil(width / 16) if step_rank is None else step_rank
        inner = expand * width
        self.states, self.rank = states, rank
        self.projection = nn.Linear(width, 2 * inner, bias=False)
        self.short = ShortConvolution(inner, short_kernel, bias=True)
        self.selection = nn.Linear(inner, rank + 2 * states, bias=False)
        self.step_size = StepSize(rank, inner)
        self.log_decay = nn.Parameter(torch.empty(inner, states))
        without_decay(self.log_decay)  # dynamics
        self.skip = nn.Parameter(torch.empty(inner))
        self.out = ResidualLinear(inner, width, bias=False)

    def initialize(self, std: float, residual_std: float) -> None:
        """Initialise as S4D-Real: A = −1, …, −N in every channel (section 3.6); the skip starts at 1."""
        numbers = torch.arange(1, self.states + 1, device=self.log_decay.device, dtype=torch.float32)
        copy_(self.log_decay, numbers.log().expand_as(self.log_decay))
        nn.init.ones_(self.skip)

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor) -> tuple[torch.Tensor, State]:
        mapped, gate = self.projection(x).chunk(2, dim=-1)
        u = self.short(mapped, silu=True)
        low, b, c = self._selected(u)
        decay = -self.log_decay.to(at_least_float32(u.dtype)).exp()
        y, h = selective_scan(u, self.step_size(low), decay, b, c, skip=self.skip, gate=gate)
        return self.out(y), (self.short.state_after(mapped), h)

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return the short convolution's state, and h ``[B, E, N]`` in float32 or wider."""
        h = torch.zeros(batch, *self.log_decay.shape, dtype=at_least_float32(dtype), device=device)
        return self.short.init_state(batch, dtype, device), h

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        short, h = state
        u, gate = self.projection(x).chunk(2, dim=-1)
        mixed, short = self.short.step(u, short)
        u = F.silu(mixed)
        low, b, c = self._selected(u)
        size = F.softplus(self.step_size(low).to(h.dtype))[..., None]
        decay = torch.exp(-size * self.log_decay.to(h.dtype).exp())
        h = torch.addcmul(decay * h, size * u[..., None], b[:, None].to(h.dtype))
        y = torch.addcmul((h * c[:, None]).sum(dim=-1).to(u.dtype), self.skip, u)
        return self.out(y * F.silu(gate)), (short, h)

    def state_size(self, length: int) -> int:
        """Return E·N plus the short convolution's state."""
        return super().state_size(length) + self.short.state_size(length)

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count the convolution, the recurrence 6·B·T·E·N, and 4·B·T·E for Δ u, skip and gate.

        Of the recurrence's 6, 1 is for the exponent, 1 for the input, 2 for the update and 2 for the readout.
        """
        recurrence = (6 * self.states + 4) * self.out.in_features
        return batch * length * recurrence + self.short.flops(batch, length)

    def _selected(self, u: torch.Tensor) -> list[torch.Tensor]:
        """Compute the input-dependent parameters of u ``[..., E]``: s_Δ (R), B (N) and C (N)."""
        return list(self.selection(u).split([self.rank, self.states, self.states], dim=-1))


class StepSize(nn.Linear):
    """Projects R values to the step sizes of the E channels, before softplus."""

    def initialize(self, std: float, residual_std: float) -> None:
        """Initialise weights uniformly within ±1/√R; biases give step sizes log-uniform in [0.001, 0.1].

        See section 3.6.
        """
        bound = 1 / math.sqrt(self.in_features)
        nn.init.uniform_(self.weight, -bound, bound)
        copy_(self.bias, step_biases(self.bias))

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Apply the map in rows: for a slice ``[B, T, R]`` of wider rows torch would add the bias in an extra pass."""
        return super().forward(input.flatten(0, -2)).unflatten(0, input.shape[:-1])
