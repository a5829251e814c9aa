"""H3: a shift and a diagonal state space model between two gates, on linear attention's q, k and v.

Legend: B batch, T positions, D width, H heads of size P = D / H, M states of the shift.
"""

import torch
from torch import nn

from argap.errors import ArgapError
from argap.models.mixer import AtLeastOne, Mixer, ResidualLinear, longest
from argap.models.mixers.convolution import SHORT, ShortConvolution, SpectrumCache, by_channel, convolution_flops
from argap.models.mixers.diagonal_ssm import DiagonalSSM
from argap.models.past import Recent

State = tuple[Recent, torch.Tensor]


class H3(Mixer):
    """y = W_O (q ⊙ SSM_diag(SSM_shift(k) ⊙ v)), in heads of size P: k vᵀ in place of k ⊙ v.

    From arXiv 2212.14052, section 3.1, algorithm 1. The shift matrix stores the last M inputs, so that SSM_shift is a
    convolution of M taps and a free filter; SSM_diag is S4D with one filter per head. Each SSM adds a skip of its
    input.

    Options: ``head_size`` P; ``shift_states`` M and ``states``, real dimensions of a diagonal model's state; None: the
    number of positions of the longest sequence (``states`` rounded up to an even number), as in the Zoology authors'
    configuration of figure 2, where it makes H3 as expressive as Hyena. Raises `ArgapError` for values out of range.
    """

    source = "arXiv 2212.14052, section 3.1; S4D: arXiv 2206.11893"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        head_size: AtLeastOne = 1,
        shift_states: AtLeastOne | None = 64,
        states: int | None = 64,
    ) -> None:
        super().__init__()
        if width % head_size:
            raise ArgapError(f"h3: width {width} does not split into heads of {head_size}; set its option head_size")
        if shift_states is None:
            shift_states = longest(max_positions, "h3: shift_states null needs")
        if states is None:
            positions = longest(max_positions, "h3: states null needs")
            states = positions + positions % 2
        if states < 2 or states % 2:
            raise ArgapError(f"h3: states {states}; expected an even number from 2 (conjugate pairs)")
        self.head_size, self.heads, self.spectra = head_size, width // head_size, SpectrumCache()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.shift, self.shift_spectra = ShortConvolution(width, shift_states), SpectrumCache()
        self.shift_skip = nn.Parameter(torch.empty(width))
        self.ssm = DiagonalSSM(self.heads, states)
        self.ssm_skip = nn.Parameter(torch.empty(self.heads))
        self.out = ResidualLinear(width, width, bias=False)

    def initialize(self, std: float, residual_std: float) -> None:
        """Initialise both skips with unit variance, as in the published code."""
        nn.init.normal_(self.shift_skip)
        nn.init.normal_(self.ssm_skip)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scalar, taps = self.head_size == 1, self.shift.weight
        mapped = by_channel(self.qkv, x) if scalar and len(taps) > SHORT else self.qkv(x)
        q, k, v = mapped.chunk(3, dim=-1)
        length, skip = x.shape[1], self._spread(self.ssm_skip)
        if scalar:
            (shift,) = self.shift_spectra.convolutions(k, self.shift, len(taps), lambda: [taps])
            product = shift(k, gate=v, skip=self.shift_skip)
        else:
            product = self._product(self.shift(k) + self.shift_skip * k, v)
        filters = lambda: [self._spread(self.ssm.taps(length))]  # noqa: E731  (of each product, [T, H·P·P])
        (convolve,) = self.spectra.convolutions(product, self.ssm, length, filters)
        if scalar:
            return self.out(convolve(product, gate=q, skip=skip))
        return self.out(self._read(convolve(product) + skip * product, q))

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return the last M − 1 keys, and the diagonal model's state ``[B·P², H, S]``."""
        shift = self.shift.init_state(batch, dtype, device)
        return shift, self.ssm.init_state(batch * self.head_size**2, dtype, device)

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        shift, ssm = state
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        shifted, shift = self.shift.step(k, shift)
        product = self._product(shifted + self.shift_skip * k, v)
        by_head = product.unflatten(-1, (self.heads, -1)).movedim(-1, 1).flatten(0, 1)  # [B·P², H]
        mixed, ssm = self.ssm.step([by_head], ssm)
        mixed = mixed.unflatten(0, (len(x), -1)).movedim(1, -1).flatten(-2).to(x.dtype)
        return self.out(self._read(mixed + self._spread(self.ssm_skip) * product, q)), (shift, ssm)

    def state_size(self, length: int) -> int:
        """Count the keys within the shift and the diagonal model's state.

        The keys take min(M − 1, T)·D; the state, for each of the P² products of a head, takes D·P·(its ``states``).
        """
        return super().state_size(length) + self.shift.state_size(length)

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count both convolutions, the diagonal model's filter, the shift's skip and the D·P products.

        The skip takes 2·B·T·D. Making the products, their skip and their reading take 5·B·T·D·P, less one sum in
        reading (D·(P − 1) instead of D·P).
        """
        width, products = self.out.in_features, self.out.in_features * self.head_size
        pointwise = batch * length * (width + 5 * products)
        mixing = self.shift.flops(batch, length) + convolution_flops(batch, length, products, length)
        return pointwise + mixing + self.ssm.flops(length)

    def _product(self, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return k vᵀ of each head, flat: ``[..., D]`` twice to ``[..., H·P·P]``."""
        k, v = (part.unflatten(-1, (self.heads, self.head_size)) for part in (k, v))
        return (k[..., :, None] * v[..., None, :]).flatten(-3)

    def _read(self, mixed: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """Read q's row of each head's matrix: ``[..., H·P·P]`` and ``[..., D]`` to ``[..., D]``."""
        q = q.unflatten(-1, (self.heads, self.head_size))
        mixed = mixed.unflatten(-1, (self.heads, self.head_size, self.head_size))
        return (q[..., :, None] * mixed).sum(dim=-2).flatten(-2)

    def _spread(self, heads: torch.Tensor) -> torch.Tensor:
        """Repeat a head's values for each of its products: ``[..., H]`` to ``[..., H·P·P]``."""
        return heads.repeat_interleave(self.head_size**2, dim=-1)
