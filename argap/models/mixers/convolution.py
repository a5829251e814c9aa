"""Causal depthwise convolution: y_t = Σ_s h_s ⊙ x_{t−s}, s from 0 to N − 1, with one filter h per channel.

`causal_convolution` takes filters of any length, `SpectrumCache` reuses the transforms of long ones, and
`ShortConvolution` is the module in front of many mixers.

Legend: B batch, T positions, D width, N taps.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from argap.kernels.convolution.long_convolution import filter_spectrum, long_convolution, packed_convolution
from argap.kernels.convolution.short_convolution import FEW, short_convolution
from argap.kernels.convolution.toeplitz_convolution import shifted_taps, takes_products, toeplitz_convolution
from argap.kernels.convolution.trained_convolution import trained_convolution, trains_products
from argap.kernels.fused.gated_product import gated_product
from argap.kernels.launch import runs_kernels
from argap.models.mixer import at_least_float32
from argap.models.past import Recent

SHORT = 32
"""Filters of up to this many taps are applied directly, longer ones by FFT."""


def causal_convolution(
    x: torch.Tensor, taps: torch.Tensor, gate: torch.Tensor | None = None, skip: torch.Tensor | None = None
) -> torch.Tensor:
    """Convolve ``x [B, T, D]`` with ``taps [N, D]``, where tap s weights the input s positions back.

    Returns the shape and dtype of ``x``; accumulates in float32 or wider. With a ``gate`` g ``[B, T, D]`` and a
    ``skip`` s ``[D]``, returns g ⊙ (y + s ⊙ x).
    """
    taps = taps[: x.shape[1]]  # later taps would reach before the first position
    if len(taps) > SHORT and trains_products(x, taps, gate, skip):
        return trained_convolution(x, taps, gate, skip)
    y = short_convolution(x, taps)[0] if len(taps) <= SHORT else long_convolution(x, taps)
    return y if gate is None else gated_product(gate, y, skip=skip, skipped=x)


class SpectrumCache:
    """Caches the transforms (or shifted copies) of a mixer's filters, and for steps the taps computed by an MLP.

    Scoring runs thousands of batches with the same filters. A write to a parameter is detected by torch's version
    counter or a new address. A training CUDA graph writes without incrementing the counter, so the cache is active only
    under `torch.inference_mode`. It keeps only the latest sequence length.
    """

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._kept: list[Callable[..., torch.Tensor]] = []
        self._made: tuple[tuple[Any, ...], torch.Tensor] | None = None

    def __getstate__(self) -> dict[str, object]:
        """Return an empty cache: it is not copied or saved with the mixer."""
        return {"_key": None, "_kept": [], "_made": None}

    def convolutions(
        self, inputs: torch.Tensor, maker: nn.Module, count: int, make: Callable[[], list[torch.Tensor]]
    ) -> list[Callable[..., torch.Tensor]]:
        """Return a `causal_convolution` for each filter ``[≤ count, D]`` that ``make`` computes.

        ``make`` uses the parameters of ``maker``. The convolutions are for sequences like ``inputs [B, T, D]``, and are
        products with a Toeplitz matrix if the positions of those are contiguous.
        """
        length = inputs.shape[1]
        fits = min(count, length) > SHORT and inputs.dtype != torch.float64
        versions = _versions(maker) if fits and runs_kernels(inputs, *maker.parameters()) else None
        if versions is None:
            return [partial(causal_convolution, taps=taps) for taps in make()]
        dtype = inputs.dtype if inputs.stride(1) == 1 and takes_products(inputs) else None
        key = (length, dtype, *versions)
        if key != self._key:
            self._key, self._kept = key, [_kept(taps[:length], length, dtype) for taps in make()]
        return self._kept

    def taps(self, maker: nn.Module, count: int) -> torch.Tensor:
        """Return ``maker(count)``, the first ``count`` taps ``[count, D]`` of a filter.

        If a step needs more taps than there are, they are computed for twice as many positions.
        """
        versions = _versions(maker)
        if versions is None:
            return maker(count)
        if self._made is None or self._made[0] != versions or len(self._made[1]) < count:
            self._made = versions, maker(2 * count)
        return self._made[1][:count]


def by_channel(projection: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """Compute ``projection(x)`` of ``x [B, T, D]``, laid out for long convolutions where these run as products.

    The layout is that of `argap.kernels.launch.new_by_channel`, and the product with the weight writes it directly. It
    is the plain result if the projection has a bias, another class (as for quantised weights) or a hook, which expects
    to be called.
    """
    products = takes_products(x) or trains_products(x, projection.weight)
    plain = type(projection) is nn.Linear and type(projection.weight) is nn.Parameter and projection.bias is None
    hooked = projection._forward_hooks or projection._forward_pre_hooks or hasattr(projection, "_hf_hook")
    if hooked or not (plain and products):
        return projection(x)
    return (projection.weight @ x.flatten(0, 1).mT).unflatten(1, x.shape[:2]).permute(1, 2, 0)


def _versions(maker: nn.Module) -> tuple[Any, ...] | None:
    """Return a value that changes with every write to the parameters of ``maker``; None if writes are not counted."""
    # torch.compile cannot query the mode, and its graph must not depend on the cache.
    if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():
        return None
    parameters = list(maker.parameters())
    if any(parameter.is_inference() for parameter in parameters):
        return None
    return tuple((each.data_ptr(), each._version, each.dtype) for each in parameters)


def _kept(taps: torch.Tensor, length: int, dtype: torch.dtype | None) -> Callable[..., torch.Tensor]:
    """Return the convolution with ``taps [N, D]``, for inputs of ``dtype`` by products, for others by transforms."""
    if dtype is not None:
        return partial(toeplitz_convolution, copies=shifted_taps(taps, length, dtype))
    return partial(packed_convolution, spectrum=filter_spectrum(taps, length))


def convolution_step(x: torch.Tensor, past: Recent, taps: torch.Tensor) -> tuple[torch.Tensor, Recent]:
    """Compute `causal_convolution` at one position: ``x [B, D]`` after P inputs, with at least P + 1 ``taps``.

    Returns the output ``[B, D]`` and the inputs that the next position reaches.
    """
    reached, past = past.append(x)
    dtype = at_least_float32(x.dtype)
    y = (reached.to(dtype) * taps[: reached.shape[1]].flip(0)).sum(dim=1).to(x.dtype)
    return y, past


def convolution_flops(batch: int, length: int, width: int, taps: int) -> int:
    """Count the operations of `causal_convolution`.

    Direct: 2·N per value. By FFT, with real transforms of length M = 2T at 2.5·M·log₂ M each: two per channel of each
    sequence, one per filter, and 3·M for products.
    """
    taps = min(taps, length)
    if taps <= SHORT:
        return 2 * taps * batch * length * width
    size = 2 * length
    transform = 2.5 * size * math.log2(size)
    return round(batch * width * (2 * transform + 3 * size) + width * transform)


class ShortConvolution(nn.Module):
    """y_t = Σ_s h_s ⊙ x_{t−s} + b over N taps, s from 0 to N − 1, with one filter and bias per channel."""

    def __init__(self, width: int, taps: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(taps, width))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    def initialize(self, std: float, residual_std: float) -> None:
        """Initialise as PyTorch does convolutions: filter and bias uniform within ±1/√N."""
        bound = 1 / math.sqrt(len(self.weight))
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(
        self,
        x: torch.Tensor,
        *,
        silu: bool = False,
        gate: torch.Tensor | None = None,
        by_channel: bool = False,
        unit_heads: tuple[int, int] | None = None,
    ) -> torch.Tensor:
        """Convolve ``x [B, T, D]``, to the same shape and dtype.

        SiLU, unit norms of heads and multiplication by ``gate [B, T, D]`` are fused into the kernel; ``by_channel``
        lays the result out for a long convolution: all as in `short_convolution`. In training ``by_channel`` goes
        through `trained_convolution`.
        """
        if by_channel and not silu and gate is None and trains_products(x, self.weight, self.bias):
            return trained_convolution(x, self.weight, bias=self.bias)
        if len(self.weight) <= SHORT:
            return short_convolution(
                x, self.weight, self.bias, silu=silu, gate=gate, by_channel=by_channel, unit_heads=unit_heads
            )[0]
        assert unit_heads is None
        y = self._biased(causal_convolution(x, self.weight))
        y = F.silu(y) if silu else y
        return y if gate is None else y * gate

    def norms_heads(self, x: torch.Tensor) -> bool:
        """Return whether unit norms of heads take no extra pass over the result for ``x``."""
        return len(self.weight) <= FEW and runs_kernels(x, self.weight, self.bias)

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> Recent:
        """Return the last N − 1 inputs ``[B, ≤ N − 1, D]``."""
        return self.state_after(torch.empty(batch, 0, self.weight.shape[1], dtype=dtype, device=device))

    def state_after(self, x: torch.Tensor) -> Recent:
        """Return the state after the inputs ``x [B, T, D]``."""
        return Recent.of(x, len(self.weight) - 1)

    def step(self, x: torch.Tensor, state: Recent) -> tuple[torch.Tensor, Recent]:
        """Convolve at one position: ``x [B, D]``."""
        y, state = convolution_step(x, state, self.weight)
        return self._biased(y), state

    def state_size(self, length: int) -> int:
        """Count the inputs still within the filter's reach: min(N − 1, T)·D."""
        taps, width = self.weight.shape
        return min(taps - 1, length) * width

    def flops(self, batch: int, length: int) -> int:
        """Count the convolution, and B·T·D for a bias."""
        taps, width = self.weight.shape
        biased = 0 if self.bias is None else batch * length * width
        return biased + convolution_flops(batch, length, width, taps)

    def _biased(self, y: torch.Tensor) -> torch.Tensor:
        return y if self.bias is None else y + self.bias


class NoConvolution(nn.Module):
    """Replaces a mixer's optional `ShortConvolution`: returns its input, and has neither weights nor state."""

    def forward(self, x: torch.Tensor, *, silu: bool = False) -> torch.Tensor:
        return F.silu(x) if silu else x

    def init_state(self, batch: int, dtype: torch.dtype, device: torch.device) -> None:
        return None

    def state_after(self, x: torch.Tensor) -> None:
        return None

    def step(self, x: torch.Tensor, state: None) -> tuple[torch.Tensor, None]:
        return x, None

    def state_size(self, length: int) -> int:
        return 0

    def flops(self, batch: int, length: int) -> int:
        return 0
