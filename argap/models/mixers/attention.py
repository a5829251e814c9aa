"""Softmax attention, by default with rotary positions (RoPE): the reference for all other mixers.

Legend: B batch, T positions, D width, H heads, K = D / H, w window.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from argap.errors import ArgapError
from argap.files.configs import Positive
from argap.kernels.attention.sliding_attention import sliding_attention
from argap.kernels.fused.rotary import rotary, rotate, rotation
from argap.kernels.recurrent.recurrence import for_each_head, in_chunks
from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, at_least_float32, split_heads
from argap.models.past import FixedPast, Past, seen_next
from argap.runtime.device import growing_keys

WindowKind = Literal["sliding", "blocked"]
Positions = Literal["rope", "none"]
State = tuple[Past | FixedPast, int | torch.Tensor]


class Attention(Mixer):
    """Multi-head causal attention (arXiv 1706.03762) with rotary embedding (arXiv 2104.09864, eq. 34).

    Options:

    - ``heads``: by default one per 64 of the width.
    - ``positions``: ``rope``, or ``none`` if the model embeds positions (its ``learned_positions``) or needs
      only the causal mask.
    - ``rope_theta``: the rotary base.
    - ``rotary_size``: the number of rotated components of each head, from the first, rounded up to even; None: all.
    - ``kv_heads``: heads of keys and values, each shared by H / ``kv_heads`` query heads (arXiv 2305.13245); None: H.
    - ``qkv_bias``: whether queries, keys and values have a bias.
    - ``window``: the number w of positions that each position sees, itself included; None: all.
    - ``window_kind``: ``sliding``, each position and the w − 1 before it (arXiv 2004.05150, section 3.1), or
      ``blocked``, the earlier positions of its own block of w (0 to w − 1, w to 2w − 1, ...).

    Raises `ArgapError` if the width does not split into heads (of even width, for RoPE), and for blocks without a
    window, a ``rotary_size`` above K, and ``kv_heads`` that do not divide the heads.
    """

    source = "arXiv 1706.03762; RoPE: arXiv 2104.09864"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        heads: int | None = None,
        positions: Positions = "rope",
        rope_theta: Positive = 10_000.0,
        window: AtLeastOne | None = None,
        window_kind: WindowKind = "sliding",
        rotary_size: int | None = None,
        kv_heads: int | None = None,
        qkv_bias: bool = False,
    ) -> None:
        super().__init__()
        self.rotary = positions == "rope"
        self.heads = split_heads("attention", width, heads, usual=width // 64, even=self.rotary)
        if window is None and window_kind == "blocked":
            raise ArgapError("attention: window_kind 'blocked' without a window; set its option window")
        size = width // self.heads
        if rotary_size is not None and not 1 <= rotary_size <= size:
            raise ArgapError(f"attention: rotary_size {rotary_size}; expected 1 to {size}, the size of a head")
        self.kv_heads = self.heads if kv_heads is None else kv_heads
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise ArgapError(f"attention: kv_heads {kv_heads}; expected a divisor of the {self.heads} heads")
        self.rope_theta = rope_theta
        self.rotary_size = rotary_size
        self.window = window
        self.sliding = window_kind == "sliding"
        self.qkv = nn.Linear(width, (self.heads + 2 * self.kv_heads) * size, bias=qkv_bias)
        self.out = ResidualLinear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._merge(self._attend(*self._heads(x)), x)

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return the keys and then the values that later positions see, and the number of positions so far.

        Keys and values are ``[B, 2·kv_heads, ≤ T, K]``.
        """
        size = self.out.in_features // self.heads
        return self._past(torch.empty(batch, 2 * self.kv_heads, 0, size, dtype=dtype, device=device)), 0

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor) -> tuple[torch.Tensor, State]:
        length = x.shape[1]
        q, k, v = self._heads(x)
        visible = slice(length - self._visible(length), None)
        y = self._merge(self._attend(q, k, v), x)
        return y, (self._past(torch.cat([k[:, :, visible], v[:, :, visible]], dim=1)), length)

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        past, position = state
        q, k, v = self._heads(x[:, None], position)
        past = past.append(k, v)
        keys, values = past.values.chunk(2, dim=1)
        with growing_keys():  # queries that share a head's keys count as positions that see all of them
            q = q.reshape(len(q), self.kv_heads, -1, q.shape[-1])
            y = F.scaled_dot_product_attention(q, keys, values, attn_mask=past.bias)
        return self._merge(y.flatten(1), x), (past.seen_next(), position + 1)

    def state_size(self, length: int) -> int:
        """Count the keys and values of the positions that the next one sees, 2·K·kv_heads for each.

        That is T positions, with a sliding window min(T, w − 1), with a blocked one T mod w.
        """
        return self._visible(length) * (self.qkv.out_features - self.out.in_features)

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count the scores and their use, 4·D for each visible pair.

        There are T·(T + 1)/2 pairs in a sequence or in a block of w, and w for each position past the first w of a
        sliding window.
        """
        window = min(self.window or length, length)
        repeated, rest = divmod(length, window)
        if self.sliding:
            pairs = window * (window + 1) // 2 + (length - window) * window
        else:
            pairs = repeated * (window * (window + 1) // 2) + rest * (rest + 1) // 2
        return 4 * batch * pairs * self.out.in_features

    def weights(self, x: torch.Tensor) -> torch.Tensor:
        """Return the weights ``[B, H, T, T]`` with which the heads average values at inputs ``x [B, T, D]``.

        They take T² memory; `forward` never stores them.
        """
        q, k, _ = self._heads(x)
        dtype, position = at_least_float32(q.dtype), torch.arange(x.shape[1], device=x.device)
        scores = q.to(dtype) @ for_each_head(k, self.heads).to(dtype).transpose(-1, -2) / q.shape[-1] ** 0.5
        back = position[:, None] - position
        seen = back >= 0
        if self.window is not None:
            blocks = position // self.window
            seen &= back < self.window if self.sliding else blocks[:, None] == blocks
        return scores.masked_fill(~seen, -torch.inf).softmax(dim=-1)

    def _visible(self, length: int) -> int:
        """Return how many of the first ``length`` positions the next one sees."""
        return seen_next(length, self.window, not self.sliding)

    def _past(self, values: torch.Tensor) -> Past:
        return Past(values, window=self.window, blocked=not self.sliding)

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attend at all positions at once, from ``[B, H or kv_heads, T, K]`` each to ``[B, T, D]``."""
        k, v = for_each_head(k, self.heads), for_each_head(v, self.heads)
        if self.window is None or q.shape[2] <= self.window:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        elif self.sliding:
            y = sliding_attention(q, k, v, self.window)
        else:
            y = blocked_attention(q, k, v, self.window)
        return y.transpose(1, 2).flatten(2)

    def _merge(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Mix the outputs of all heads ``y [..., D]`` at inputs ``x [..., D]`` to ``[..., D]``."""
        return self.out(y)

    def _normed(self, heads: torch.Tensor) -> torch.Tensor:
        """Norm the projected queries and keys, the first H + kv_heads of ``heads [B, T, H + 2·kv_heads, K]``."""
        return heads

    def _heads(self, x: torch.Tensor, first: int | torch.Tensor = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Project ``x [B, T, D]`` at positions from ``first`` to q ``[B, H, T, K]``, k and v ``[B, kv_heads, T, K]``.

        With ``rope``, q and k are rotated.
        """
        heads = self._normed(self.qkv(x).unflatten(-1, (self.heads + 2 * self.kv_heads, -1)))
        size = self.rotary_size or heads.shape[-1]
        if self.rotary and self.kv_heads == self.heads and size == heads.shape[-1]:
            qkv = heads.unflatten(2, (3, -1))
            return *rotary(qkv, first, self.rope_theta), qkv[:, :, 2].transpose(1, 2)
        heads = heads.transpose(1, 2)
        if not self.rotary:
            q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
            return q, k, v
        qk, v = heads.split([self.heads + self.kv_heads, self.kv_heads], dim=1)
        compute_dtype = at_least_float32(qk.dtype)
        cos, sin = rotation(first, qk.shape[2], size, self.rope_theta, compute_dtype, qk.device)
        q, k = self._rotated(qk, cos, sin).split([self.heads, self.kv_heads], dim=1)
        return q, k, v

    def _rotated(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Return ``x`` with its first components rotated, two for each angle."""
        size = 2 * cos.shape[-1]
        if size == x.shape[-1]:
            return rotate(x, cos, sin)
        return torch.cat([rotate(x[..., :size], cos, sin), x[..., size:]], dim=-1)


def blocked_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int) -> torch.Tensor:
    """Compute causal attention within each block of ``window`` positions; ``q``, ``k``, ``v`` are ``[B, H, T, K]``."""
    heads, length = q.shape[1:3]
    q, k, v = (in_chunks(x, window).flatten(1, 2) for x in (q, k, v))  # each block becomes a head
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.unflatten(1, (heads, -1)).flatten(2, 3)[:, :, :length]
