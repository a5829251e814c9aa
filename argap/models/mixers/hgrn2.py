"""HGRN2: a gated linear RNN whose state is expanded by outer products, with a floor under its forget gates.

Legend: B batch, T positions, D width, H heads, K = D / H size of a head.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers.initialization import copy_

from argap.files.configs import Positive
from argap.kernels.recurrent.gla import gla
from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, State, at_least_float32, split_heads
from argap.models.recurrence import EPSILON, HeadNorm, recurrence_flops, recurrence_step


class HGRN2(Mixer):
    """S_t = diag(f_t) S_{t−1} + (1 − f_t)ᵀ v_t, o_t = q_t S_t, y = norm(o) W_O with q = SiLU(x W_q).

    From arXiv 2404.07904, section 3 (outer products instead of a larger width). The forget gates are
    f = l + (1 − l) σ(x W_f) with a lower bound l per channel that grows with depth (HGRN, arXiv 2311.04823, section 3).
    The published bounds are cumulative sums of a softmax over the layers, which start at l = n/L in layer n of L
    and are 0 in the first; here each layer learns its own from there. The norm is RMSNorm over the width.

    Options:

    - ``heads``: by default one for each 128 of the width.
    - ``chunk_size``: positions compared at once; None: all, the parallel form.
    - ``norm_eps``: epsilon of the norm.

    Raises `ArgapError` if the width does not split into the heads.
    """

    source = "arXiv 2404.07904, section 3; lower bounds: arXiv 2311.04823, section 3"
    operator = staticmethod(gla)

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        heads: int | None = None,
        chunk_size: AtLeastOne | None = 16,
        norm_eps: Positive = EPSILON,
    ) -> None:
        super().__init__()
        self.heads = split_heads("hgrn2", width, heads, usual=width // 128)
        self.width, self.chunk_size = width, chunk_size
        self.qfv = nn.Linear(width, 3 * width, bias=False)
        self.lower_bound = LowerBound(width)
        self.norm = HeadNorm(width, width, norm_eps)
        self.out = ResidualLinear(width, width, bias=False)

    def set_depth(self, layer: int, layers: int) -> None:
        """Set the start of the lower bound in layer n of L to n/L; the first layer has none."""
        self.lower_bound = LowerBound(self.width, layer / layers) if layer else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.prefill(x, keep_state=False)[0]

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor, keep_state: bool = True) -> tuple[torch.Tensor, State]:
        """Return `Mixer.prefill`'s results; S is computed only if ``keep_state``."""
        q, k, v, log_decay = (part.transpose(-3, -2) for part in self._heads(x))
        y, memory = self.operator(q, k, v, log_decay, keep_state=keep_state, chunk=self.chunk_size)
        return self._merge(y.transpose(1, 2), x), memory

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return S ``[B, H, K, K]`` in float32 or wider."""
        size = self.width // self.heads
        return torch.zeros(batch, self.heads, size, size, dtype=at_least_float32(dtype), device=device)

    def step(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v, log_decay = self._heads(x)
        y, state = recurrence_step(q, k, v, state, log_decay)
        return self._merge(y, x), state

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count `recurrence_flops`; norm and gates, O(B·T·D), are not counted."""
        size = self.width // self.heads
        return recurrence_flops(batch, self.heads, length, size, size, self.chunk_size)

    def _heads(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Map ``x [..., D]`` to q, k = 1 − f, v and log f, ``[..., H, K]`` each, log f in float32 or wider."""
        q, logits, v = self.qfv(x).chunk(3, dim=-1)
        logits = logits.to(at_least_float32(x.dtype))
        k, log_decay = torch.sigmoid(-logits), F.logsigmoid(logits)
        if self.lower_bound is not None:
            k, log_decay = self.lower_bound(k, log_decay)
        parts = (F.silu(q), k.to(q.dtype), v, log_decay)
        return tuple(part.unflatten(-1, (self.heads, -1)) for part in parts)

    def _merge(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Norm the outputs ``[..., H, K]`` over all heads and mix them to ``[..., D]``."""
        return self.out(self.norm(y.flatten(-2)).to(x.dtype))


class LowerBound(nn.Module):
    """A learned floor l = σ(weight) of the forget gates, per channel."""

    def __init__(self, width: int, start: float = 0.5) -> None:
        super().__init__()
        self.start = start
        self.weight = nn.Parameter(torch.empty(width))

    def initialize(self, std: float, residual_std: float) -> None:
        copy_(self.weight, torch.full_like(self.weight, math.log(self.start / (1 - self.start))))

    def forward(self, k: torch.Tensor, log_decay: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return 1 − f and log f for f = l + (1 − l) e^{log_decay}, where ``k`` is 1 − e^{log_decay}."""
        weight = self.weight.to(k.dtype)
        raised = torch.logaddexp(F.logsigmoid(weight), F.logsigmoid(-weight) + log_decay)
        return torch.sigmoid(-weight) * k, raised
