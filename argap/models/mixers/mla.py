"""Multi-head latent attention: softmax attention whose keys and values are maps of one narrow vector per position.

Legend: B batch, T positions, D width, H heads, K = D / H size of a head, C latent size, R rotated size.
"""

import torch
import torch.nn.functional as F
from torch import nn

from argap.errors import ArgapError
from argap.files.configs import Positive
from argap.kernels.fused.rotary import rotate, rotation
from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, at_least_float32, normed, split_heads
from argap.models.mixers.attention import Positions
from argap.models.past import FixedPast, Past
from argap.models.recurrence import EPSILON
from argap.runtime.device import growing_keys

State = tuple[Past | FixedPast, int | torch.Tensor]


class MLA(Mixer):
    """Attention with keys [c W_K, r] and values c W_V of a latent c = norm(x W_C), r = RoPE(x W_R) shared by the heads.

    From arXiv 2405.04434 (DeepSeek-V2), section 2.1, eqs. 9 to 19. Generation stores c and r, not keys and values: in a
    step W_K is applied to the query and W_V to the output (section 2.1.2). Options:

    - ``heads``: by default one per 64 of the width.
    - ``latent``: C; by default 4·K as in the paper, but at most half the width.
    - ``rotary_size``: R; by default K / 2, as in the paper.
    - ``query_latent``: size of a latent for queries too (eqs. 12 and 13); None: they are projected directly.
    - ``positions``: ``rope``, or ``none`` as in Kimi Linear (arXiv 2510.26692), which leaves r unrotated.
    - ``rope_theta``: the rotary base.
    - ``norm_eps``: epsilon of the latents' norms.

    Raises `ArgapError` if the width does not split into heads, and for an odd rotated size with ``rope``.
    """

    source = "arXiv 2405.04434, section 2.1, eqs. 9 to 19"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        heads: int | None = None,
        latent: AtLeastOne | None = None,
        rotary_size: AtLeastOne | None = None,
        query_latent: AtLeastOne | None = None,
        positions: Positions = "rope",
        rope_theta: Positive = 10_000.0,
        norm_eps: Positive = EPSILON,
    ) -> None:
        super().__init__()
        self.heads = split_heads("mla", width, heads, usual=width // 64)
        self.size = width // self.heads
        self.latent = latent or max(1, min(4 * self.size, width // 2))
        self.rotary_size = rotary_size or max(2, self.size // 4 * 2)
        self.rotary, self.rope_theta = positions == "rope", rope_theta
        if self.rotary and self.rotary_size % 2:
            raise ArgapError(f"mla: rotary_size {self.rotary_size}; expected an even number")
        queries = self.heads * (self.size + self.rotary_size)
        self.query_down = None if query_latent is None else nn.Linear(width, query_latent, bias=False)
        self.query_norm = None if query_latent is None else nn.RMSNorm(query_latent, eps=norm_eps)
        self.query = nn.Linear(query_latent or width, queries, bias=False)
        self.down = nn.Linear(width, self.latent + self.rotary_size, bias=False)
        self.norm = nn.RMSNorm(self.latent, eps=norm_eps)
        self.up = nn.Linear(self.latent, 2 * width, bias=False)
        self.out = ResidualLinear(width, width, bias=False)

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor) -> tuple[torch.Tensor, State]:
        q, latents = self._mapped(x)
        c, r = latents.split([self.latent, self.rotary_size], dim=-1)
        kv = self.up(c[:, 0]).unflatten(-1, (self.heads, 2 * self.size)).transpose(1, 2)
        k, v = kv.chunk(2, dim=-1)
        k = torch.cat([k, r.expand(-1, self.heads, -1, -1)], dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2)), (Past(latents), x.shape[1])

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return c and r of the positions so far, ``[B, 1, T, C + R]``, and their number."""
        return Past(torch.empty(batch, 1, 0, self.latent + self.rotary_size, dtype=dtype, device=device)), 0

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        past, position = state
        q, latents = self._mapped(x[:, None], position)
        past = past.append(latents)
        keys = past.values
        by_key, by_value = self.up.weight.unflatten(0, (self.heads, 2, self.size)).unbind(1)  # [H, K, C]
        nope, rope = q.split([self.size, self.rotary_size], dim=-1)
        q = torch.cat([nope @ by_key.to(q.dtype), rope], dim=-1)  # [B, H, 1, C + R]
        values = keys[..., : self.latent]
        with growing_keys():  # heads count as positions that see all keys
            scale = (self.size + self.rotary_size) ** -0.5
            y = F.scaled_dot_product_attention(q.transpose(1, 2), keys, values, attn_mask=past.bias, scale=scale)
        y = (y.transpose(1, 2) @ by_value.mT.to(y.dtype))[:, :, 0]
        return self.out(y.flatten(1)), (past.seen_next(), position + 1)

    def state_size(self, length: int) -> int:
        """Return T·(C + R)."""
        return length * (self.latent + self.rotary_size)

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count the scores and their use, 2·H·(2·K + R) for each of T·(T + 1)/2 pairs."""
        return batch * length * (length + 1) * self.heads * (2 * self.size + self.rotary_size)

    def _mapped(self, x: torch.Tensor, first: int | torch.Tensor = 0) -> tuple[torch.Tensor, torch.Tensor]:
        """Map ``x [B, T, D]`` at positions from ``first`` to queries ``[B, H, T, K + R]`` and c with r.

        The latter are ``[B, 1, T, C + R]``. With ``rope``, the last R of each are rotated.
        """
        c, r = self.down(x)[:, None].split([self.latent, self.rotary_size], dim=-1)
        queries = x
        if self.query_down is not None and self.query_norm is not None:
            queries = normed(self.query_norm, self.query_down(x))
        q = self.query(queries).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        if self.rotary:
            dtype = at_least_float32(x.dtype)
            cos, sin = rotation(first, x.shape[1], self.rotary_size, self.rope_theta, dtype, x.device)
            nope, rope = q.split([self.size, self.rotary_size], dim=-1)
            q, r = torch.cat([nope, rotate(rope, cos, sin)], dim=-1), rotate(r, cos, sin)
        return q, torch.cat([normed(self.norm, c), r], dim=-1)
