"""RetNet's multi-scale retention: linear attention in which each head has its own decay rate.

Legend: B batch, T positions, D width, H heads, K = D / H key size, V value size of a head.
"""

from typing import Literal

import torch
from torch import nn

from argap.errors import ArgapError
from argap.files.configs import Positive
from argap.kernels.fused.gated_norm import gated_norm
from argap.kernels.fused.rotary import rotary
from argap.kernels.recurrent.linear_attention import linear_attention
from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, at_least_float32, split_heads
from argap.models.recurrence import EPSILON, HeadNorm, log_decays, recurrence_flops, recurrence_step

Norm = Literal["layer", "rms"]
State = tuple[torch.Tensor, int | torch.Tensor]
FIRST_EXPONENT = -5.0
"""log₂(1 − γ) of the first head."""


class RetNet(Mixer):
    """(swish(X W_G) ⊙ GroupNorm_H(heads)) W_O over heads (QKᵀ ⊙ D) V with D_nm = γ^{n−m} for n ≥ m.

    From arXiv 2307.08621, eqs. 5 to 8; Q and K are rotated by position, γ = 1 − 2^{−5−h} in head h from 0. The group
    norm, one group per head, cancels the paper's three scalings of the scores (section 2.2), except 1/√K of the keys.
    Options:

    - ``heads``: by default one for each 256 of the width as in the paper, but at least 4, so that narrow
      models also have several rates.
    - ``value_expansion``: width of values and gate as a multiple of the model's width, 2 in the paper.
    - ``norm``: of a head's values, ``layer``, the group norm, without weights; ``rms``, RMSNorm with V weights shared
      by all heads, as in flash-linear-attention.
    - ``norm_eps``: its epsilon.
    - ``rope_theta``: the rotary base.
    - ``chunk_size``: positions compared at once; None: all, the parallel form.
    - ``cross_chunk``: False: no state passes from one chunk to the next, so that a position sees only its own chunk,
      as the chunk lengths of arXiv 2312.04927, figure 6, limit recall.

    Raises `ArgapError` if the width does not split into heads of even width, and for ``cross_chunk`` false without a
    chunk size.
    """

    source = "arXiv 2307.08621, eqs. 5 (parallel) to 8 (gated, multi-scale)"
    operator = staticmethod(linear_attention)

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        heads: int | None = None,
        value_expansion: AtLeastOne = 2,
        norm: Norm = "layer",
        norm_eps: Positive = EPSILON,
        rope_theta: Positive = 10_000.0,
        chunk_size: AtLeastOne | None = 64,
        cross_chunk: bool = True,
    ) -> None:
        super().__init__()
        self.heads = split_heads("retnet", width, heads, usual=max(4, width // 256), even=True)
        if not cross_chunk and chunk_size is None:
            raise ArgapError("retnet: cross_chunk false needs a chunk_size, at which the state starts anew")
        self.width, self.inner = width, value_expansion * width
        size = self.inner // self.heads
        self.norm_eps = norm_eps
        self.norm = (
            HeadNorm(size, width, norm_eps)
            if norm == "rms"
            else nn.LayerNorm(size, eps=norm_eps, elementwise_affine=False)
        )
        self.rope_theta, self.chunk_size, self.cross_chunk = rope_theta, chunk_size, cross_chunk
        self.qk = nn.Linear(width, 2 * width, bias=False)
        self.v = nn.Linear(width, self.inner, bias=False)
        self.gate = nn.Linear(width, self.inner, bias=False)
        self.out = ResidualLinear(self.inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.prefill(x, keep_state=False)[0]

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor, keep_state: bool = True) -> tuple[torch.Tensor, State]:
        """Return `Mixer.prefill`'s results; S is computed only if ``keep_state``."""
        q, k, v = self._heads(x)
        decay = log_decays(FIRST_EXPONENT, self.heads, x.device)
        if self.cross_chunk:
            y, memory = self.operator(q, k, v, log_decay=decay, keep_state=keep_state, chunk=self.chunk_size)
        else:
            y, memory = self._within_chunks(q, k, v, decay)
        return self._merge(y.transpose(1, 2), x), (memory, x.shape[1])

    def _within_chunks(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Process each chunk as a separate sequence, and return S after the last one.

        The S of a full last chunk is unused: `step` starts the next chunk with zeros.
        """
        assert self.chunk_size is not None
        length = q.shape[2]
        full = (length - 1) // self.chunk_size * self.chunk_size  # positions before the last chunk, full or not
        parts = []
        if full:
            chunks = [part[:, :, :full].unflatten(2, (-1, self.chunk_size)).transpose(1, 2) for part in (q, k, v)]
            heads, _ = self.operator(
                *(part.flatten(0, 1) for part in chunks), log_decay=decay, keep_state=False, chunk=None
            )
            parts.append(heads.unflatten(0, (len(q), -1)).transpose(1, 2).flatten(2, 3))
        last = (part[:, :, full:] for part in (q, k, v))
        heads, memory = self.operator(*last, log_decay=decay, keep_state=True, chunk=None)
        assert memory is not None
        return torch.cat([*parts, heads], dim=2), memory

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return S ``[B, H, K, V]`` in float32 or wider, and the number of positions so far."""
        sizes = self.width // self.heads, self.inner // self.heads
        return torch.zeros(batch, self.heads, *sizes, dtype=at_least_float32(dtype), device=device), 0

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        memory, position = state
        if not self.cross_chunk:
            starts = (position + torch.zeros(1, dtype=torch.long, device=x.device)) % (self.chunk_size or 1) == 0
            memory = memory.masked_fill(starts, 0)
        q, k, v = self._heads(x[:, None], position)
        decay = log_decays(FIRST_EXPONENT, self.heads, x.device)
        y, memory = recurrence_step(q[:, :, 0], k[:, :, 0], v[:, :, 0], memory, decay[None, :, None], position=position)
        return self._merge(y, x), (memory, position + 1)

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count `recurrence_flops`, without ``cross_chunk`` for each chunk alone and without its S.

        Rotation, norm and gate, O(B·T·D), are not counted.
        """
        sizes = self.width // self.heads, self.inner // self.heads
        if not self.cross_chunk and self.chunk_size is not None:
            chunk = min(self.chunk_size, length)
            return 2 * batch * self.heads * -(-length // chunk) * chunk**2 * sum(sizes)
        return recurrence_flops(batch, self.heads, length, *sizes, self.chunk_size)

    def _heads(self, x: torch.Tensor, first: int | torch.Tensor = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Project ``x [B, T, D]`` at positions from ``first`` to q, k ``[B, H, T, K]`` and v ``[B, H, T, V]``.

        q and k are rotated, and k is scaled by 1/√K.
        """
        qk = self.qk(x).unflatten(-1, (2, self.heads, -1))
        q, k = rotary(qk, first, self.rope_theta, key_scale=qk.shape[-1] ** -0.5)
        v = self.v(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        return q, k, v

    def _merge(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Norm the heads' outputs ``[..., H, V]``, gate them by ``x [..., D]`` and mix them to ``[..., D]``."""
        centered = isinstance(self.norm, nn.LayerNorm)
        gate, weight = self.gate(x), self.norm.weight
        return self.out(gated_norm(y, gate, weight, self.norm_eps, dtype=x.dtype, centered=centered))
