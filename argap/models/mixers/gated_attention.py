"""Gated attention: softmax attention with norms of queries and keys and an output gate.

Legend: B batch, T positions, D width, H heads, K = D / H.
"""

import torch
from torch import nn

from argap.files.configs import Positive
from argap.kernels.fused.gated_product import gated_product
from argap.models.mixer import AtLeastOne, normed
from argap.models.mixers.attention import Attention, Positions


class GatedAttention(Attention):
    """y = (σ(x W_g) ⊙ attention(x)) W_O (arXiv 2505.06708, section 2.2, the gate after the attention).

    As in Qwen3-Next, queries and keys are divided by their root mean square and multiplied by a weight for each of a
    head's K components, and only the first quarter of these is rotated.

    Options ``heads``, ``kv_heads``, ``positions``, ``rope_theta``, ``rotary_size`` (None: a quarter of K) and
    ``window`` are as for `Attention`; ``norm_eps`` is the epsilon of both norms, 10⁻⁶.

    Raises `ArgapError` as `Attention` does.
    """

    source = "arXiv 2505.06708, section 2.2"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        heads: int | None = None,
        kv_heads: int | None = None,
        positions: Positions = "rope",
        rope_theta: Positive = 10_000.0,
        rotary_size: int | None = None,
        window: AtLeastOne | None = None,
        norm_eps: Positive = 1e-6,
    ) -> None:
        attention = {"heads": heads, "kv_heads": kv_heads, "positions": positions, "window": window}
        super().__init__(width, max_positions, **attention, rope_theta=rope_theta, rotary_size=rotary_size)
        size = width // self.heads
        self.rotary_size = rotary_size or max(2, size // 8 * 2)
        self.query_norm = nn.RMSNorm(size, eps=norm_eps)
        self.key_norm = nn.RMSNorm(size, eps=norm_eps)
        self.gate = nn.Linear(width, width, bias=False)

    def _merge(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.out(gated_product(self.gate(x), y, "sigmoid"))

    def _normed(self, heads: torch.Tensor) -> torch.Tensor:
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=-2)
        return torch.cat([normed(self.query_norm, q), normed(self.key_norm, k), v], dim=-2)
