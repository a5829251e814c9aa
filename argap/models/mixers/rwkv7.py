"""RWKV-7: a matrix state that decays by channel and is corrected along keys of its own, with token shift.

Legend: B batch, T positions, D width, H heads, K = D / H size of a head.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers.initialization import copy_

from argap.files.configs import Positive
from argap.kernels.fused.token_shift import mixed, token_shift
from argap.kernels.recurrent.delta_rule import SMALLEST_NORM
from argap.kernels.recurrent.generalized_delta_rule import generalized_delta_rule
from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, at_least_float32, split_heads
from argap.models.mixers.rwkv4 import DEPTH, TokenShift, shift_weights
from argap.models.recurrence import HeadLayerNorm, generalized_delta_rule_flops, generalized_delta_rule_step

State = tuple[torch.Tensor, torch.Tensor]
FASTEST = -math.exp(-0.5)
"""The smallest log decay."""
SHIFTS = {"receptance": 0.2, "decay": 0.9, "key": 0.7, "value": 0.7, "rate": 0.9, "gate": 0.2}
"""Exponents of the token shifts' start in a model's first layer."""


class RWKV7(Mixer):
    """S_t = diag(w) S_{t−1} − (a ⊙ κ)ᵀ (κ S_{t−1}) + k_tᵀ v_t, y = (g ⊙ (norm(r S) + (r·(ρ ⊙ k)) v)) W_O.

    From arXiv 2503.14456, section 4 (time mixing), transposed. Each of the six maps reads its own mix of the position
    and the one before it (`argap.kernels.fused.token_shift`). r, k' and v are linear; the decay is
    log w = −e^{−½} σ(l_w), the in-context learning rate a = σ(l_a) and the gate g are maps through few channels, the
    decay's with tanh and the gate's with σ between; the removed key κ = k' ⊙ ξ has unit norm in each head, and the
    written key is k = k' ⊙ (1 + (a − 1) ⊙ α). The norm is LayerNorm over a head's values, with D weights and biases.

    A layer of a native model sees only its own input: the residual of the first layer's values (the paper's ν) is left
    out, so that every layer is what the published first one is. The backbone's SwiGLU replaces channel mixing.

    Options:

    - ``heads``: by default one for each 64 of the width.
    - ``decay_rank``, ``rate_rank``, ``gate_rank``: channels of the three narrow maps; by default those of the authors'
      code, 2.5·√D, 2.5·√D and 5·√D rounded to a multiple of 32, but at most half the width.
    - ``chunk_size``: positions that one triangular system solves; None: all.
    - ``norm_eps``: epsilon of the norm divided by K, 10⁻⁵.

    Raises `ArgapError` if the width does not split into the heads.
    """

    source = "arXiv 2503.14456, section 4, without the value residual"
    operator = staticmethod(generalized_delta_rule)

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        heads: int | None = None,
        decay_rank: AtLeastOne | None = None,
        rate_rank: AtLeastOne | None = None,
        gate_rank: AtLeastOne | None = None,
        chunk_size: AtLeastOne | None = 16,
        norm_eps: Positive = 1e-5,
    ) -> None:
        super().__init__()
        self.heads = split_heads("rwkv7", width, heads, usual=width // 64)
        self.width, self.chunk_size = width, chunk_size
        size = width // self.heads
        self.shift = nn.ModuleDict({name: TokenShift(width) for name in SHIFTS})
        self.receptance, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.decay_down, self.decay_up = _narrow(width, decay_rank or _rank(width, 2.5))
        self.rate_down, self.rate_up = _narrow(width, rate_rank or _rank(width, 2.5))
        self.gate_down, self.gate_up = _narrow(width, gate_rank or _rank(width, 5.0))
        self.decay_bias = nn.Parameter(torch.empty(width))
        self.rate_bias = nn.Parameter(torch.empty(width))
        self.removed = nn.Parameter(torch.empty(width))
        self.replaced = nn.Parameter(torch.empty(width))
        self.bonus = nn.Parameter(torch.empty(self.heads, size))
        self.norm = HeadLayerNorm(self.heads, size, norm_eps * size, bias=True)
        self.out = ResidualLinear(width, width, bias=False)
        self._set_start(DEPTH, 1 - DEPTH, 1.0)

    def set_depth(self, layer: int, layers: int) -> None:
        """Set the depth of layer l of L: decays by l/(L − 1), token shifts by 1 − l/L, norms by (l + 1)/L."""
        self._set_start(layer / max(1, layers - 1), 1 - layer / layers, (layer + 1) / layers)

    def _set_start(self, depth: float, rest: float, reached: float) -> None:
        self.depth, self.norm.start = depth, reached**0.7
        for name, exponent in SHIFTS.items():
            shift = self.shift[name]
            assert isinstance(shift, TokenShift)
            shift.exponent = exponent * rest

    def initialize(self, std: float, residual_std: float) -> None:
        """Start keys, bonus and the biases of decays and rates as the authors' code does.

        Decays run from slow to fast over the width, and again over the channels of each head. (There the narrow maps
        start at 0, so that their token shifts do not learn at the first step; here they start like other maps.)
        """
        ramp, wave = self._channels()
        power = 1 + self.depth**0.3
        copy_(self.decay_bias, -5.5 + 6 * (ramp + 0.5) ** power + 2.5 * wave)
        copy_(self.rate_bias, -0.19 + 0.3 * wave + 0.4 * ramp)
        copy_(self.removed, 0.71 - 0.1 * ramp)
        nn.init.constant_(self.replaced, 1.02)
        nn.init.constant_(self.bonus, -0.04)

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor) -> tuple[torch.Tensor, State]:
        maps, v, gate = self._maps(token_shift(x, shift_weights(self.shift)))
        *operands, log_decay = (part.transpose(1, 2) for part in maps)
        r, k, a, b = operands
        y, memory = self.operator(
            r, k, v.transpose(1, 2), a, b, log_decay=log_decay, least_log_decay=FASTEST, chunk=self.chunk_size
        )
        return self._merge(y.transpose(1, 2), maps, v, gate), (x[:, -1], memory)

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return the last input ``[B, D]`` and S ``[B, H, K, K]``, the latter in float32 or wider."""
        size = self.width // self.heads
        memory = torch.zeros(batch, self.heads, size, size, dtype=at_least_float32(dtype), device=device)
        return torch.zeros(batch, self.width, dtype=dtype, device=device), memory

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        previous, memory = state
        maps, v, gate = self._maps(mixed(x, previous, shift_weights(self.shift)))
        r, k, a, b, log_decay = maps
        y, memory = generalized_delta_rule_step(r, k, v, a, b, log_decay, memory)
        return self._merge(y, maps, v, gate), (x, memory)

    def mixing_flops(self, batch: int, length: int) -> int:
        """Return `generalized_delta_rule_flops`; shifts, gates and norms, O(B·T·D), are not counted."""
        size = self.width // self.heads
        return generalized_delta_rule_flops(batch, self.heads, length, size, size, self.chunk_size)

    def _channels(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return a ramp over the width from −½ to ½, and z·|z| of a ramp z over each head from −1 to 1; ``[D]``."""
        device, size = self.removed.device, self.width // self.heads
        ramp = torch.arange(self.width, device=device, dtype=torch.float32) / max(1, self.width - 1) - 0.5
        wave = 2 * torch.arange(size, device=device, dtype=torch.float32) / max(1, size - 1) - 1
        return ramp, (wave * wave.abs()).repeat(self.heads)

    def _maps(self, mixes: list[torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], torch.Tensor, torch.Tensor]:
        """Map the mixes ``[..., D]`` to (r, k, −κ, κ ⊙ a, log w) and v ``[..., H, K]``, and the gate ``[..., D]``.

        Rates, the keys made with them and decays are in float32 or wider.
        """
        for_r, for_decay, for_k, for_v, for_rate, for_gate = mixes
        dtype = at_least_float32(for_r.dtype)
        r, key, v = self.receptance(for_r), self.key(for_k).to(dtype), self.value(for_v)
        rate = (self.rate_up(self.rate_down(for_rate)) + self.rate_bias).to(dtype).sigmoid()
        log_decay = FASTEST * (self.decay_up(self.decay_down(for_decay).tanh()) + self.decay_bias).to(dtype).sigmoid()
        gate = self.gate_up(self.gate_down(for_gate).sigmoid())
        k = key * (1 + (rate - 1) * self.replaced.to(dtype))
        removed = (key * self.removed.to(dtype)).unflatten(-1, (self.heads, -1))
        removed = F.normalize(removed, dim=-1, eps=SMALLEST_NORM)
        r, k, rate, log_decay, v = (part.unflatten(-1, (self.heads, -1)) for part in (r, k, rate, log_decay, v))
        return (r, k, -removed, removed * rate, log_decay), v, gate

    def _merge(
        self, y: torch.Tensor, maps: tuple[torch.Tensor, ...], v: torch.Tensor, gate: torch.Tensor
    ) -> torch.Tensor:
        """Norm the heads' outputs ``[..., H, K]``, add the bonus of the position, gate and mix to ``[..., D]``."""
        r, k, *_ = maps
        bonus = (r * k * self.bonus.to(k.dtype)).sum(dim=-1, keepdim=True) * v
        return self.out((self.norm(y) + bonus.flatten(-2)).to(gate.dtype) * gate)


def _narrow(width: int, rank: int) -> tuple[nn.Linear, nn.Linear]:
    """Build a map of D channels to D through ``rank``."""
    return nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)


def _rank(width: int, factor: float) -> int:
    """Return factor·√D rounded to a multiple of 32, at least 32, but at most half the width."""
    return max(1, min(max(32, round(factor * math.sqrt(width) / 32) * 32), width // 2))
