"""Gated linear attention: linear attention with an input-dependent decay for each row of the state.

Legend: B batch, T positions, D width, H heads, K key size, V = D / H value size of a head.
"""

from typing import Annotated

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import nn

from argap.errors import ArgapError
from argap.files.configs import Positive
from argap.kernels.fused.gated_norm import gated_norm
from argap.kernels.recurrent.gla import gla
from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, State, at_least_float32
from argap.models.mixers.convolution import NoConvolution, ShortConvolution
from argap.models.recurrence import EPSILON, recurrence_flops, recurrence_step


class GLA(Mixer):
    """S_t = diag(α_t) S_{t−1} + k_tᵀ v_t, o_t = q_t S_t / √K, y = (swish(x W_r + b_r) ⊙ norm(o)) W_O.

    α = σ(x W_α¹ W_α² + b_α)^{1/τ} (arXiv 2312.06635, sections 4.1 and 4.4). The norm is RMSNorm over a head's values,
    as in the authors' code. Options:

    - ``heads``: 4.
    - ``key_expansion``: H·K as a share of the width, ½.
    - ``gate_rank``, ``gate_temperature``: columns of W_α¹, 16, and τ, 16.
    - ``conv_size``: taps of a short convolution with SiLU over q, k and v; None, as in the paper: no convolution.
    - ``chunk_size``: positions compared at once; None: all, the parallel form. Chunks are short because each pair of
      positions in one needs K decays.
    - ``norm_eps``: epsilon of the norm.

    Raises `ArgapError` if the widths do not split into the heads.
    """

    source = "arXiv 2312.06635, sections 4.1 (recurrent form) and 4.4 (the layer)"
    operator = staticmethod(gla)

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        heads: AtLeastOne = 4,
        key_expansion: Annotated[float, Meta(gt=0, le=1000)] = 0.5,
        gate_rank: AtLeastOne = 16,
        gate_temperature: Annotated[float, Meta(gt=0)] = 16.0,
        conv_size: AtLeastOne | None = None,
        chunk_size: AtLeastOne | None = 16,
        norm_eps: Positive = EPSILON,
    ) -> None:
        super().__init__()
        keys = round(width * key_expansion)
        if keys < 1 or width % heads or keys % heads:
            raise ArgapError(
                f"gla: width {width} and keys of {keys} do not split into {heads} heads; "
                "set its options heads and key_expansion"
            )
        self.heads, self.keys, self.width = heads, keys, width
        self.temperature, self.chunk_size = gate_temperature, chunk_size
        self.qkv = nn.Linear(width, 2 * keys + width, bias=False)
        self.conv = NoConvolution() if conv_size is None else ShortConvolution(2 * keys + width, conv_size)
        self.activation = nn.Identity() if conv_size is None else nn.SiLU()
        self.decay_down = nn.Linear(width, gate_rank, bias=False)
        self.decay_up = nn.Linear(gate_rank, keys)
        self.gate = nn.Linear(width, width)
        self.norm, self.norm_eps = nn.RMSNorm(width // heads, eps=norm_eps), norm_eps
        self.out = ResidualLinear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.prefill(x, keep_state=False)[0]

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor, keep_state: bool = True) -> tuple[torch.Tensor, State]:
        """Return `Mixer.prefill`'s results; S is computed only if ``keep_state``."""
        mapped = self.qkv(x)
        qkv = self.activation(self.conv(mapped))
        q, k, v, logits = (part.transpose(1, 2) for part in self._heads(qkv, x))
        scaling = {"scale": q.shape[-1] ** -0.5, "temperature": self.temperature}
        y, memory = self.operator(q, k, v, logits, **scaling, keep_state=keep_state, chunk=self.chunk_size)
        return self._merge(y.transpose(1, 2), x), (memory, self.conv.state_after(mapped))

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return S ``[B, H, K, V]`` in float32 or wider, and the short convolution's last inputs."""
        sizes = self.keys // self.heads, self.width // self.heads
        memory = torch.zeros(batch, self.heads, *sizes, dtype=at_least_float32(dtype), device=device)
        return memory, self.conv.init_state(batch, dtype, device)

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        memory, past = state
        qkv, past = self.conv.step(self.qkv(x), past)
        q, k, v, logits = self._heads(self.activation(qkv), x)
        decay = F.logsigmoid(logits.to(memory.dtype)) / self.temperature
        y, memory = recurrence_step(q.to(memory.dtype) * q.shape[-1] ** -0.5, k, v, memory, decay)
        return self._merge(y, x), (memory, past)

    def state_size(self, length: int) -> int:
        """Return H·K·V plus the short convolution's state."""
        return super().state_size(length) + self.conv.state_size(length)

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count the short convolution and `recurrence_flops`; norm, gate and decays, O(B·T·D), are not counted."""
        sizes = self.keys // self.heads, self.width // self.heads
        return self.conv.flops(batch, length) + recurrence_flops(batch, self.heads, length, *sizes, self.chunk_size)

    def _heads(
        self, qkv: torch.Tensor, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q, k, the decays' logits ``[..., H, K]`` and v ``[..., H, V]``."""
        parts = qkv.split((self.keys, self.keys, self.width), dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in parts)
        return q, k, v, self.decay_up(self.decay_down(x)).unflatten(-1, (self.heads, -1))

    def _merge(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Norm the heads' outputs ``[..., H, V]``, gate them by ``x [..., D]`` and mix them to ``[..., D]``."""
        return self.out(gated_norm(y, self.gate(x), self.norm.weight, self.norm_eps, dtype=x.dtype))
