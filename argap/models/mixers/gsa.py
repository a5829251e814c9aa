"""Gated slot attention: softmax attention over a fixed number of slots, which keys and values fade into.

Legend: B batch, H heads, T positions, C positions per chunk, D width, K = D / H size of a head, M slots.
"""

import torch
import torch.nn.functional as F
from torch import nn

from argap.files.configs import Positive
from argap.kernels.recurrent.gla import gla
from argap.kernels.recurrent.recurrence import in_chunks
from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, at_least_float32, split_heads
from argap.models.recurrence import EPSILON, HeadNorm, recurrence_flops, recurrence_step

State = tuple[torch.Tensor, torch.Tensor]


class GSA(Mixer):
    """K̃_t = diag(α_t) K̃_{t−1} + (1 − α_t)ᵀ k_t, the same for Ṽ and v, and o_t = softmax(q_t K̃_tᵀ) Ṽ_t.

    From arXiv 2409.07146, section 3; K̃ and Ṽ have M rows, the slots. q, k, v = SiLU(x W), α = σ(x W_α)^{1/τ} is one
    number per slot, and y = norm(SiLU(o)) W_O with RMSNorm over the width. The second half, values read
    with the slots' weights as queries, is gated linear attention; in the first the decay is one of the output's columns
    (`slot_scores`).

    Options:

    - ``heads``: 4.
    - ``slots``: M, 64.
    - ``gate_temperature``: τ, 8.
    - ``chunk_size``: positions compared at once; None: all, the parallel form. Chunks are short because each pair of
      positions in one needs M decays.
    - ``norm_eps``: epsilon of the norm.

    Raises `ArgapError` if the width does not split into the heads.
    """

    source = "arXiv 2409.07146, section 3"
    operator = staticmethod(gla)

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        heads: AtLeastOne = 4,
        slots: AtLeastOne = 64,
        gate_temperature: Positive = 8.0,
        chunk_size: AtLeastOne | None = 16,
        norm_eps: Positive = EPSILON,
    ) -> None:
        super().__init__()
        self.heads = split_heads("gsa", width, heads)
        self.width, self.slots, self.temperature, self.chunk_size = width, slots, gate_temperature, chunk_size
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.decay = nn.Linear(width, heads * slots, bias=False)
        self.norm = HeadNorm(width, width, norm_eps)
        self.out = ResidualLinear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.prefill(x, keep_state=False)[0]

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor, keep_state: bool = True) -> tuple[torch.Tensor, State]:
        """Return `Mixer.prefill`'s results; Ṽ is computed only if ``keep_state``."""
        q, k, v, log_decay = (part.transpose(1, 2) for part in self._heads(x))
        written = _written(log_decay).to(v.dtype)
        scores, keys = slot_scores(q, k, written, log_decay, self.chunk_size)
        weights = scores.softmax(dim=-1).to(v.dtype)
        y, values = self.operator(weights, written, v, log_decay, keep_state=keep_state, chunk=self.chunk_size)
        return self._merge(y.transpose(1, 2), x), (keys, values)

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return K̃ and Ṽ, ``[B, H, M, K]`` each, in float32 or wider."""
        sizes = batch, self.heads, self.slots, self.width // self.heads
        keys, values = torch.zeros(2, *sizes, dtype=at_least_float32(dtype), device=device).unbind()
        return keys, values

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        keys, values = state
        q, k, v, log_decay = self._heads(x)
        written = _written(log_decay).to(v.dtype)
        keys = keys * log_decay.exp()[..., None] + written[..., None] * k[..., None, :]
        weights = (keys @ q[..., None].to(keys.dtype))[..., 0].softmax(dim=-1)
        y, values = recurrence_step(weights, written, v, values, log_decay)
        return self._merge(y, x), (keys, values)

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count the matrix products of `slot_scores` and `recurrence_flops` of the values; decays are not counted.

        A chunk of C positions takes 2·C²·K for scores and 4·C·K·M to read and update K̃.
        """
        size = self.width // self.heads
        chunk = length if self.chunk_size is None else min(self.chunk_size, length)
        scores = batch * self.heads * -(-length // chunk) * (2 * chunk**2 * size + 4 * chunk * size * self.slots)
        return scores + recurrence_flops(batch, self.heads, length, self.slots, size, self.chunk_size)

    def _heads(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Map ``x [..., D]`` to q, k, v ``[..., H, K]`` and log α ``[..., H, M]``, the last in float32 or wider."""
        q, k, v = F.silu(self.qkv(x)).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        logits = self.decay(x).to(at_least_float32(x.dtype))
        return q, k, v, F.logsigmoid(logits.unflatten(-1, (self.heads, -1))) / self.temperature

    def _merge(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Norm the activated outputs ``[..., H, K]`` over all heads and mix them to ``[..., D]``."""
        return self.out(self.norm(F.silu(y).flatten(-2)).to(x.dtype))


def slot_scores(
    q: torch.Tensor, k: torch.Tensor, written: torch.Tensor, log_decay: torch.Tensor, chunk: int | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute q_t K̃_tᵀ with K̃_t = diag(α_t) K̃_{t−1} + written_tᵀ k_t, in PyTorch; differentiable.

    Args:
        q, k: ``[B, H, T, K]``.
        written: ``[B, H, T, M]``.
        log_decay: log α ≤ 0, ``[B, H, T, M]``.
        chunk: C; all pairs within a chunk are compared, K̃ is carried between chunks. None: one chunk.

    Returns:
        The scores ``[B, H, T, M]`` and the last K̃ ``[B, H, M, K]``, in float32 or wider. No exponent is positive.
    """
    dtype, length = at_least_float32(q.dtype), q.shape[2]
    size = length if chunk is None else min(chunk, length)
    with torch.autocast(q.device.type, enabled=False):
        q, k, written = (in_chunks(x.to(dtype), size) for x in (q, k, written))
        decay = in_chunks(log_decay.to(dtype), size).cumsum(dim=-2)
        causal = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
        between = (decay[..., :, None, :] - decay[..., None, :, :]).masked_fill(~causal[..., None], -torch.inf)
        scores = ((q @ k.mT)[..., None] * between.exp() * written[..., None, :, :]).sum(dim=-2)
        total = decay[..., -1:, :]
        updates, kept = (written * (total - decay).exp()).mT @ k, total.exp().mT
        keys, before = torch.zeros_like(updates[:, :, 0]), []
        for n in range(updates.shape[2]):
            before.append(keys)
            keys = kept[:, :, n] * keys + updates[:, :, n]
        scores = scores + (q @ torch.stack(before, dim=2).mT) * decay.exp()
        return scores.flatten(2, 3)[:, :, :length], keys


def _written(log_decay: torch.Tensor) -> torch.Tensor:
    """Return 1 − α of log α, the share of a slot that is replaced."""
    return -torch.expm1(log_decay)
