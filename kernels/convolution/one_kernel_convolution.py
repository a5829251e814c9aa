"""The long convolution in one kernel: each sequence is read once, transformed in registers, and written once.

A real sequence x of M positions is transformed at frequencies shifted by a quarter step,
X_k = Σ_n x_n e^{−2πi n(k + ¼)/M}. In a product of two such transforms the wrapped part is multiplied by
e^{−2πi/4} = −i and so is imaginary: the real part is the causal convolution (a discrete weighted transform;
Crandall and Fagin, Mathematics of Computation 62, 1994). There is no zero padding and no pairing of sequences.

M is split into two or three factors. Position n = S·r + j is value r of row j. The steps are a transform over the P
values of a row, twiddle factors e^{−2πi j(k + ¼)/M}, an exchange between rows and values, and a transform over j: in
one step if S is one factor, otherwise in two. The spectrum stays in the order in which this leaves it; the
inverse undoes it step by step.

Arithmetic is in float32 for every input dtype.

Legend: B batch, T ≤ M positions, D width, M = P · S a power of 2, C channels per program.
"""

# Inside kernels types are Triton's, which come without stubs.
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import math
from functools import cache

import torch

from argap.kernels.convolution.register_fft import (
    cosine,
    exchange,
    in_groups,
    join,
    sine,
    split,
    transform,
    transform_back,
)
from argap.kernels.launch import Launch, LaunchTable, jit, strided, tl, triton, unit_stride

SMALLEST = 256
LAUNCHES = LaunchTable(
    "one_kernel_convolution",
    {
        "any": {},
        "hopper": {
            "512": Launch({"P": 16, "Q": 8, "C": 8}, warps=8, stages=1),
            "1024": Launch({"P": 16, "Q": 8, "C": 8}, warps=16, stages=1),
            "2048": Launch({"P": 16, "Q": 16, "C": 8}, warps=32, stages=1),
        },
    },
)
"""By M; lengths whose M has no row use another form of the convolution. P values per thread, C channels per program, Q
and R the factors of S = M / P with 8 ≤ Q ≤ P and R ≤ P. There are S · C threads."""


def one_kernel_size(length: int) -> int:
    """Return M for ``length`` positions: the next power of 2, at least `SMALLEST`."""
    return max(SMALLEST, 1 << (length - 1).bit_length())


def one_kernel_launch(device: torch.device, size: int) -> Launch | None:
    """Return the launch for M = ``size`` on ``device``, or None."""
    return LAUNCHES.rows(device).get(str(size))


def one_kernel_spectrum(taps: torch.Tensor, length: int, launch: Launch) -> torch.Tensor:
    """Transform ``taps [N ≤ T, D]``, divided by M, into real and imaginary parts ``[2, M, D]`` in float32.

    The order of frequencies depends on ``launch``: pass the same one to `one_kernel_convolution`.
    """
    D, M = taps.shape[1], one_kernel_size(length)
    taps = unit_stride(taps)
    spectrum = taps.new_empty(2, M, D, dtype=torch.float32)
    sizes = _sizes(M, launch)
    _spectrum_kernel[(triton.cdiv(D, sizes["C"]),)](
        *(taps, spectrum, *_twiddles(taps.device, **sizes)),
        *(len(taps), taps.stride(0)),
        **sizes,
        D=D,
        num_warps=launch.warps,
    )
    return spectrum


def one_kernel_convolution(
    x: torch.Tensor,
    spectrum: torch.Tensor,
    launch: Launch,
    gate: torch.Tensor | None = None,
    skip: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute `argap.kernels.convolution.long_convolution.packed_convolution` of ``x [B, T, D]`` in one kernel.

    ``spectrum`` is the result of `one_kernel_spectrum` for the same T and ``launch``.
    """
    B, T, D = x.shape
    x, gate, skip = unit_stride(x), unit_stride(gate), unit_stride(skip)
    y = x.new_empty(B, T, D)
    sizes = _sizes(spectrum.shape[1], launch)
    _convolve_kernel[(B, triton.cdiv(D, sizes["C"]))](
        *(*strided(x, gate, x, dims=2), y, spectrum, *_twiddles(x.device, **sizes), skip, T),
        **sizes,
        D=D,
        num_warps=launch.warps,
    )
    return y


def _sizes(size: int, launch: Launch) -> dict[str, int]:
    """Return P, C, and the factors Q and R of S, for M = ``size``."""
    return {**launch.blocks, "R": size // (launch.blocks["P"] * launch.blocks["Q"])}


@cache
def _twiddles(device: torch.device, P: int, Q: int, R: int, C: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the twiddle factors of the first and the second step, the same for all C channels.

    They are float32 rounded from float64. Value 4a + b of a group of N is multiplied by two factors: the a-th of N / 4
    and the b-th of 4.
    """
    S = Q * R
    j = torch.arange(S, dtype=torch.float64)
    k = _bit_reversed(P).double()
    first = torch.cat([_roots(j, k[::4] + 0.25, P * S, C), _roots(j, k[:4], P * S, C)])
    k = _bit_reversed(Q).double()
    second = torch.cat([_roots(j % R, k[::4], S, C), _roots(j % R, k[:4], S, C)])
    return first.to(device), second.to(device)


def _roots(j: torch.Tensor, k: torch.Tensor, size: int, channels: int) -> torch.Tensor:
    """Return e^{−2πi jk/size} as real and imaginary part ``[2, K, S, C]``, then its conjugate, flattened."""
    angle = (-2 * math.pi / size * k[:, None] * j)[..., None].expand(-1, -1, channels)
    return torch.stack([angle.cos(), angle.sin(), angle.cos(), -angle.sin()]).float().flatten()


def _bit_reversed(count: int) -> torch.Tensor:
    """Return the numbers below ``count``, a power of 2, in the bit-reversed order of `transform`'s frequencies."""
    order = torch.zeros(1, dtype=torch.int64)
    while len(order) < count:
        order = torch.cat([2 * order, 2 * order + 1])
    return order


@jit
def _convolve_kernel(
    x,
    gate,
    skipped,
    y,
    spectrum,
    twiddle1,
    twiddle2,
    skip,
    T,
    D: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    # C channels of one sequence. Sequences vary fastest in the grid: the programs of a channel share its spectrum in
    # the cache, and the few bytes that a program reads of a row share a sector with its neighbours'.
    S: tl.constexpr = Q * R
    i_b = tl.program_id(0).to(tl.int64)
    o_r, o_s, o_d = _offsets(tl.program_id(1), P, S, C)
    m_td = (o_r * S + o_s < T) & (o_d < D)
    # 1. Load x; value r of row s is position S · r + s.
    p = x[0] + i_b * x[1] + o_s.to(tl.int64) * x[2] + o_d
    b_x = tl.load(p + o_r.to(tl.int64) * S * x[2], mask=m_td, other=0.0).to(tl.float32)
    # 2. Transform, and multiply by the filter's spectrum.
    b_re, b_im = _fft(_to_tuple(b_x, S, C), twiddle1, twiddle2, P, Q, R, C)
    p = spectrum + o_s * D + o_d + o_r.to(tl.int64) * (S * D)
    b_h_re = _to_tuple(tl.load(p, mask=o_d < D, other=0.0), S, C)
    b_h_im = _to_tuple(tl.load(p + P * S * D, mask=o_d < D, other=0.0), S, C)
    b_y_re = ()
    b_y_im = ()
    for n in tl.static_range(P):
        b_y_re += (b_re[n] * b_h_re[n] - b_im[n] * b_h_im[n],)
        b_y_im += (b_re[n] * b_h_im[n] + b_im[n] * b_h_re[n],)
    # 3. Transform back; the real part is the convolution. x is read again because it would not fit in registers.
    #    (Under another name, or the compiler would merge the two loads.)
    b_y = _to_tile(_inverse_fft(b_y_re, b_y_im, twiddle1, twiddle2, P, Q, R, C))
    if skip is not None:
        p = skipped[0] + i_b * skipped[1] + o_s.to(tl.int64) * skipped[2] + o_d + o_r.to(tl.int64) * S * skipped[2]
        b_x = tl.load(p, mask=m_td, other=0.0).to(tl.float32)
        b_y += b_x * tl.load(skip + o_d, mask=o_d < D, other=0.0).to(tl.float32)
    if gate is not None:
        p = gate[0] + i_b * gate[1] + o_s.to(tl.int64) * gate[2] + o_d + o_r.to(tl.int64) * S * gate[2]
        b_y *= tl.load(p, mask=m_td, other=0.0).to(tl.float32)
    p = y + (i_b * T + o_s) * D + o_d + o_r.to(tl.int64) * (S * D)
    tl.store(p, b_y.to(y.dtype.element_ty), mask=m_td)


@jit
def _spectrum_kernel(
    taps,
    spectrum,
    twiddle1,
    twiddle2,
    N,
    s_taps,
    D: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    # The spectrum of C channels of the filter, divided by M.
    S: tl.constexpr = Q * R
    o_r, o_s, o_d = _offsets(tl.program_id(0), P, S, C)
    p = taps + o_s.to(tl.int64) * s_taps + o_d
    m_td = (o_r * S + o_s < N) & (o_d < D)
    b_h = tl.load(p + o_r.to(tl.int64) * S * s_taps, mask=m_td, other=0.0).to(tl.float32)
    b_re, b_im = _fft(_to_tuple(b_h, S, C), twiddle1, twiddle2, P, Q, R, C)
    p = spectrum + o_s * D + o_d + o_r.to(tl.int64) * (S * D)
    tl.store(p, _to_tile(b_re) * (1 / (P * S)), mask=o_d < D)
    tl.store(p + P * S * D, _to_tile(b_im) * (1 / (P * S)), mask=o_d < D)


@jit
def _offsets(i_d, P: tl.constexpr, S: tl.constexpr, C: tl.constexpr):
    # Offsets of values [P, 1], and of rows and channels [1, S · C]; a column is a thread. `multiple_of` 1 hides the
    # channels' alignment from the compiler, which would otherwise load 16 bytes at once and mix threads' values.
    o = tl.arange(0, S * C)[None, :]
    return tl.arange(0, P)[:, None], o // C, i_d * C + tl.multiple_of(o % C, [1, 1])


@jit
def _to_tuple(b, S: tl.constexpr, C: tl.constexpr):
    # A tile [P, S · C] as a tuple of P tiles [S, C].
    return split(tl.reshape(tl.permute(b, (1, 0)), (S, C, b.shape[0])))


@jit
def _to_tile(values):
    # The inverse of `_to_tuple`.
    S: tl.constexpr = values[0].shape[0]
    C: tl.constexpr = values[0].shape[1]
    return tl.permute(tl.reshape(join(values), (S * C, len(values))), (1, 0))


@jit
def _fft(values, twiddle1, twiddle2, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    # The spectrum of P real values per thread.
    re = ()
    im = ()
    for r in tl.static_range(P):
        re += (values[r] * cosine(r, 4 * P),)
        im += (values[r] * -sine(r, 4 * P),)
    re, im = transform(re, im)
    re, im = _twiddle(re, im, twiddle1, P, Q * R, C, False)
    re, im = split(exchange(join(re), 1, Q, R)), split(exchange(join(im), 1, Q, R))
    re, im = in_groups(re, im, Q, False)
    if R > 1:
        re, im = _twiddle(re, im, twiddle2, Q, Q * R, C, False)
        re, im = split(exchange(join(re), Q, R, 1)), split(exchange(join(im), Q, R, 1))
        re, im = in_groups(re, im, R, False)
    return re, im


@jit
def _inverse_fft(re, im, twiddle1, twiddle2, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    # M times the real part of the inverse transform: the steps of `_fft` undone in reverse order.
    if R > 1:
        re, im = in_groups(re, im, R, True)
        re, im = split(exchange(join(re), Q, R, 1)), split(exchange(join(im), Q, R, 1))
        re, im = _twiddle(re, im, twiddle2, Q, Q * R, C, True)
    re, im = in_groups(re, im, Q, True)
    re, im = split(exchange(join(re), 1, Q, R)), split(exchange(join(im), 1, Q, R))
    re, im = _twiddle(re, im, twiddle1, P, Q * R, C, True)
    re, im = transform_back(re, im)
    values = ()
    for r in tl.static_range(P):
        values += (re[r] * cosine(r, 4 * P) - im[r] * sine(r, 4 * P),)
    return values


@jit
def _twiddle(re, im, twiddles, GROUP: tl.constexpr, S: tl.constexpr, C: tl.constexpr, INVERSE: tl.constexpr):
    # Each value of a group times its two factors, as laid out by `_twiddles`.
    COARSE: tl.constexpr = GROUP // 4
    coarse = _load_twiddles(twiddles, 2 * COARSE, S, C, INVERSE)
    fine = _load_twiddles(twiddles + 4 * COARSE * S * C, 2 * 4, S, C, INVERSE)
    out_re = ()
    out_im = ()
    for n in tl.static_range(len(re)):
        c_re = coarse[n % GROUP // 4]
        c_im = coarse[n % GROUP // 4 + COARSE]
        a_re = re[n] * c_re - im[n] * c_im
        a_im = re[n] * c_im + im[n] * c_re
        if n % 4 == 0:
            out_re += (a_re,)
            out_im += (a_im,)
        else:
            out_re += (a_re * fine[n % 4] - a_im * fine[n % 4 + 4],)
            out_im += (a_re * fine[n % 4 + 4] + a_im * fine[n % 4],)
    return out_re, out_im


@jit
def _load_twiddles(p, COUNT: tl.constexpr, S: tl.constexpr, C: tl.constexpr, INVERSE: tl.constexpr):
    o_n, o_s, o_c = _offsets(0, COUNT, S, C)
    return _to_tuple(tl.load(p + (COUNT * S * C if INVERSE else 0) + o_s * C + o_c + o_n * (S * C)), S, C)
