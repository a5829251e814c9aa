"""Gated DeltaNet: DeltaNet whose state also decays, by one number per head and position, and an output gate.

Legend: B batch, T positions, D width, H heads, K key size, V value size of a head.
"""

from typing import Annotated

import torch
from msgspec import Meta
from torch import nn

from argap.files.configs import Positive
from argap.kernels.fused.gated_norm import gated_norm
from argap.models.mixer import AtLeastOne
from argap.models.mixers.delta_net import DeltaRuleMixer
from argap.models.mixers.step_decay import StepDecay
from argap.models.recurrence import EPSILON

Share = Annotated[float, Meta(gt=0, le=1000)]


class GatedDeltaNet(DeltaRuleMixer):
    """S_t = α_t S_{t−1} + β_t k_tᵀ (v_t − α_t k_t S_{t−1}), o_t = q_t S_t, y = (SiLU(x W_g) ⊙ norm(o)) W_O.

    From arXiv 2412.06464, eq. 10 and section 3.4 (the layer), transposed: q, k and v as in DeltaNet, and as in Mamba-2
    log α = −e^λ softplus(x W_α + b) with numbers λ and b per head. The norm is RMSNorm over a head's values.

    Options:

    - ``heads``: by default one for each 128 of the width.
    - ``key_expansion`` and ``value_expansion``: H·K and H·V as shares of the width, ¾ and 1½, so that the layer has
      6·D² weights as in the paper and in OLMo-Hybrid.
    - ``negative_eigenvalues``: β in (0, 2), which lets a transition flip a key's direction (arXiv 2411.12537), as
      OLMo-Hybrid has it.
    - ``conv_size``: taps of the short convolution, 4; None: no convolution.
    - ``chunk_size``: positions that one triangular system solves, 64; None: all.
    - ``norm_eps``: epsilon of the norm. It is added to outputs that are not scaled by 1/√K.

    Raises `ArgapError` for keys or values that do not split into the heads.
    """

    source = "arXiv 2412.06464, eq. 10 and section 3.4"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        heads: AtLeastOne | None = None,
        key_expansion: Share = 0.75,
        value_expansion: Share = 1.5,
        negative_eigenvalues: bool = False,
        conv_size: AtLeastOne | None = 4,
        chunk_size: AtLeastOne | None = 64,
        norm_eps: Positive = EPSILON,
    ) -> None:
        heads = max(1, width // 128) if heads is None else heads
        keys, values = round(key_expansion * width), round(value_expansion * width)
        super().__init__("gated_delta_net", width, heads, keys, values, conv_size, chunk_size)
        self.largest_rate, self.norm_eps = 2 if negative_eigenvalues else 1, norm_eps
        self.steps = nn.Linear(width, heads, bias=False)
        self.decay = StepDecay(heads, slowest=0.01)
        self.gate = nn.Linear(width, values, bias=False)
        self.norm = nn.RMSNorm(values // heads, eps=norm_eps)

    def _log_decay(self, x: torch.Tensor) -> torch.Tensor:
        return self.decay.log_decay(self.steps(x))

    def _merge(self, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return self.out(gated_norm(y, self.gate(x), self.norm.weight, self.norm_eps, dtype=x.dtype))
