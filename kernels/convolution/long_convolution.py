"""Causal depthwise convolution with a filter as long as the sequence, by FFT.

On a GPU, lengths with a launch in `argap.kernels.convolution.one_kernel_convolution` go through that kernel. For other
lengths two sequences share one complex transform, as its real and imaginary parts: the filter is real, so their
convolutions come out as the real and imaginary parts again. Transforms are fastest along the contiguous dimension,
which here is the width: one kernel transposes, pairs the sequences and pads with zeros in a single pass, and another
transposes back.

These kernels have no gradients. In training on a GPU the shortest sequences go through
`argap.kernels.convolution.trained_convolution`, short ones are multiplied by each filter's Toeplitz matrix, and all
others take the reference's transforms.

Legend: B batch, T positions, D width, N ≤ T taps, M ≥ T + N − 1 length of the transforms.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from argap.kernels.convolution.one_kernel_convolution import (
    one_kernel_convolution,
    one_kernel_launch,
    one_kernel_size,
    one_kernel_spectrum,
)
from argap.kernels.fused.gated_product import gated_product
from argap.kernels.launch import Launch, LaunchTable, jit, runs_kernels, strided, tl, triton, unit_stride

LONGEST_PRODUCT = 512
"""The longest sequence that a training step multiplies by Toeplitz matrices, if it has at most 4 positions per sequence
of the batch. The matrices take 2·T² float32 numbers per channel until the backward pass, at most 8 times as many as the
input."""
LAUNCHES = LaunchTable("long_convolution", {"any": {"any": Launch({"BT": 64, "BD": 32}, warps=4, stages=1)}})


def long_convolution(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Compute y_t = Σ_{s<N} h_s ⊙ x_{t−s} in float32 or wider.

    ``x [B, T, D]`` and ``taps`` h ``[N, D]`` give y ``[B, T, D]`` in the dtype of ``x``.

    On a GPU, runs kernels if no gradient is needed, and `toeplitz_product` for short sequences otherwise; in all other
    cases the reference. When two sequences share a transform, the rounding errors of each also scale with its partner's
    size, so its last bits depend on the partner.
    """
    if runs_kernels(x, taps) and x.dtype != torch.float64:
        return packed_convolution(x, filter_spectrum(taps, x.shape[1]))
    if x.is_cuda and x.shape[1] <= min(LONGEST_PRODUCT, 4 * len(x)):
        return toeplitz_product(x, taps)
    return long_convolution_reference(x, taps)


def toeplitz_product(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Compute `long_convolution` as one matrix product per channel, in float32 or wider; differentiable.

    The precision is the one set by `torch.set_float32_matmul_precision`. A product has more operations than a
    transform, but moves each value once instead of several times.
    """
    T, D = x.shape[1:]
    dtype = torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        # Row s of a channel's matrix is h shifted right by s: copies of h and at least T zeros, cut one value short.
        h = F.pad(taps[:T].to(dtype).mT, (0, 2 * T - min(len(taps), T)))
        copies = h[:, None].expand(D, T, 2 * T).reshape(D, -1)[:, : T * (2 * T - 1)]
        matrix = copies.reshape(D, T, 2 * T - 1)[:, :, :T]
        return torch.bmm(x.to(dtype).permute(2, 0, 1), matrix).permute(1, 2, 0).to(x.dtype)


def long_convolution_reference(x: torch.Tensor, taps: torch.Tensor) -> torch.Tensor:
    """Compute `long_convolution` by real transforms of length 2T, which leave no wrap-around; differentiable."""
    size = 2 * x.shape[1]
    dtype = torch.promote_types(x.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        spectrum = torch.fft.rfft(x.to(dtype), n=size, dim=1)
        response = torch.fft.rfft(taps.to(dtype), n=size, dim=0)
        return torch.fft.irfft(spectrum * response, n=size, dim=1)[:, : x.shape[1]].to(x.dtype)


def filter_spectrum(taps: torch.Tensor, length: int) -> torch.Tensor:
    """Transform ``taps [N, D]`` for inputs of ``length`` positions, already divided by M.

    Returns ``[D, M]`` in complex64, or, if the length runs as one kernel, that kernel's ``[2, M, D]`` in float32.
    """
    if launch := one_kernel_launch(taps.device, one_kernel_size(length)):
        return one_kernel_spectrum(taps, length, launch)
    with torch.autocast(taps.device.type, enabled=False):
        size = fast_size(length + len(taps) - 1)
        return torch.fft.fft(taps.float().mT.contiguous(), n=size, dim=1, norm="forward")


def fast_size(least: int) -> int:
    """Return the smallest number ≥ ``least`` that is a power of 2, or 3/2 or 5/4 of one."""
    power = 1 << max(0, least - 1).bit_length()
    return min(size for size in (5 * power // 8, 3 * power // 4, power) if size >= least)


def packed_convolution(
    x: torch.Tensor, spectrum: torch.Tensor, gate: torch.Tensor | None = None, skip: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute g ⊙ (y + s ⊙ x) by kernels, where y is the `long_convolution` of x.

    ``spectrum`` is the `filter_spectrum` of the taps for T, which the caller may keep. ``gate`` g is ``[B, T, D]``,
    None: 1. ``skip`` s is ``[D]``, None: 0, and needs ``gate``.
    """
    (B, T, D), M = x.shape, spectrum.shape[1]
    if not spectrum.is_complex() and (launch := one_kernel_launch(x.device, M)):
        return one_kernel_convolution(x, spectrum, launch, gate, skip)
    pairs = triton.cdiv(B, 2)
    x = unit_stride(x)
    y = x.new_empty(B, T, D)
    packed = x.new_empty(pairs, D, M, dtype=torch.int64)
    launch = LAUNCHES.at(x.device, "any")
    BT, ND = launch.blocks["BT"], triton.cdiv(D, launch.blocks["BD"])
    _pack_kernel[(triton.cdiv(M, BT) * ND, pairs)](*(*strided(x, dims=2), packed, B, T, M), D=D, **launch.arguments())
    transformed = torch.fft.fft(packed.view(torch.complex64))
    transformed *= spectrum
    packed = torch.fft.ifft(transformed, norm="forward").view(torch.int64)
    _unpack_kernel[(triton.cdiv(T, BT) * ND, pairs)](packed, y, B, T, M, D=D, **launch.arguments())
    return y if gate is None else gated_product(gate, y, skip=skip, skipped=x)


@jit
def _pack_kernel(x, packed, B, T, M, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
    # Two sequences [T, D] to one [D, M] of complex numbers. The imaginary part, the second sequence, is the upper half
    # of a 64-bit integer, so that both are transposed and stored as one. An odd batch's last sequence is alone.
    ND: tl.constexpr = (D + BD - 1) // BD
    i_p = tl.program_id(1).to(tl.int64)
    o_t = (tl.program_id(0) // ND) * BT + tl.arange(0, BT)
    o_d = (tl.program_id(0) % ND) * BD + tl.arange(0, BD)
    m_td = (o_t < T)[:, None] & (o_d < D)[None, :]
    p_x = x[0] + 2 * i_p * x[1] + o_t.to(tl.int64)[:, None] * x[2] + o_d[None, :]
    b_re = tl.load(p_x, mask=m_td, other=0.0).to(tl.float32).to(tl.int32, bitcast=True)
    b_im = tl.load(p_x + x[1], mask=m_td & (2 * i_p + 1 < B), other=0.0).to(tl.float32)
    b_z = (b_im.to(tl.int32, bitcast=True).to(tl.int64) << 32) | (b_re.to(tl.int64) & 0xFFFFFFFF)
    o_row = (i_p * D + o_d)[:, None] * M
    tl.store(packed + o_row + o_t[None, :], tl.trans(b_z), mask=(o_d < D)[:, None] & (o_t < M)[None, :])


@jit
def _unpack_kernel(packed, y, B, T, M, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
    # The inverse of `_pack_kernel`, for the first T positions.
    ND: tl.constexpr = (D + BD - 1) // BD
    i_p = tl.program_id(1).to(tl.int64)
    o_t = (tl.program_id(0) // ND) * BT + tl.arange(0, BT)
    o_d = (tl.program_id(0) % ND) * BD + tl.arange(0, BD)
    o_row = (i_p * D + o_d)[:, None] * M
    b_z = tl.trans(tl.load(packed + o_row + o_t[None, :], mask=(o_d < D)[:, None] & (o_t < T)[None, :], other=0))
    b_re = b_z.to(tl.int32).to(tl.float32, bitcast=True)
    b_im = (b_z >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    m_td = (o_t < T)[:, None] & (o_d < D)[None, :]
    p_y = y + o_d[None, :]
    o_y = 2 * i_p * T + o_t[:, None]
    tl.store(p_y + o_y * D, b_re.to(y.dtype.element_ty), mask=m_td)
    m_td &= 2 * i_p + 1 < B
    tl.store(p_y + (o_y + T) * D, b_im.to(y.dtype.element_ty), mask=m_td)
