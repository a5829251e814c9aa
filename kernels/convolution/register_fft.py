"""Fourier transforms inside a program, on values that stay in each thread's registers.

A tile ``[S, C, P]`` has S · C threads with P values each (C neighbouring channels). Butterflies work on it as a tuple
of P tiles ``[S, C]``, so that their factors are compile-time constants; exchanges between threads work on it as one
tile, which goes through shared memory once.
"""

# Inside kernels types are Triton's, which come without stubs.
# pyright: reportGeneralTypeIssues=false, reportAssignmentType=false

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from argap.kernels.launch import jit, tl, triton


def at_compile_time(function: Callable[..., float | int]) -> Any:
    """Apply `triton.constexpr_function`; without Triton return the plain function."""
    return function if triton is None else triton.constexpr_function(function)


@at_compile_time
def cosine(turns: int, of: int) -> float:
    """Return cos(2π · ``turns`` / ``of``)."""
    return math.cos(2 * math.pi * turns / of)


@at_compile_time
def sine(turns: int, of: int) -> float:
    """Return sin(2π · ``turns`` / ``of``)."""
    return math.sin(2 * math.pi * turns / of)


@at_compile_time
def bits(count: int) -> int:
    """Return log₂ of ``count``, a power of 2."""
    return count.bit_length() - 1


@jit
def transform(re, im):
    """Compute Σ_n z_n e^{−2πi nk/P} of P values (a power of 2), k in bit-reversed order (decimation in frequency).

    ``re`` and ``im`` are tuples of the values' real and imaginary parts.
    """
    P: tl.constexpr = len(re)
    HALF: tl.constexpr = P // 2
    if P == 1:
        return re, im
    else:
        sum_re = ()
        sum_im = ()
        rest_re = ()
        rest_im = ()
        for n in tl.static_range(HALF):
            sum_re += (re[n] + re[n + HALF],)
            sum_im += (im[n] + im[n + HALF],)
            d_re = re[n] - re[n + HALF]
            d_im = im[n] - im[n + HALF]
            if n == 0:
                rest_re += (d_re,)
                rest_im += (d_im,)
            elif 2 * n == HALF:
                rest_re += (d_im,)
                rest_im += (-d_re,)
            else:
                rest_re += (d_re * cosine(n, P) + d_im * sine(n, P),)
                rest_im += (d_im * cosine(n, P) - d_re * sine(n, P),)
        even_re, even_im = transform(sum_re, sum_im)
        odd_re, odd_im = transform(rest_re, rest_im)
        return even_re + odd_re, even_im + odd_im


@jit
def transform_back(re, im):
    """Compute P times the inverse of `transform`: from bit-reversed order back to the order of n, step by step."""
    P: tl.constexpr = len(re)
    HALF: tl.constexpr = P // 2
    if P == 1:
        return re, im
    else:
        even_re, even_im = transform_back(re[:HALF], im[:HALF])
        odd_re, odd_im = transform_back(re[HALF:], im[HALF:])
        first_re = ()
        first_im = ()
        second_re = ()
        second_im = ()
        for n in tl.static_range(HALF):
            if n == 0:
                w_re = odd_re[n]
                w_im = odd_im[n]
            elif 2 * n == HALF:
                w_re = -odd_im[n]
                w_im = odd_re[n]
            else:
                w_re = odd_re[n] * cosine(n, P) - odd_im[n] * sine(n, P)
                w_im = odd_im[n] * cosine(n, P) + odd_re[n] * sine(n, P)
            first_re += (even_re[n] + w_re,)
            first_im += (even_im[n] + w_im,)
            second_re += (even_re[n] - w_re,)
            second_im += (even_im[n] - w_im,)
        return first_re + second_re, first_im + second_im


@jit
def in_groups(re, im, GROUP: tl.constexpr, BACK: tl.constexpr):
    """Apply `transform`, or `transform_back` if ``BACK``, to each ``GROUP`` consecutive values."""
    out_re = ()
    out_im = ()
    for g in tl.static_range(len(re) // GROUP):
        if BACK:
            g_re, g_im = transform_back(re[g * GROUP : g * GROUP + GROUP], im[g * GROUP : g * GROUP + GROUP])
        else:
            g_re, g_im = transform(re[g * GROUP : g * GROUP + GROUP], im[g * GROUP : g * GROUP + GROUP])
        out_re = out_re + g_re
        out_im = out_im + g_im
    return out_re, out_im


@jit
def join(values):
    """Join a tuple of P tiles ``[S, C]`` into one ``[S, C, P]``."""
    S: tl.constexpr = values[0].shape[0]
    C: tl.constexpr = values[0].shape[1]
    return tl.reshape(_join_bits(values), (S, C, len(values)))


@jit
def _join_bits(values):
    # One dimension of 2 per bit of the index in the tuple and no other shape in between, so that the compiler sees that
    # nothing leaves its thread.
    HALF: tl.constexpr = len(values) // 2
    pairs = ()
    for n in tl.static_range(HALF):
        pairs += (tl.join(values[n], values[n + HALF]),)
    if HALF == 1:
        return pairs[0]
    else:
        return _join_bits(pairs)


@jit
def split(tile):
    """Split a tile ``[S, C, P]`` into a tuple of P tiles; the inverse of `join`."""
    S: tl.constexpr = tile.shape[0]
    C: tl.constexpr = tile.shape[1]
    P: tl.constexpr = tile.shape[2]
    return _split_bits((tl.reshape(tile, (S, C) + (2,) * bits(P)),), P)


@jit
def _split_bits(tiles, COUNT: tl.constexpr):
    first = ()
    second = ()
    for n in tl.static_range(len(tiles)):
        a, b = tl.split(tiles[n])
        first += (a,)
        second += (b,)
    if COUNT == 2:
        return first + second
    else:
        return _split_bits(first + second, COUNT // 2)


@jit
def exchange(tile, OUTER: tl.constexpr, Q: tl.constexpr, INNER: tl.constexpr):
    """Swap the Q of the tile's rows ``[OUTER · Q · INNER, C, P]`` with the last Q of its values; its own inverse."""
    S: tl.constexpr = tile.shape[0]
    C: tl.constexpr = tile.shape[1]
    P: tl.constexpr = tile.shape[2]
    apart = tl.reshape(tile, (OUTER, Q, INNER, C, P // Q, Q))
    return tl.reshape(tl.permute(apart, (0, 5, 2, 3, 4, 1)), (S, C, P))
