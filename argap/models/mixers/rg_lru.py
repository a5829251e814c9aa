"""RG-LRU: a diagonal linear recurrence with gates for input and decay, beside a GELU branch.

Legend: B batch, T positions, D width, E inner width, H blocks of the gates.
"""

import math
from typing import Annotated

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import nn
from transformers.initialization import copy_

from argap.kernels.scan.diagonal_scan import diagonal_scan
from argap.models.mixer import Mixer, ResidualLinear, at_least_float32, split_heads, without_decay
from argap.models.mixers.convolution import ShortConvolution
from argap.models.past import Recent

State = tuple[torch.Tensor, Recent, int | torch.Tensor]
EXPONENT = 8.0
"""c of the paper's eq. 3."""
SLOWEST, FASTEST = 0.999, 0.9
"""Between these start the decays e^{−softplus(Λ)}."""


class RGLRU(Mixer):
    """h_t = a_t ⊙ h_{t−1} + √(1 − a_t²) ⊙ i_t ⊙ u_t with u = conv(x W_x + b_x), y = (h ⊙ GELU(x W_y + b_y)) W_O + b_O.

    From arXiv 2402.19427, section 2.4: the gates r = σ(u W_a + b_a) and i = σ(u W_i + b_i), and the decay
    a = e^{−c softplus(Λ) r} with c = 8 (eqs. 1 to 4, 6). As in the authors' code the gates' matrices are
    block-diagonal, the root is left out at the first position, and e^{−softplus(Λ)} starts between 0.9 and 0.999, its
    square uniform.

    Options:

    - ``expand``: E / D, 1; 4/3 in the paper.
    - ``heads``: blocks of the gates' matrices, by default one for each 256 of E.
    - ``short_kernel``: taps of the convolution, 4.

    Raises `ArgapError` if E does not split into the blocks.
    """

    source = "arXiv 2402.19427, section 2.4, eqs. 1 to 6"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        expand: Annotated[float, Meta(gt=0, le=1000)] = 1.0,
        heads: int | None = None,
        short_kernel: Annotated[int, Meta(ge=1)] = 4,
    ) -> None:
        super().__init__()
        inner = max(1, round(expand * width))
        blocks = split_heads("rg_lru", inner, heads, usual=inner // 256)
        self.projections = nn.Linear(width, 2 * inner)
        self.short = ShortConvolution(inner, short_kernel, bias=True)
        self.gates = BlockLinear(inner, blocks)
        self.rate = nn.Parameter(torch.empty(inner))
        without_decay(self.rate)  # dynamics
        self.out = ResidualLinear(inner, width)

    def initialize(self, std: float, residual_std: float) -> None:
        """Draw e^{−softplus(Λ)} between 0.9 and 0.999, uniform in area as in a ring of the complex plane."""
        squares = torch.empty_like(self.rate, dtype=torch.float32).uniform_(FASTEST**2, SLOWEST**2)
        copy_(self.rate, (-squares.log() / 2).expm1().log())

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor) -> tuple[torch.Tensor, State]:
        mapped, gate = self.projections(x).chunk(2, dim=-1)
        u = self.short(mapped)
        log_decay, admitted = self._gated(u)
        value = torch.cat([admitted[:, :1], admitted[:, 1:] * _root(log_decay[:, 1:])], dim=1)
        h, last = diagonal_scan(log_decay.exp(), value)
        return self._merge(h, gate), (last, self.short.state_after(mapped), x.shape[1])

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return h ``[B, E]`` in float32 or wider, the convolution's last inputs and the number of positions so far."""
        h = torch.zeros(batch, len(self.rate), dtype=at_least_float32(dtype), device=device)
        return h, self.short.init_state(batch, dtype, device), 0

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        h, past, position = state
        mapped, gate = self.projections(x).chunk(2, dim=-1)
        u, past = self.short.step(mapped, past)
        log_decay, admitted = self._gated(u)
        first = position + torch.zeros(1, dtype=torch.long, device=x.device) == 0
        h = log_decay.exp() * h + admitted * _root(log_decay).masked_fill(first, 1.0)
        return self._merge(h, gate), (h, past, position + 1)

    def state_size(self, length: int) -> int:
        """Return E plus the short convolution's state."""
        return super().state_size(length) + self.short.state_size(length)

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count the convolution, the gates' products, 4·B·T·E²/H, and 8·B·T·E for recurrence, root and products.

        Exponentials are not counted.
        """
        inner = len(self.rate)
        return self.short.flops(batch, length) + batch * length * (4 * inner * self.gates.block + 8 * inner)

    def _gated(self, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log a and i ⊙ u ``[..., E]`` of ``u [..., E]``, in float32 or wider."""
        dtype = at_least_float32(u.dtype)
        recurrence, admission = self.gates(u)
        decay = -EXPONENT * F.softplus(self.rate.to(dtype)) * recurrence.to(dtype).sigmoid()
        return decay, admission.to(dtype).sigmoid() * u.to(dtype)

    def _merge(self, h: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return self.out(h.to(gate.dtype) * F.gelu(gate, approximate="tanh"))


class BlockLinear(nn.Module):
    """Two block-diagonal linear maps of E channels, each with H blocks and a bias."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        self.block = width // blocks
        self.weight = nn.Parameter(torch.empty(2, blocks, self.block, self.block))
        self.bias = nn.Parameter(torch.empty(2, width))

    def initialize(self, std: float, residual_std: float) -> None:
        """Draw weights of variance 1 / block size, as the authors' code does; biases start at 0."""
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.block))
        nn.init.zeros_(self.bias)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Apply both maps to ``x [..., E]``."""
        blocks = x.unflatten(-1, (-1, self.block))[..., None, :]
        first, second = ((blocks @ weight)[..., 0, :].flatten(-2) for weight in self.weight.to(x.dtype))
        return first + self.bias[0], second + self.bias[1]


def _root(log_decay: torch.Tensor) -> torch.Tensor:
    """Return √(1 − a²) of log a."""
    return (-torch.expm1(2 * log_decay)).clamp_min(torch.finfo(log_decay.dtype).tiny).sqrt()
