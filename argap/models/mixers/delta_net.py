"""DeltaNet: linear attention whose state corrects the value stored for a key instead of adding to it.

Legend: B batch, T positions, D width, H heads, K = D / H key and value size of a head.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from argap.files.configs import Positive
from argap.kernels.recurrent.delta_rule import SMALLEST_NORM, delta_rule
from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, State, at_least_float32, split_heads
from argap.models.mixers.convolution import NoConvolution, ShortConvolution
from argap.models.mixers.feature_maps import ACTIVATIONS
from argap.models.recurrence import EPSILON, HeadNorm, delta_rule_flops, delta_rule_step

Activation = Literal["silu", "elu", "relu", "identity"]
KeyNorm = Literal["l2", "l1"]


class DeltaNet(Mixer):
    """S_t = S_{t−1} + β_t k_tᵀ (v_t − k_t S_{t−1}), o_t = q_t S_t, y = norm(o) W_O with β = σ(x W_β).

    From arXiv 2406.06484, sections 2.2 and 3.3; q and k = norm(silu(conv(x W))), v = silu(conv(x W)).

    Options, the first value being the paper's:

    - ``heads``: by default one for each 128 of the width.
    - ``activation``: of q and k, ``silu``; ``elu`` (1 + elu), ``relu``, ``identity``.
    - ``key_norm``: divide q and k by their ``l2`` or ``l1`` norm.
    - ``conv_size``: taps of the short convolution over q, k and v, 4; None: no convolution.
    - ``chunk_size``: positions that one triangular system solves, 64; None: all.
    - ``norm_eps``: epsilon of the output's norm, 10⁻⁵.

    The output's norm is RMSNorm over a head's values. Raises `ArgapError` for a width that does not split into the
    heads.
    """

    source = "arXiv 2406.06484, sections 2.2, 3.2 (chunks) and 3.3 (the layer)"
    operator = staticmethod(delta_rule)

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        heads: int | None = None,
        activation: Activation = "silu",
        key_norm: KeyNorm = "l2",
        conv_size: AtLeastOne | None = 4,
        chunk_size: AtLeastOne | None = 64,
        norm_eps: Positive = EPSILON,
    ) -> None:
        super().__init__()
        self.heads = split_heads("delta_net", width, heads, usual=width // 128)
        self.width, self.chunk_size = width, chunk_size
        self.activation: Activation = activation
        self.key_norm: KeyNorm = key_norm
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.conv = NoConvolution() if conv_size is None else ShortConvolution(3 * width, conv_size)
        self.beta = nn.Linear(width, self.heads, bias=False)
        self.norm = HeadNorm(width // self.heads, width, norm_eps)
        self.out = ResidualLinear(width, width, bias=False)

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor) -> tuple[torch.Tensor, State]:
        mapped = self.qkv(x)
        fused = self.activation == "silu" and self.key_norm == "l2"  # the kernels compute these two
        convolved = fused and isinstance(self.conv, ShortConvolution) and self.conv.norms_heads(mapped)
        if convolved:  # norms in the convolution, which has q and k in registers
            qkv = self.conv(mapped, silu=True, unit_heads=(2 * self.heads, self.width // self.heads))
        else:
            qkv = self.conv(mapped, silu=fused)
        heads = qkv.unflatten(-1, (3, self.heads, -1)).unbind(-3) if fused else self._heads(qkv)
        q, k, v = (part.transpose(1, 2) for part in heads)
        rate = self._rate(x).transpose(1, 2)
        y, memory = self.operator(q, k, v, rate, normalize=fused and not convolved, chunk=self.chunk_size)
        return self._merge(y.transpose(1, 2), x.dtype), (memory, self.conv.state_after(mapped))

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return S ``[B, H, K, K]`` in float32 or wider, and the short convolution's last inputs."""
        size = self.width // self.heads
        memory = torch.zeros(batch, self.heads, size, size, dtype=at_least_float32(dtype), device=device)
        return memory, self.conv.init_state(batch, dtype, device)

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        memory, past = state
        qkv, past = self.conv.step(self.qkv(x), past)
        q, k, v = self._heads(qkv)
        y, memory = delta_rule_step(q, k, v, self._rate(x), memory)
        return self._merge(y, x.dtype), (memory, past)

    def state_size(self, length: int) -> int:
        """Return H·K² plus the short convolution's state."""
        return super().state_size(length) + self.conv.state_size(length)

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count the short convolution and `delta_rule_flops`; norms and nonlinearities, O(B·T·D), are not counted."""
        size = self.width // self.heads
        return self.conv.flops(batch, length) + delta_rule_flops(batch, self.heads, length, size, size, self.chunk_size)

    def _heads(self, qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return q and k, of unit norm, and v, each ``[..., H, K]`` in float32 or wider."""
        compute_dtype = at_least_float32(qkv.dtype)
        q, k, v = qkv.to(compute_dtype).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        order = 2 if self.key_norm == "l2" else 1
        q, k = (F.normalize(ACTIVATIONS[self.activation](part), p=order, dim=-1, eps=SMALLEST_NORM) for part in (q, k))
        return q, k, F.silu(v)

    def _rate(self, x: torch.Tensor) -> torch.Tensor:
        """Return β ``[..., H]`` in (0, 1): the share of the value stored for a key that is replaced."""
        return self.beta(x).to(at_least_float32(x.dtype)).sigmoid()

    def _merge(self, y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Norm and mix the heads' outputs ``[..., H, K]`` to ``[..., D]``."""
        return self.out(self.norm(y).flatten(-2).to(dtype))
