"""Multi-head Hyena: a long convolution of the outer product of keys and values, read by queries.

Legend: B batch, T positions, D width, H heads, C = D / H, N taps of a filter.
"""

import torch
from torch import nn

from argap.models.mixer import AtLeastOne, AtLeastTwo, Mixer, ResidualLinear, longest, split_heads, without_decay
from argap.models.mixers.convolution import ShortConvolution, SpectrumCache, convolution_flops
from argap.models.mixers.hyena import HyenaFilter
from argap.models.past import Recent

State = tuple[Recent, Recent]


class MultiheadHyena(Mixer):
    """y_t = Σ_s h_s (q_t · k_{t−s}) v_{t−s} in each head, with one filter h per head and a skip added to h_0.

    This is the long convolution of the outer products k_t ⊗ v_t, C² channels per head, read by q_t (arXiv 2310.18780,
    section 4, MultiHyena; in MAD, arXiv 2403.17844, multi-head Hyena).

    q, k and v are linear maps of the input, each followed by a short convolution, and the filters are Hyena's
    (`argap.models.mixers.hyena.HyenaFilter`). `Hyena` with ``heads`` only shares filters between channels; here every
    value of a head is compared with a key, so that recall no longer takes a channel for each distance.

    Options: ``heads`` H, by default D / 8 (C = 8), as MAD has 16 at width 128; ``short_kernel``, ``bands``,
    ``filter_width``, ``filter_depth`` and ``sine_frequency`` as for `Hyena`.

    Raises `ArgapError` as `Hyena` does.
    """

    source = "arXiv 2310.18780, section 4 (MultiHyena)"

    def __init__(
        self,
        width: int,
        max_positions: int | None = None,
        *,
        heads: int | None = None,
        short_kernel: AtLeastOne = 3,
        bands: AtLeastOne = 16,
        filter_width: AtLeastOne = 64,
        filter_depth: AtLeastTwo = 4,
        sine_frequency: float = 14.0,
    ) -> None:
        super().__init__()
        self.heads = split_heads("multihead_hyena", width, heads, usual=width // 8)
        self.taps, self.spectra = longest(max_positions, "multihead_hyena: its filters need"), SpectrumCache()
        self.projection = nn.Linear(width, 3 * width, bias=False)
        self.short = ShortConvolution(3 * width, short_kernel, bias=True)
        self.filter = HyenaFilter(self.heads, self.taps, bands, filter_width, filter_depth, sine_frequency)
        self.skip = nn.Parameter(torch.empty(self.heads))
        self.out = ResidualLinear(width, width, bias=False)
        without_decay(self.skip, *self.filter.parameters())

    def initialize(self, std: float, residual_std: float) -> None:
        """Initialise the skip with unit variance, as in `Hyena`."""
        nn.init.normal_(self.skip)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._parallel(self.projection(x))[0]

    def _parallel(self, mapped: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the output at all positions from the projected inputs ``[B, T, 3·D]``; also return keys and values.

        Keys and values are ``[B, T, 2, D]``.
        """
        q, k, v = self.short(mapped).unflatten(-1, (3, self.heads, -1)).unbind(dim=2)
        products = (k[..., :, None] * v[..., None, :]).flatten(2)
        channels = k.shape[-1] ** 2  # channels of a head share a filter
        filters = lambda: [self.filter(k.shape[1]).repeat_interleave(channels, dim=-1)]  # noqa: E731
        (convolve,) = self.spectra.convolutions(products, self.filter, self.taps, filters)
        memory = convolve(products).view(*k.shape, k.shape[-1])
        memory = memory + self.skip[:, None, None] * products.view_as(memory)
        y = (q[..., None, :] @ memory.to(q.dtype))[..., 0, :]
        return self.out(y.flatten(2)), torch.stack([k, v], dim=2).flatten(3)

    def prefill(self, x: torch.Tensor, *input_ids: torch.Tensor) -> tuple[torch.Tensor, State]:
        mapped = self.projection(x)
        y, past = self._parallel(mapped)
        return y, (self.short.state_after(mapped), Recent.of(past, self.taps - 1))

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> State:
        """Return the short convolution's state, and keys and values ``[B, ≤ N − 1, 2, D]`` in the filters' reach."""
        past = torch.empty(batch, 0, 2, self.out.in_features, dtype=dtype, device=device)
        return self.short.init_state(batch, dtype, device), Recent.of(past, self.taps - 1)

    def step(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """Advance one position by a sum over the past: each earlier key is compared with the query.

        This needs no outer products.
        """
        mixed, short = self.short.step(self.projection(x), state[0])
        q, k, v = mixed.chunk(3, dim=-1)
        reached, past = state[1].append(torch.stack([k, v], dim=1))
        keys, values = reached.unflatten(-1, (self.heads, -1)).unbind(dim=2)
        taps = self.spectra.taps(self.filter, reached.shape[1])
        taps = torch.cat([taps[:1] + self.skip.to(taps.dtype), taps[1:]])[: reached.shape[1]].flip(0)
        scores = (keys * q.unflatten(-1, (self.heads, -1))[:, None]).sum(dim=-1).to(taps.dtype) * taps
        y = (scores[..., None] * values.to(taps.dtype)).sum(dim=1).to(x.dtype)
        return self.out(y.flatten(1)), (short, past)

    def state_size(self, length: int) -> int:
        """Count the short convolution's state, and 2·D for each position that the filters reach, min(N − 1, T)."""
        return self.short.state_size(length) + 2 * min(self.taps - 1, length) * self.out.in_features

    def mixing_flops(self, batch: int, length: int) -> int:
        """Count the short convolution, the filters, the convolution of D·C channels and 5·B·T·D·C.

        The convolution is that of `convolution_flops`; the last term is for the outer products, the skip and the
        reading.
        """
        channels = self.out.in_features**2 // self.heads
        convolved = convolution_flops(batch, length, channels, self.taps) + 5 * batch * length * channels
        return self.short.flops(batch, length) + self.filter.flops(length) + convolved
