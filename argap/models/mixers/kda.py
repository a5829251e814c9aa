"""Kimi delta attention: the delta rule with a decay for every channel of the key, and an output gate.

Legend: B batch, T positions, D width, H heads, K = D / H key and value size of a head.
"""

import torch
from torch import nn

from argap.files.configs import Positive
from argap.kernels.fused.gated_norm import gated_norm
from argap.models.mixer import AtLeastOne, split_heads
from argap.models.mixers.delta_net import DeltaRuleMixer
from argap.models.mixers.step_decay import StepDecay
from argap.models.recurrence import EPSILON, HeadNorm


class KDA(DeltaRuleMixer):
    """S_t = D_t + β_t k_tᵀ (v_t − k_t D_t), D_t = diag(α_t) S_{t−1}, o_t = q_t S_t, y = (σ(g) ⊙ norm(o)) W_O.

    From arXiv 2510.26692, eq. 1 and section 4 (the layer): q, k and v as in DeltaNet, and
    log α = −e^λ softplus(x W_α¹ W_α² + b) with a number λ per head and b per channel. W_α¹ and the gate g = x W_g¹ W_g²
    go through K channels. The norm is RMSNorm over a head's values.

    Options:

    - ``heads``: by default one for each 128 of the width.
    - ``conv_size``: taps of the short convolution, 4; None: no convolution.
    - ``chunk_size``: positions that one triangular system solves; None: all. Chunks are short because each pair of
      positions in one needs K decays.
    - ``norm_eps``: epsilon of the norm. It is added to outputs that are not scaled by 1/√K.

    Raises `ArgapError` for a width that does not split into the heads.
    """

    source = "arXiv 2510.26692, eq. 1 and section 4"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        heads: int | None = None,
        conv_size: AtLeastOne | None = 4,
        chunk_size: AtLeastOne | None = 16,
        norm_eps: Positive = EPSILON,
    ) -> None:
        heads = split_heads("kda", width, heads, usual=width // 128)
        super().__init__("kda", width, heads, width, width, conv_size, chunk_size)
        size = width // heads
        self.norm_eps = norm_eps
        self.decay_down = nn.Linear(width, size, bias=False)
        self.decay_up = nn.Linear(size, width, bias=False)
        self.decay = StepDecay(heads, size)
        self.gate_down = nn.Linear(width, size, bias=False)
        self.gate_up = nn.Linear(size, width, bias=False)
        self.norm = HeadNorm(size, width, norm_eps)

    def _log_decay(self, x: torch.Tensor) -> torch.Tensor:
        return self.decay.log_decay(self.decay_up(self.decay_down(x)))

    def _merge(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        gate = self.gate_up(self.gate_down(x))
        return self.out(gated_norm(y, gate, self.norm.weight, self.norm_eps, dtype=x.dtype, activation="sigmoid"))
