"""The long convolution in one kernel: a sequence is read once, transformed in registers, and written once.

A real sequence x of M positions is transformed at frequencies a quarter of a step off,
X_k = Σ_n x_n e^{−2πi n(k + ¼)/M}. What wraps around in a product of two such transforms comes back multiplied
by e^{−2πi/4} = −i: in the imaginary part, so that the real one is the causal convolution (a discrete weighted
transform; Crandall and Fagin, Mathematics of Computation 62, 1994). No zeros are filled in and no sequences
are paired.

The transform has two or three factors. Position n = S·r + j is value r of row j; a transform over the P
values, factors e^{−2πi j(k + ¼)/M}, an exchange between rows and values, and a transform over j: at once, where
S is one factor, else again in two steps. The spectrum keeps the order in which this ends: the way back
undoes step by step.

Arithmetic is in float32 for every type of input.

Legend: B batch, T ≤ M positions, D width, M = P · S a power of 2, C channels a program.
"""

# Types inside kernels are Triton's, for which a checker has no stubs.
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import math
from functools import cache

import torch

from argap.kernels.language import jit, tl, triton
from argap.kernels.launch import Launch, LaunchTable, device_class
from argap.kernels.layout import with_rows
from argap.kernels.register_fft import cosine, exchange, in_groups, join, sine, split, transform, transform_back

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
"""By M; a length whose M has no row is left to other forms of the convolution. P values a thread, C channels a
program, the factors Q and R of S = M / P: 8 ≤ Q ≤ P, R ≤ P. One thread for each of S · C."""


def one_kernel_size(length: int) -> int:
    """M for ``length`` positions: the next power of 2, at least `SMALLEST`."""
    return max(SMALLEST, 1 << (length - 1).bit_length())


def one_kernel_launch(device: torch.device, size: int) -> Launch | None:
    """The launch for M = ``size`` on ``device``, None where there is none."""
    return LAUNCHES.by_device.get(device_class(device), LAUNCHES.by_device["any"]).get(str(size))


def one_kernel_spectrum(taps: torch.Tensor, length: int, launch: Launch) -> torch.Tensor:
    """The transform of ``taps [N ≤ T, D]``, real and imaginary part ``[2, M, D]`` in float32, divided by M, in the
    order of ``launch``, which `one_kernel_convolution` must be given with it."""
    width, size = taps.shape[1], one_kernel_size(length)
    taps = with_rows(taps)
    spectrum = taps.new_empty(2, size, width, dtype=torch.float32)
    sizes = _sizes(size, launch)
    _keep_spectrum[(triton.cdiv(width, sizes["C"]),)](
        *(taps, spectrum, *_factors(taps.device, sizes["P"], sizes["Q"], sizes["R"], sizes["C"])),
        *(len(taps), taps.stride(0)),
        **sizes,
        D=width,
        num_warps=launch.warps,
    )
    return spectrum


def one_kernel_convolution(x: torch.Tensor, spectrum: torch.Tensor, launch: Launch) -> torch.Tensor:
    """`argap.kernels.long_convolution.long_convolution` of ``x [B, T, D]`` with the taps that `one_kernel_spectrum`
    was given, for the same T and ``launch``."""
    batch, length, width = x.shape
    x = with_rows(x)
    y = x.new_empty(batch, length, width)
    sizes = _sizes(spectrum.shape[1], launch)
    _convolve[(batch, triton.cdiv(width, sizes["C"]))](
        *(x, y, spectrum, *_factors(x.device, sizes["P"], sizes["Q"], sizes["R"], sizes["C"])),
        *(length, *x.stride()[:2]),
        **sizes,
        D=width,
        num_warps=launch.warps,
    )
    return y


def _sizes(size: int, launch: Launch) -> dict[str, int]:
    """P, C, and S as its factors Q and R."""
    return {**launch.blocks, "R": size // (launch.blocks["P"] * launch.blocks["Q"])}


@cache
def _factors(device: torch.device, P: int, Q: int, R: int, C: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What a thread multiplies its values by after the first and after the second step. Value 4a + b of a group of
    N takes two factors: the a-th of N / 4 and the b-th of 4. Rounded from float64; the same for all C."""
    S = Q * R
    j = torch.arange(S, dtype=torch.float64)
    k = _reversed_bits(P).double()
    first = torch.cat([_turns(j, k[::4] + 0.25, P * S, C), _turns(j, k[:4], P * S, C)])
    k = _reversed_bits(Q).double()
    second = torch.cat([_turns(j % R, k[::4], S, C), _turns(j % R, k[:4], S, C)])
    return first.to(device), second.to(device)


def _turns(j: torch.Tensor, k: torch.Tensor, size: int, channels: int) -> torch.Tensor:
    """e^{−2πi jk/size}, real and imaginary part ``[2, K, S, C]``, and its conjugate, one after the other."""
    angle = (-2 * math.pi / size * k[:, None] * j)[..., None].expand(-1, -1, channels)
    return torch.stack([angle.cos(), angle.sin(), angle.cos(), -angle.sin()]).float().flatten()


def _reversed_bits(count: int) -> torch.Tensor:
    """The numbers below ``count``, a power of 2, in the order in which `transform` gives frequencies."""
    order = torch.zeros(1, dtype=torch.int64)
    while len(order) < count:
        order = torch.cat([2 * order, 2 * order + 1])
    return order


@jit
def _convolve(
    x,
    y,
    spectrum,
    first,
    second,
    length,
    x_b,
    x_t,
    D: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    # Sequences are the fastest in the grid: those of a channel share its spectrum in the cache, and the few
    # bytes that a program reads of each row are in one sector with its neighbours'.
    S: tl.constexpr = Q * R
    batch = tl.program_id(0).to(tl.int64)
    r, s, d = _places(tl.program_id(1), P, S, C)
    inside = (r * S + s < length) & (d < D)
    # 1. x, value r of row s at position S · r + s.
    at = x + batch * x_b + s.to(tl.int64) * x_t + d
    tile = tl.load(at + r.to(tl.int64) * S * x_t, mask=inside, other=0.0).to(tl.float32)
    # 2. To frequencies, times the filter's.
    re, im = _forward(_values(tile, S, C), first, second, P, Q, R, C)
    at = spectrum + s * D + d + r.to(tl.int64) * (S * D)
    h_re = _values(tl.load(at, mask=d < D, other=0.0), S, C)
    h_im = _values(tl.load(at + P * S * D, mask=d < D, other=0.0), S, C)
    product_re = ()
    product_im = ()
    for n in tl.static_range(P):
        product_re += (re[n] * h_re[n] - im[n] * h_im[n],)
        product_im += (re[n] * h_im[n] + im[n] * h_re[n],)
    # 3. Back; the real part is the convolution.
    values = _backward(product_re, product_im, first, second, P, Q, R, C)
    at = y + (batch * length + s) * D + d + r.to(tl.int64) * (S * D)
    tl.store(at, _tile(values).to(y.dtype.element_ty), mask=inside)


@jit
def _keep_spectrum(
    taps,
    spectrum,
    first,
    second,
    length,
    taps_t,
    D: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    R: tl.constexpr,
    C: tl.constexpr,
):
    S: tl.constexpr = Q * R
    r, s, d = _places(tl.program_id(0), P, S, C)
    at = taps + s.to(tl.int64) * taps_t + d
    inside = (r * S + s < length) & (d < D)
    tile = tl.load(at + r.to(tl.int64) * S * taps_t, mask=inside, other=0.0).to(tl.float32)
    re, im = _forward(_values(tile, S, C), first, second, P, Q, R, C)
    at = spectrum + s * D + d + r.to(tl.int64) * (S * D)
    tl.store(at, _tile(re) * (1 / (P * S)), mask=d < D)
    tl.store(at + P * S * D, _tile(im) * (1 / (P * S)), mask=d < D)


@jit
def _places(block, P: tl.constexpr, S: tl.constexpr, C: tl.constexpr):
    # The value ``[P, 1]``, row and channel ``[1, S · C]``: a column is a thread. What the channels' divisors are is
    # kept from the compiler: it would load 16 bytes at once, which gives a thread values of others.
    at = tl.arange(0, S * C)[None, :]
    return tl.arange(0, P)[:, None], at // C, block * C + tl.multiple_of(at % C, [1, 1])


@jit
def _values(tile, S: tl.constexpr, C: tl.constexpr):
    # A tile ``[P, S · C]`` as a tuple of P, ``[S, C]``.
    return split(tl.reshape(tl.permute(tile, (1, 0)), (S, C, tile.shape[0])))


@jit
def _tile(values):
    # The inverse of `_values`.
    S: tl.constexpr = values[0].shape[0]
    C: tl.constexpr = values[0].shape[1]
    return tl.permute(tl.reshape(join(values), (S * C, len(values))), (1, 0))


@jit
def _forward(values, first, second, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    # The spectrum of P real values a thread.
    re = ()
    im = ()
    for r in tl.static_range(P):
        re += (values[r] * cosine(r, 4 * P),)
        im += (values[r] * -sine(r, 4 * P),)
    re, im = transform(re, im)
    re, im = _turn(re, im, first, P, Q * R, C, False)
    re, im = split(exchange(join(re), 1, Q, R)), split(exchange(join(im), 1, Q, R))
    re, im = in_groups(re, im, Q, False)
    if R > 1:
        re, im = _turn(re, im, second, Q, Q * R, C, False)
        re, im = split(exchange(join(re), Q, R, 1)), split(exchange(join(im), Q, R, 1))
        re, im = in_groups(re, im, R, False)
    return re, im


@jit
def _backward(re, im, first, second, P: tl.constexpr, Q: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    # From a spectrum M times the real part; the steps of `_forward` undone, the last first.
    if R > 1:
        re, im = in_groups(re, im, R, True)
        re, im = split(exchange(join(re), Q, R, 1)), split(exchange(join(im), Q, R, 1))
        re, im = _turn(re, im, second, Q, Q * R, C, True)
    re, im = in_groups(re, im, Q, True)
    re, im = split(exchange(join(re), 1, Q, R)), split(exchange(join(im), 1, Q, R))
    re, im = _turn(re, im, first, P, Q * R, C, True)
    re, im = transform_back(re, im)
    values = ()
    for r in tl.static_range(P):
        values += (re[r] * cosine(r, 4 * P) - im[r] * sine(r, 4 * P),)
    return values


@jit
def _turn(re, im, factors, GROUP: tl.constexpr, S: tl.constexpr, C: tl.constexpr, BACK: tl.constexpr):
    # Each value of a group times its two factors, as `_factors` has them.
    COARSE: tl.constexpr = GROUP // 4
    coarse = _factors_of(factors, 2 * COARSE, S, C, BACK)
    fine = _factors_of(factors + 4 * COARSE * S * C, 2 * 4, S, C, BACK)
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
def _factors_of(at, COUNT: tl.constexpr, S: tl.constexpr, C: tl.constexpr, BACK: tl.constexpr):
    n, s, c = _places(0, COUNT, S, C)
    return _values(tl.load(at + (COUNT * S * C if BACK else 0) + s * C + c + n * (S * C)), S, C)
