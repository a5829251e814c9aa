"""Based's gated convolutions, the local mixers beside its linear attention: the paper's and the earlier post's.

Legend: B batch, T positions, D width, I = expand·D inner width, N taps.
"""

import torch
import torch.nn.functional as F
from torch import nn

from argap.kernels.fused.gated_product import gated_product
from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear
from argap.models.mixers.convolution import ShortConvolution
from argap.models.past import Recent


class BasedConv(Mixer):
    """y = (silu(h ∗ (x W₁ + b₁)) ⊙ (x W₂ + b₂)) W_O + b_O with a filter h of N taps per channel.

    From arXiv 2402.18668, section 3; sizes and biases as in the authors' configurations. Based is a pattern of three
    mixers: this one, ``linear_attention`` with Taylor features, and ``attention`` with a sliding window; the
    architecture ``based`` combines them.

    Options: ``kernel_size``, taps N; ``expand``, inner width I as a multiple of the width.
    """

    source = "arXiv 2402.18668, section 3, short convolutions"

    def __init__(
        self, width: int, max_positions: int | None = None, *, kernel_size: AtLeastOne = 3, expand: AtLeastOne = 2
    ) -> None:
        super().__init__()
        inner = expand * width
        self.projections = nn.Linear(width, 2 * inner)
        self.conv = ShortConvolution(inner, kernel_size)
        self.out = ResidualLinear(inner, width)

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor) -> tuple[torch.Tensor, Recent]:
        convolved, gate = self.projections(x).chunk(2, dim=-1)
        return self.out(self.conv(convolved, silu=True, gate=gate)), self.conv.state_after(convolved)

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Recent:
        """Return the last N − 1 values that the convolution sees, ``[B, ≤ N − 1, I]``."""
        return self.conv.init_state(batch, dtype, device)

    def step(self, x: torch.Tensor, state: Recent) -> tuple[torch.Tensor, Recent]:
        convolved, gate = self.projections(x).chunk(2, dim=-1)
        convolved, state = self.conv.step(convolved, state)
        return self.out(F.silu(convolved) * gate), state

    def state_size(self, length: int) -> int:
        """Return min(N − 1, T)·I."""
        return self.conv.state_size(length)

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count the convolution; biases, SiLU and gate, O(B·T·I), are not counted."""
        return self.conv.flops(batch, length)


class ShortLongConv(Mixer):
    """y = silu(x W + b) ⊙ (h₂ ∗ silu(h₁ ∗ x + b₁) + b₂), filters h₁ of few and h₂ of many taps per channel.

    The convolution of Based as first published (second blog post on the Zoology paper, hazyresearch.stanford.edu,
    2023-12-11; HazyResearch/zoology, based_refs/gated_conv_ref.py), where linear attention with Taylor features is the
    only other mixer and no layer has a window. Both filters are free parameters, as in that code, which computes the
    product in float32.

    Options: ``short_kernel`` and ``long_kernel``, taps of h₁ and h₂.
    """

    source = "second Zoology post (Based), HazyResearch/zoology, based_refs/gated_conv_ref.py"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        short_kernel: AtLeastOne = 3,
        long_kernel: AtLeastOne = 128,
    ) -> None:
        super().__init__()
        self.gate = nn.Linear(width, width)
        self.short = ShortConvolution(width, short_kernel, bias=True)
        self.long = ShortConvolution(width, long_kernel, bias=True)

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor) -> tuple[torch.Tensor, tuple[Recent, Recent]]:
        near = self.short(x, silu=True)
        y = gated_product(self.gate(x), self.long(near), "silu")
        return y, (self.short.state_after(x), self.long.state_after(near))

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> tuple[Recent, Recent]:
        """Return the last N − 1 values that each convolution sees, ``[B, ≤ N − 1, D]``."""
        return self.short.init_state(batch, dtype, device), self.long.init_state(batch, dtype, device)

    def step(self, x: torch.Tensor, state: tuple[Recent, Recent]) -> tuple[torch.Tensor, tuple[Recent, Recent]]:
        near, short = self.short.step(x, state[0])
        far, long = self.long.step(F.silu(near), state[1])
        return F.silu(self.gate(x)) * far, (short, long)

    def state_size(self, length: int) -> int:
        """Return min(N − 1, T)·D for each convolution."""
        return self.short.state_size(length) + self.long.state_size(length)

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count the projection's bias and the gate, 2·B·T·D, and the convolutions; SiLU is not counted."""
        pointwise = 2 * batch * length * self.gate.in_features
        return pointwise + self.short.flops(batch, length) + self.long.flops(batch, length)
