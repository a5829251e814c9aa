"""mLSTM: the matrix memory of xLSTM, linear attention with exponential input gates and a forget gate per head.

Legend: B batch, T positions, D width, H heads, K key size, V = D / H value size of a head.
"""

from typing import Annotated

import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import nn
from transformers.initialization import copy_

from argap.errors import ArgapError
from argap.files.configs import Positive
from argap.kernels.fused.gated_product import gated_product
from argap.kernels.recurrent.linear_attention import linear_attention
from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, State, at_least_float32, split_heads
from argap.models.recurrence import HeadLayerNorm, recurrence_flops, recurrence_step


class MLSTM(Mixer):
    """C_t = f_t C_{t−1} + i_t k_tᵀ v_t, n_t = f_t n_{t−1} + i_t k_t, h_t = q_t C_t / max(|q_t·n_t|, 1).

    From arXiv 2405.04517, eqs. 19 to 27, with the layer of xLSTM 7B (arXiv 2503.13427, section 3):
    y = (σ(x W_o) ⊙ norm(h)) W_O, where the norm is LayerNorm over a head's values with D weights, f = σ(c(x W_f + b_f))
    and i = exp(c(x W_i + b_i)) are one number per head, and c(z) = a tanh(z / a) caps their logits. Since the cap
    bounds i, the published running maximum, which leaves h unchanged, is not needed. Keys are scaled by 1/√K.

    Options:

    - ``heads``: by default one for each 256 of the width, but at least 4.
    - ``key_expansion``: H·K as a share of the width, ½.
    - ``gate_cap``: the cap a, 15.
    - ``chunk_size``: positions compared at once; None: all, the parallel form.
    - ``norm_eps``: epsilon of the norm, 10⁻⁶.

    Raises `ArgapError` if the widths do not split into the heads.
    """

    source = "arXiv 2405.04517, eqs. 19 to 27; arXiv 2503.13427, section 3 (the layer)"
    operator = staticmethod(linear_attention)

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        heads: int | None = None,
        key_expansion: Annotated[float, Meta(gt=0, le=1000)] = 0.5,
        gate_cap: Annotated[float, Meta(gt=0, le=30)] = 15.0,
        chunk_size: AtLeastOne | None = 64,
        norm_eps: Positive = 1e-6,
    ) -> None:
        super().__init__()
        self.heads = split_heads("mlstm", width, heads, usual=max(4, width // 256))
        keys = round(width * key_expansion)
        if keys < 1 or keys % self.heads:
            raise ArgapError(
                f"mlstm: keys of {keys} do not split into {self.heads} heads; set its options heads and key_expansion"
            )
        self.keys, self.width, self.gate_cap, self.chunk_size = keys, width, gate_cap, chunk_size
        self.qkv = nn.Linear(width, 2 * keys + width, bias=False)
        self.gates = GateLinear(width, 2 * self.heads)
        self.output_gate = nn.Linear(width, width, bias=False)
        self.norm = HeadLayerNorm(self.heads, width // self.heads, norm_eps)
        self.out = ResidualLinear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.prefill(x, keep_state=False)[0]

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor, keep_state: bool = True) -> tuple[torch.Tensor, State]:
        """Return `Mixer.prefill`'s results; C and n are computed only if ``keep_state``."""
        *heads, log_decay = self._heads(x)
        q, k, v = (part.transpose(1, 2) for part in heads)
        y, memory = self.operator(q, k, v, log_decay=log_decay.mT, keep_state=keep_state, chunk=self.chunk_size)
        return self._merge(y.transpose(1, 2), x), memory

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return C with n as its last column, ``[B, H, K, V + 1]`` in float32 or wider."""
        sizes = self.keys // self.heads, self.width // self.heads + 1
        return torch.zeros(batch, self.heads, *sizes, dtype=at_least_float32(dtype), device=device)

    def step(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v, log_decay = self._heads(x)
        y, state = recurrence_step(q, k, v, state, log_decay[..., None])
        return self._merge(y, x), state

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count `recurrence_flops` for V + 1 values; gates and norm, O(B·T·D), are not counted."""
        sizes = self.keys // self.heads, self.width // self.heads + 1
        return recurrence_flops(batch, self.heads, length, *sizes, self.chunk_size)

    def _heads(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Map ``x [..., D]`` to q, k ``[..., H, K]``, gated values ``[..., H, V + 1]`` and log f ``[..., H]``.

        The values and a column of ones, which makes n, are multiplied by i.
        """
        parts = self.qkv(x).split((self.keys, self.keys, self.width), dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in parts)
        logits = self.gates(x).to(at_least_float32(x.dtype))
        admission, forget = (self.gate_cap * torch.tanh(logits / self.gate_cap)).chunk(2, dim=-1)
        values = F.pad(v, (0, 1), value=1.0) * admission.exp()[..., None].to(v.dtype)
        return q, k * k.shape[-1] ** -0.5, values, F.logsigmoid(forget)

    def _merge(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Divide the heads' outputs ``[..., H, V + 1]`` by their sums, norm, gate and mix them to ``[..., D]``."""
        y = y[..., :-1] / y[..., -1:].abs().clamp_min(1.0)
        return self.out(gated_product(self.output_gate(x), self.norm(y).to(x.dtype), "sigmoid"))


class GateLinear(nn.Linear):
    """Projects D values to the logits of H input gates and H forget gates."""

    def initialize(self, std: float, residual_std: float) -> None:
        """Start as xLSTM 7B: weights 0, biases −10 for the input gates and from 3 to 6 for the forget gates."""
        heads = self.out_features // 2
        forget = torch.linspace(3.0, 6.0, heads, device=self.bias.device)
        nn.init.zeros_(self.weight)
        copy_(self.bias, torch.cat([torch.full_like(forget, -10.0), forget]))
