"""Steps, FLOPs and the output norm shared by the recurrent mixers.

Linear attention with decay: S_t = a_t ⊙ S_{t−1} + k_tᵀ v_t and y_t = q_t S_t. The delta rule: S_t = S_{t−1} + β_t k_tᵀ
(v_t − k_t S_{t−1}), which moves the value stored for a key towards the new one by β instead of adding to it (arXiv
2406.06484, section 2.2, transposed). The parallel forms are in `argap.kernels.recurrent`.

Legend: B batch, H heads, T positions, C chunk size, K key size, V value size, G decay size: 1 or K.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from argap.kernels.shared import shared

EPSILON = 1e-5


@shared
def log_decays(exponent: float, heads: int, device: torch.device) -> torch.Tensor:
    """Return log γ of each head, float64 ``[H]``: γ = 1 − 2^(``exponent`` − h) in head h from 0."""
    return torch.log1p(-torch.exp2(exponent - torch.arange(heads, dtype=torch.float64, device=device)))


def recurrence_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    state: torch.Tensor,
    log_decay: torch.Tensor | None = None,
    *,
    position: int | torch.Tensor = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advance linear attention by one position; returns ``y [B, H, V]`` and the state after it.

    ``q``, ``k`` are ``[B, H, K]``, ``v [B, H, V]``, ``state [B, H, K, V]`` and ``log_decay [B or 1, H, G]``. The state
    keeps its dtype. If ``position`` is a tensor, as in `argap.models.steps`, the state is updated in place.
    """
    out = state if isinstance(position, torch.Tensor) else None
    q, k, v = q.to(state.dtype), k.to(state.dtype), v.to(state.dtype)
    if log_decay is not None:
        state = torch.mul(state, log_decay.to(state.dtype).exp()[..., None], out=out)
    state = torch.addcmul(state, k[..., :, None], v[..., None, :], out=out)
    return (q[..., None, :] @ state)[..., 0, :], state


def recurrence_flops(batch: int, heads: int, length: int, key: int, value: int, chunk: int | None) -> int:
    """Count the FLOPs of the chunked form's matrix products; decays, O(C²·G), are not counted.

    Each chunk, padded to C positions, takes 2·C²·(K + V) for scores and weighted values, and 4·C·K·V to read and
    update S.
    """
    size = length if chunk is None else min(chunk, length)
    chunks = -(-length // size)
    return batch * heads * chunks * (2 * size**2 * (key + value) + 4 * size * key * value)


def delta_rule_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    state: torch.Tensor,
    log_decay: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advance the delta rule by one position; returns ``y [B, H, V]`` and the state after it, in the state's dtype.

    ``q``, ``k`` are ``[B, H, K]``, ``v [B, H, V]``, ``beta [B, H]`` and ``state [B, H, K, V]``. ``log_decay [B, H, G]``
    scales the state before it is corrected.
    """
    q, k, v, beta = (x.to(state.dtype) for x in (q, k, v, beta[..., None]))
    if log_decay is not None:
        state = state * log_decay.to(state.dtype).exp()[..., None]
    recalled = (k[..., None, :] @ state)[..., 0, :]
    state = torch.addcmul(state, k[..., :, None], (beta * (v - recalled))[..., None, :])
    return (q[..., None, :] @ state)[..., 0, :], state


def delta_rule_flops(batch: int, heads: int, length: int, key: int, value: int, chunk: int | None) -> int:
    """Count the FLOPs of the matrix products in `argap.kernels.recurrent.delta_rule`.

    Each chunk, padded to C positions, takes 4·C²·K for K Kᵀ and Q Kᵀ, C²·(K + V) for the triangular solve, 2·C²·V for
    the weighted values and 6·C·K·V for S.
    """
    size = length if chunk is None else min(chunk, length)
    chunks = -(-length // size)
    per_chunk = size**2 * (4 * key + (key + value) + 2 * value) + 6 * size * key * value
    return batch * heads * chunks * per_chunk


def generalized_delta_rule_step(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    log_decay: torch.Tensor,
    state: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advance the generalized delta rule by one position; returns ``y [B, H, V]`` and the state after it.

    ``q``, ``k``, ``a``, ``b`` and ``log_decay`` are ``[B, H, K]``, ``v [B, H, V]`` and ``state [B, H, K, V]``, whose
    dtype all results have.
    """
    q, k, v, a, b, log_decay = (x.to(state.dtype) for x in (q, k, v, a, b, log_decay))
    read = a[..., None, :] @ state
    state = torch.addcmul(log_decay.exp()[..., None] * state, b[..., :, None], read)
    state = torch.addcmul(state, k[..., :, None], v[..., None, :])
    return (q[..., None, :] @ state)[..., 0, :], state


def generalized_delta_rule_flops(batch: int, heads: int, length: int, key: int, value: int, chunk: int | None) -> int:
    """Count the FLOPs of the products in `argap.kernels.recurrent.generalized_delta_rule`.

    Each chunk, padded to C positions, takes 8·C²·K for four matrices of products, C²·(K + V) for the triangular solve,
    6·C²·V for the weighted values and 8·C·K·V for S.
    """
    size = length if chunk is None else min(chunk, length)
    chunks = -(-length // size)
    return batch * heads * chunks * (size**2 * (9 * key + 7 * value) + 8 * size * key * value)


class HeadNorm(nn.RMSNorm):
    """RMSNorm over a head's values ``[..., V]``, with V weights shared by all heads.

    The weight starts at the scale of a projection of the normed input. Starting at 1 would make the layer's output
    several times larger than the token embeddings.
    """

    def __init__(self, size: int, width: int, eps: float = EPSILON) -> None:
        super().__init__(size, eps=eps)
        self.width = width

    def initialize(self, std: float, residual_std: float) -> None:
        nn.init.constant_(self.weight, std * math.sqrt(self.width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(self.weight.dtype))


class HeadLayerNorm(nn.Module):
    """LayerNorm over each head's values, with a weight, and perhaps a bias, for every channel of every head."""

    def __init__(self, heads: int, size: int, eps: float, *, bias: bool = False) -> None:
        super().__init__()
        self.eps, self.start = eps, 1.0
        self.weight = nn.Parameter(torch.empty(heads * size))
        self.bias = nn.Parameter(torch.empty(heads * size)) if bias else None

    def initialize(self, std: float, residual_std: float) -> None:
        nn.init.constant_(self.weight, self.start)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Norm ``x [..., H, V]`` to ``[..., H·V]``."""
        x = x.to(self.weight.dtype)
        y = F.layer_norm(x, x.shape[-1:], eps=self.eps).flatten(-2) * self.weight
        return y if self.bias is None else y + self.bias
