"""RWKV-4: an exponentially weighted average of past values, with token shift.

Legend: B batch, T positions, D width.
"""

import math

import torch
from torch import nn
from transformers.initialization import copy_

from argap.kernels.fused.gated_product import gated_product
from argap.kernels.fused.token_shift import mixed, token_shift
from argap.kernels.launch import runs_kernels
from argap.kernels.recurrent.wkv import Sums, wkv, wkv_average
from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, at_least_float32

DEPTH = 0.5
"""The initial depth of a mixer outside a model; in a model `RWKV4.set_depth` sets its own."""


class RWKV4(Mixer):
    """Time mixing: W_o (σ(r) ⊙ wkv).

    From arXiv 2305.13048, section 3.1: token shift, WKV operator, output gating. r, k and v are linear in μ ⊙ x_t + (1
    − μ) ⊙ x_{t−1}, each with its own μ. wkv_t is the weighted mean of v_t, with weight e^{u + k_t}, and of the earlier
    v_i, with weights e^{k_i − (t−1−i) w}. As in the paper's appendix, sums are stored relative to their largest
    exponent so that nothing overflows.

    The backbone's SwiGLU replaces channel mixing; `RWKV4Channel` implements the paper's.
    """

    source = "arXiv 2305.13048, section 3.1, WKV operator"

    def __init__(self, width: int, max_positions: int | None = None) -> None:
        super().__init__()
        self.shift = nn.ModuleDict({name: TokenShift(width) for name in ("receptance", "key", "value")})
        self._set_start(DEPTH, 1 - DEPTH)
        self.receptance = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.log_decay = nn.Parameter(torch.empty(width))
        self.bonus = nn.Parameter(torch.empty(width))
        self.out = ResidualLinear(width, width, bias=False)

    def set_depth(self, layer: int, layers: int) -> None:
        """Set the depth of layer l of L: decays by l/(L − 1), token shifts by 1 − l/L and l/(L − 1)."""
        self._set_start(layer / max(1, layers - 1), 1 - layer / layers)

    def _set_start(self, depth: float, rest: float) -> None:
        self.depth = depth
        starts = {"receptance": (rest / 2, 0.0), "key": (rest, 0.0), "value": (rest, 0.3 * depth)}
        for name, (exponent, offset) in starts.items():
            shift = self.shift[name]
            assert isinstance(shift, TokenShift)
            shift.exponent, shift.offset = exponent, offset

    def initialize(self, std: float, residual_std: float) -> None:
        """Initialise as the paper does: log w_i = −5 + 8·(i/(D − 1))^{0.7 + 1.3·l/(L − 1)}.

        The decays range from averages over the distant past to the last token's value. u_i = log 0.3 + (−½, 0 or ½ in
        turn).
        """
        width = len(self.bonus)
        channel = torch.arange(width, device=self.bonus.device, dtype=torch.float32)
        copy_(self.log_decay, -5 + 8 * (channel / max(1, width - 1)) ** (0.7 + 1.3 * self.depth))
        copy_(self.bonus, math.log(0.3) + 0.5 * ((channel + 1) % 3 - 1))

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, Sums]]:
        r, k, v = self._maps(token_shift(x, shift_weights(self.shift)))
        decay = self.log_decay.to(at_least_float32(x.dtype)).exp()
        y, sums = wkv(k, v, decay, self.bonus, receptance=r)
        return self.out(y), (x[:, -1], sums)

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, Sums]:
        """Return the last input, then the two sums and their largest exponent in float32 or wider; all ``[B, D]``."""
        state_dtype = at_least_float32(dtype)
        size = (batch, self.out.in_features)
        zeros = torch.zeros(size, dtype=state_dtype, device=device)
        top = torch.full(size, -torch.inf, dtype=state_dtype, device=device)
        return torch.zeros(size, dtype=dtype, device=device), (zeros, zeros, top)

    def step(self, x: torch.Tensor, state: tuple[torch.Tensor, Sums]) -> tuple[torch.Tensor, tuple[torch.Tensor, Sums]]:
        previous, sums = state
        r, k, v = self._maps(mixed(x, previous, shift_weights(self.shift)))
        values, weights, before = sums
        k, v = k.to(before.dtype), v.to(before.dtype)
        y = self.out(torch.sigmoid(r) * wkv_average(k, v, self.bonus, sums).to(x.dtype))
        decayed = before - self.log_decay.to(before.dtype).exp()
        top = torch.maximum(decayed, k)
        old, new = torch.exp(decayed - top), torch.exp(k - top)
        return y, (x, (old * values + new * v, old * weights + new, top))

    def mixing_flops(self, batch: int, length: int) -> int:
        """Return 27·B·T·D: 9 for the three shifts, 17 for the recurrence and 1 for the gate.

        Exponentials and maxima are not counted.
        """
        return 27 * batch * length * self.out.in_features

    def _maps(self, mixes: list[torch.Tensor]) -> list[torch.Tensor]:
        """Compute r, k and v from their mixes of the inputs and the inputs one position earlier."""
        maps = (self.receptance, self.key, self.value)
        return [linear(mix) for linear, mix in zip(maps, mixes, strict=True)]


class RWKV4Channel(Mixer):
    """Channel mixing as a mixer: σ(r) ⊙ W_v max(k, 0)² (arXiv 2305.13048, section 3.1).

    Mixes the channels of the current and the previous token. Option: ``expand``, inner width over D.
    """

    source = "arXiv 2305.13048, section 3.1, channel mixing"

    def __init__(self, width: int, max_positions: int | None = None, *, expand: AtLeastOne = 4) -> None:
        super().__init__()
        self.shift = nn.ModuleDict({name: TokenShift(width) for name in ("receptance", "key")})
        self.receptance = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, expand * width, bias=False)
        self.value = ResidualLinear(expand * width, width, bias=False)

    def set_depth(self, layer: int, layers: int) -> None:
        """Set the depth of layer l of L: token shifts by 1 − l/L."""
        for shift in self.shift.values():
            assert isinstance(shift, TokenShift)
            shift.exponent = 1 - layer / layers

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._mixed(token_shift(x, shift_weights(self.shift))), x[:, -1]

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return the last input ``[B, D]``."""
        return torch.zeros(batch, self.receptance.in_features, dtype=dtype, device=device)

    def step(self, x: torch.Tensor, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._mixed(mixed(x, state, shift_weights(self.shift))), x

    def mixing_flops(self, batch: int, length: int) -> int:
        """Return B·T·(7·D + E), with an inner width E, for two shifts, the gate and the squares."""
        return batch * length * (7 * self.value.out_features + self.value.in_features)

    def _mixed(self, mixes: list[torch.Tensor]) -> torch.Tensor:
        r, k = self.receptance(mixes[0]), self.key(mixes[1])
        squared = gated_product(k, k, "relu") if runs_kernels(k) else k.relu().square()
        return gated_product(r, self.value(squared), "sigmoid")


class TokenShift(nn.Module):
    """The μ of one `argap.kernels.fused.token_shift.token_shift`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.exponent, self.offset = 1 - DEPTH, 0.0
        self.weight = nn.Parameter(torch.empty(width))

    def initialize(self, std: float, residual_std: float) -> None:
        """Set μ_i = (i/D)^exponent + offset, as in the published code.

        Low channels look at the previous token, high ones at the current.
        """
        width = len(self.weight)
        channel = torch.arange(width, device=self.weight.device, dtype=torch.float32)
        copy_(self.weight, (channel / width) ** self.exponent + self.offset)


def shift_weights(shift: nn.ModuleDict) -> list[torch.Tensor]:
    """Return μ of each `TokenShift`, in order."""
    return [one.weight for one in shift.values() if isinstance(one, TokenShift)]
