"""Causal depthwise convolution: y_t = Σ_s h_s ⊙ x_{t−s}, s from 0 to N − 1, with a filter h a channel.

Legend: B batch, T positions, D width, N taps.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from argap.kernels.launch import runs_kernels
from argap.kernels.long_convolution import filter_spectrum, long_convolution, packed_convolution
from argap.kernels.short_convolution import short_convolution

SHORT = 32
"""Filters of up to so many taps are applied directly, longer ones by FFT."""


def causal_convolution(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """``x [B, T, D]`` with ``taps [N, D]``, tap s weighing the input s positions back; as ``x`` in shape
    and type, summed in float32 or wider."""
    taps = taps[: x.shape[1]]  # the others reach before the first position
    return short_convolution(x, taps)[0] if len(taps) <= SHORT else long_convolution(x, taps)


class KeptSpectra:
    """Transforms of a mixer's filters, kept while nothing that makes them changes: a scorer meets thousands
    of batches with the same ones.

    A change is seen by the version that torch counts up with every write to a parameter, or by its place in
    memory. The replay of a CUDA graph that trains writes without counting, so nothing is kept but under
    `torch.inference_mode`, which is no part of training. Of one length only, the last.
    """

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._spectra: list[torch.Tensor] = []

    def __getstate__(self) -> dict[str, Any]:
        """Nothing is copied or saved with the mixer."""
        return {"_key": None, "_spectra": []}

    def convolutions(
        self, inputs: torch.Tensor, maker: nn.Module, count: int, make: Callable[[], list[torch.Tensor]]
    ) -> list[Callable[[torch.Tensor], torch.Tensor]]:
        """`causal_convolution` with each of the filters ``[≤ count, D]`` that ``make`` gives out of the
        parameters of ``maker``, for sequences like ``inputs [B, T, D]``."""
        parameters = list(maker.parameters())
        length = inputs.shape[1]
        fits = min(count, length) > SHORT and inputs.dtype != torch.float64 and runs_kernels(inputs, *parameters)
        # torch.compile cannot ask for the mode, and its graph must not depend on what is kept.
        inference = not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()
        counted = inference and not any(parameter.is_inference() for parameter in parameters)
        if not (fits and counted):
            return [partial(causal_convolution, taps=taps) for taps in make()]
        key = (length, *((parameter.data_ptr(), parameter._version, parameter.dtype) for parameter in parameters))
        if key != self._key:
            self._key, self._spectra = key, [filter_spectrum(taps[:length], length) for taps in make()]
        return [partial(packed_convolution, spectrum=spectrum) for spectrum in self._spectra]


def convolution_step(
    x: torch.Tensor, past: torch.Tensor, taps: torch.Tensor, reach: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`causal_convolution` at one position: ``x [B, D]`` after the inputs ``past [B, P, D]``, with at least
    P + 1 of the ``taps``; the output ``[B, D]``, and the inputs, ``reach`` at most, that later ones see."""
    reached = torch.cat([past, x[:, None]], dim=1)
    kind = torch.promote_types(x.dtype, torch.float32)
    y = (reached.to(kind) * taps[: reached.shape[1]].to(kind).flip(0)).sum(dim=1).to(x.dtype)
    return y, reached[:, max(0, reached.shape[1] - reach) :]


def convolution_flops(batch: int, length: int, width: int, taps: int) -> int:
    """Operations of `causal_convolution`: directly 2·N a value. By FFT, with real transforms of length
    M = 2T at 2.5·M·log₂ M: two for each channel of each sequence, one for each filter, 3·M of products."""
    taps = min(taps, length)
    if taps <= SHORT:
        return 2 * taps * batch * length * width
    size = 2 * length
    transform = 2.5 * size * math.log2(size)
    return round(batch * width * (2 * transform + 3 * size) + width * transform)
