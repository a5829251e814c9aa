"""Causal depthwise convolution with a filter as long as the sequence, by FFT.

On a GPU a length that has a launch goes through `argap.kernels.one_kernel_convolution`. For the others two
sequences go through one complex transform, as its real and its imaginary part: the filter is real, so that
their convolutions come out as real and imaginary part again. Transforms are fastest along what lies side by
side in memory, which is the width here: a kernel turns the tiles, pairs the sequences and fills up with zeros
in one pass, another turns the results back.

Legend: B batch, T positions, D width, N ≤ T taps, M ≥ T + N − 1 length of the transforms.
"""

from __future__ import annotations

import torch

from argap.kernels.language import jit, runs_kernels, tl, triton
from argap.kernels.launch import Launch, LaunchTable
from argap.kernels.layout import with_rows
from argap.kernels.one_kernel_convolution import (
    one_kernel_convolution,
    one_kernel_launch,
    one_kernel_size,
    one_kernel_spectrum,
)

LAUNCHES = LaunchTable("long_convolution", {"any": {"any": Launch({"BT": 64, "BD": 32}, warps=4, stages=1)}})


def long_convolution(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """y_t = Σ_s h_s ⊙ x_{t−s}: ``x [B, T, D]`` with ``taps [N, D]``, as ``x`` in shape and type, in float32 or
    wider.

    On a GPU, where no gradient is asked for, in packed transforms; else the reference. Packed, the roundings
    of a sequence are also of the size of its partner's: where they differ, so do the last bits.
    """
    if runs_kernels(x, taps) and x.dtype != torch.float64:
        return packed_convolution(x, filter_spectrum(taps, x.shape[1]))
    return long_convolution_reference(x, taps)


def long_convolution_reference(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """`long_convolution` by real transforms of length 2T, so that nothing wraps around; differentiable."""
    size = 2 * x.shape[1]
    kind = torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        spectrum = torch.fft.rfft(x.to(kind), n=size, dim=1)
        response = torch.fft.rfft(taps.to(kind), n=size, dim=0)
        return torch.fft.irfft(spectrum * response, n=size, dim=1)[:, : x.shape[1]].to(x.dtype)


def filter_spectrum(taps: torch.Tensor, length: int) -> torch.Tensor:
    """The transform of ``taps [N, D]``, divided by the M that the transform back would divide by: ``[D, M]`` in
    complex64; where one kernel does it all, that kernel's own ``[2, M, D]`` in float32."""
    if launch := one_kernel_launch(taps.device, one_kernel_size(length)):
        return one_kernel_spectrum(taps, length, launch)
    with torch.autocast(taps.device.type, enabled=False):
        size = fast_size(length + len(taps) - 1)
        return torch.fft.fft(taps.float().mT.contiguous(), n=size, dim=1, norm="forward")


def fast_size(least: int) -> int:
    """The smallest length from ``least`` on that is a power of 2, or that times 3/2 or 5/4."""
    power = 1 << max(0, least - 1).bit_length()
    return min(size for size in (5 * power // 8, 3 * power // 4, power) if size >= least)


def packed_convolution(x: torch.Tensor, spectrum: torch.Tensor) -> torch.Tensor:
    """`long_convolution` on a GPU with the taps' `filter_spectrum` for T, which its caller may have kept."""
    batch, length, width = x.shape
    size = spectrum.shape[1]
    if not spectrum.is_complex() and (launch := one_kernel_launch(x.device, size)):
        return one_kernel_convolution(x, spectrum, launch)
    pairs = triton.cdiv(batch, 2)
    x = with_rows(x)
    y = x.new_empty(batch, length, width)
    packed = x.new_empty(pairs, width, size, dtype=torch.int64)
    launch = LAUNCHES.at(x.device, "any")
    block, columns = launch.blocks["BT"], triton.cdiv(width, launch.blocks["BD"])
    shape = (batch, length, size)
    _pair[(triton.cdiv(size, block) * columns, pairs)](
        *(x, packed, *shape, *x.stride()[:2]), D=width, **launch.arguments()
    )
    transformed = torch.fft.fft(packed.view(torch.complex64))
    transformed *= spectrum
    packed = torch.fft.ifft(transformed, norm="forward").view(torch.int64)
    _part[(triton.cdiv(length, block) * columns, pairs)](*(packed, y, *shape), D=width, **launch.arguments())
    return y


@jit
def _pair(
    x,
    packed,
    batch,
    length,
    size,
    x_b,
    x_t,
    D: tl.constexpr,
    BT: tl.constexpr,
    BD: tl.constexpr,
):
    # Two sequences ``[T, D]`` to one ``[D, M]`` of complex numbers, the second above the first's 32 bits: as
    # wholes of 64 bits they are turned and written in one piece. An odd batch's last is alone.
    WIDE: tl.constexpr = (D + BD - 1) // BD
    pair = tl.program_id(1).to(tl.int64)
    t = (tl.program_id(0) // WIDE) * BT + tl.arange(0, BT)
    d = (tl.program_id(0) % WIDE) * BD + tl.arange(0, BD)
    inside = (t < length)[:, None] & (d < D)[None, :]
    at = x + 2 * pair * x_b + t.to(tl.int64)[:, None] * x_t + d[None, :]
    first = tl.load(at, mask=inside, other=0.0).to(tl.float32).to(tl.int32, bitcast=True)
    second = tl.load(at + x_b, mask=inside & (2 * pair + 1 < batch), other=0.0).to(tl.float32)
    both = (second.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (first.to(tl.int64) & 0xFFFFFFFF)
    rows = (pair * D + d)[:, None] * size
    tl.store(packed + rows + t[None, :], tl.trans(both), mask=(d < D)[:, None] & (t < size)[None, :])


@jit
def _part(
    packed,
    y,
    batch,
    length,
    size,
    D: tl.constexpr,
    BT: tl.constexpr,
    BD: tl.constexpr,
):
    WIDE: tl.constexpr = (D + BD - 1) // BD
    pair = tl.program_id(1).to(tl.int64)
    t = (tl.program_id(0) // WIDE) * BT + tl.arange(0, BT)
    d = (tl.program_id(0) % WIDE) * BD + tl.arange(0, BD)
    rows = (pair * D + d)[:, None] * size
    both = tl.trans(tl.load(packed + rows + t[None, :], mask=(d < D)[:, None] & (t < length)[None, :], other=0))
    first = both.to(tl.int32).to(tl.float32, bitcast=True)
    second = (both >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    inside = (t < length)[:, None] & (d < D)[None, :]
    at = y + d[None, :]
    far = 2 * pair * length + t[:, None]
    tl.store(at + far * D, first.to(y.dtype.element_ty), mask=inside)
    inside &= 2 * pair + 1 < batch
    tl.store(at + (far + length) * D, second.to(y.dtype.element_ty), mask=inside)
