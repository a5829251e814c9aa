"""Softmax attention with rotary positions: the reference that the others are measured against.

Legend: B batch, T positions, D width, H heads, K = D / H.
"""

import torch
import torch.nn.functional as F
from torch import nn

from argap.errors import ArgapError
from argap.models.mixer import Mixer, ResidualLinear
from argap.models.rotary import rotate, rotation


class Attention(Mixer):
    """Multi-head causal attention (arXiv 1706.03762) with rotary embedding (arXiv 2104.09864, eq. 34).

    Options: ``heads``, by default one for each 64 of the width; ``rope_theta``, the rotary base.
    Raises `ArgapError` where the width does not split into heads of even width.
    """

    source = "arXiv 1706.03762; RoPE: arXiv 2104.09864"

    def __init__(
        self, width: int, max_positions: int | None = None, *, heads: int | None = None, rope_theta: float = 10_000.0
    ) -> None:
        super().__init__()
        self.heads = max(1, width // 64) if heads is None else heads
        if self.heads < 1 or width % (2 * self.heads):
            raise ArgapError(
                f"attention: width {width} does not split into {self.heads} heads of even width; set its option heads"
            )
        self.rope_theta = rope_theta
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = ResidualLinear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self._heads(x, torch.arange(x.shape[1], device=x.device))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values so far, each ``[B, H, T, K]``."""
        empty = torch.empty(batch, self.heads, 0, self.out.in_features // self.heads, dtype=dtype, device=device)
        return empty, empty

    def step(
        self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        keys, values = state
        position = torch.full((1,), keys.shape[2], device=x.device)
        q, k, v = self._heads(x[:, None], position)
        keys, values = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
        y = F.scaled_dot_product_attention(q, keys, values)
        return self.out(y[:, :, 0].flatten(1)), (keys, values)

    def state_size(self, length: int) -> int:
        """Keys and values of every position: 2·T·D."""
        return 2 * length * self.out.in_features

    def flops(self, batch: int, length: int) -> int:
        """Projections 8·B·T·D², scores and their use 4·D for each of the B·T·(T + 1)/2 visible pairs."""
        width = self.out.in_features
        return 8 * batch * length * width**2 + 2 * batch * length * (length + 1) * width

    def _heads(self, x: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k (rotated) and v, each ``[B, H, T, K]``, of ``x [B, T, D]`` at ``positions [T]``."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        cos, sin = rotation(positions, q.shape[-1], self.rope_theta, torch.promote_types(q.dtype, torch.float32))
        return rotate(q, cos, sin), rotate(k, cos, sin), v
