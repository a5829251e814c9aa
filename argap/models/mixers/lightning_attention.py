"""Lightning attention: linear attention without a softmax or a sum, with a fixed decay per head and an output gate.

Legend: B batch, T positions, D width, H heads, K = D / H size of a head.
"""

import torch
import torch.nn.functional as F
from torch import nn

from argap.files.configs import Positive
from argap.kernels.fused.gated_norm import gated_norm
from argap.kernels.recurrent.linear_attention import linear_attention
from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, State, at_least_float32, split_heads
from argap.models.recurrence import EPSILON, HeadNorm, recurrence_flops, recurrence_step

SMALLEST_FACTOR = 1e-5


class LightningAttention(Mixer):
    """S_t = e^{−s} S_{t−1} + k_tᵀ v_t, o_t = q_t S_t, y = (σ(x W_g) ⊙ norm(o)) W_O with q, k, v = SiLU(x W).

    From arXiv 2501.08313, section 2.2 (the layer of MiniMax-01) and arXiv 2401.04658, section 3 (the operator, with
    decays). In head h from 1 of H, in layer n of L with this mixer, s = 2^{−8h/H} (1 − n/(L − 1)), so that early
    layers are local and the last one hardly forgets. The norm is RMSNorm over the width. Options:

    - ``heads``: by default one for each 128 of the width, but at least 4, so that narrow models also have several
      rates.
    - ``chunk_size``: positions compared at once; None: all, the parallel form.
    - ``norm_eps``: epsilon of the norm.

    Raises `ArgapError` if the width does not split into the heads.
    """

    source = "arXiv 2501.08313, section 2.2; arXiv 2401.04658, section 3"
    operator = staticmethod(linear_attention)

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        heads: int | None = None,
        chunk_size: AtLeastOne | None = 64,
        norm_eps: Positive = EPSILON,
    ) -> None:
        super().__init__()
        self.heads = split_heads("lightning_attention", width, heads, usual=max(4, width // 128))
        self.width, self.chunk_size, self.norm_eps = width, chunk_size, norm_eps
        self.depth_factor = 1.0
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.gate = nn.Linear(width, width, bias=False)
        self.norm = HeadNorm(width, width, norm_eps)
        self.out = ResidualLinear(width, width, bias=False)

    def set_depth(self, layer: int, layers: int) -> None:
        """Scale the decays' exponents by 1 − n/(L − 1) in layer n of L, as the authors' code does."""
        self.depth_factor = 1 - layer / (layers - 1 + SMALLEST_FACTOR) + SMALLEST_FACTOR

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.prefill(x, keep_state=False)[0]

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor, keep_state: bool = True) -> tuple[torch.Tensor, State]:
        """Return `Mixer.prefill`'s results; S is computed only if ``keep_state``."""
        q, k, v = (part.transpose(1, 2) for part in self._heads(x))
        decay = self._log_decay(x.device)
        y, memory = self.operator(q, k, v, log_decay=decay, keep_state=keep_state, chunk=self.chunk_size)
        return self._merge(y.transpose(1, 2), x), memory

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return S ``[B, H, K, K]`` in float32 or wider."""
        size = self.width // self.heads
        return torch.zeros(batch, self.heads, size, size, dtype=at_least_float32(dtype), device=device)

    def step(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = self._heads(x)
        y, state = recurrence_step(q, k, v, state, self._log_decay(x.device)[None, :, None])
        return self._merge(y, x), state

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count `recurrence_flops`; activations, norm and gate, O(B·T·D), are not counted."""
        size = self.width // self.heads
        return recurrence_flops(batch, self.heads, length, size, size, self.chunk_size)

    def _log_decay(self, device: torch.device) -> torch.Tensor:
        """Return −s of each head, float64 ``[H]``."""
        head = torch.arange(1, self.heads + 1, dtype=torch.float64, device=device)
        return -self.depth_factor * torch.exp2(-8 / self.heads * head)

    def _heads(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Map ``x [..., D]`` to q, k and v ``[..., H, K]``, which are next to each other in each head's weights."""
        return F.silu(self.qkv(x)).unflatten(-1, (self.heads, 3, -1)).unbind(-2)

    def _merge(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Norm the outputs ``[..., H, K]`` over all heads, gate them by ``x [..., D]`` and mix them to ``[..., D]``."""
        y, weight = y.flatten(-2)[..., None, :], self.norm.weight
        return self.out(gated_norm(y, self.gate(x), weight, self.norm_eps, dtype=x.dtype, activation="sigmoid"))
