"""Liquid-S4: a state space model that also convolves products of consecutive inputs.

Legend: B batch, T positions, D width, P degree, N states per channel.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from argap.errors import ArgapError
from argap.models.mixer import AtLeastTwo, Mixer, ResidualLinear
from argap.models.mixers.convolution import causal_convolution, convolution_flops
from argap.models.mixers.diagonal_ssm import DiagonalSSM

Kernel = Literal["pb", "kb"]
State = tuple[torch.Tensor, torch.Tensor]


class LiquidS4(Mixer):
    """y = W GELU(K ∗ u + Σ_p K_p ∗ u^(p) + D ⊙ u) (arXiv 2209.12951, section 3), p from 2 to P.

    If the input also modulates the transition, x_t = (Ā + B̄ u_t) x_{t−1} + B̄ u_t, the output contains products of
    inputs. The paper keeps products of p consecutive inputs, u^(p)_t = u_t ⋯ u_{t−p+1}, which enter the state through
    B̄^p. K_p has the taps C Ā^s B̄^p (``kb``), or the single tap C B̄^p (``pb``), which drops the transition for
    products.

    A simplification: the paper has "a diagonal plus low-rank decomposition of the state transition matrix" (abstract)
    and the bilinear rule, both from S4; here the matrix is diagonal, with zero-order hold (S4D, arXiv 2206.11893). The
    sums over inputs and their products are the paper's. Its gated linear unit after W is omitted because the
    backbone's SwiGLU follows.

    Options: ``kernel``, ``pb`` (better in the paper) or ``kb``; ``degree`` P; ``states`` N, real dimensions of the
    state. Raises `ArgapError` for an odd number of states.
    """

    source = "arXiv 2209.12951, section 3, liquid kernel; S4D: arXiv 2206.11893"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        kernel: Kernel = "pb",
        degree: AtLeastTwo = 2,
        states: int = 64,
    ) -> None:
        super().__init__()
        if states < 2 or states % 2:
            raise ArgapError(f"liquid_s4: states {states}; expected an even number from 2 (conjugate pairs)")
        self.kernel, self.degree = kernel, degree
        self.ssm = DiagonalSSM(width, states, free_input=True)
        self.skip = nn.Parameter(torch.empty(width))
        self.out = ResidualLinear(width, width, bias=False)

    def initialize(self, std: float, residual_std: float) -> None:
        """Initialise the skip with variance ½, as in `argap.models.mixers.long_conv.LongConv`."""
        nn.init.normal_(self.skip, std=math.sqrt(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        y = causal_convolution(x, self.ssm.taps(length)) + self.skip * x
        earlier = [F.pad(x[:, : length - back], (0, 0, min(back, length), 0)) for back in range(1, self.degree)]
        for power, product in enumerate(_products(x, earlier), start=2):
            taps = self.ssm.taps(length if self.kernel == "kb" else 1, power)
            y = y + causal_convolution(product, taps)
        return self.out(F.gelu(y))

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return the last P − 1 inputs ``[B, P − 1, D]``, latest first and padded with zeros, and the SSM's state."""
        past = torch.zeros(batch, self.degree - 1, self.out.in_features, dtype=dtype, device=device)
        return past, self.ssm.init_state(batch, dtype, device)

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        past, ssm = state
        products = _products(x, list(past.unbind(dim=1)))
        mixed, ssm = self.ssm.step([x, *products] if self.kernel == "kb" else [x], ssm)
        y = mixed.to(x.dtype) + self.skip * x
        if self.kernel == "pb":
            for power, product in enumerate(products, start=2):
                y = y + (self.ssm.taps(1, power)[0] * product).to(x.dtype)
        return self.out(F.gelu(y)), (torch.cat([x[:, None], past[:, :-1]], dim=1), ssm)

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count the skip, 2·B·T·D, the convolution and its filter, and for each power a product and a convolution.

        The product takes B·T·D; each power's convolution has its own filter.
        """
        width = self.out.in_features
        pointwise = (self.degree + 1) * batch * length * width
        taps = length if self.kernel == "kb" else 1
        linear = convolution_flops(batch, length, width, length) + self.ssm.flops(length)
        liquid = convolution_flops(batch, length, width, taps) + self.ssm.flops(taps)
        return pointwise + linear + (self.degree - 1) * liquid


def _products(x: torch.Tensor, earlier: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return u^(2), u^(3), …: products of the input with one, two, … of its predecessors."""
    products = []
    for previous in earlier:
        x = x * previous
        products.append(x)
    return products
