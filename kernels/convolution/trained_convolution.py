"""Causal convolutions of short sequences in training: product, bias, gate and all gradients in one pass.

For one channel, c_t = Σ_s h_{t−s} x_s + b is a product of the row x with the filter's Toeplitz matrix H plus a bias,
and y_t = g_t c_t. A skip is part of the first tap. Write dx for the gradient with respect to x; dy is given. Then

- dg_t = dy_t c_t, and dc_t = dy_t g_t;
- dx = dc Hᵀ, and db = Σ dc_t;
- dh_n = Σ G_{t−n,t} with G = xᵀ dc, the sums along the diagonals of a [T, T] matrix.

A program owns a channel and part of the sequences. It keeps H and G on the chip, so that memory is read and written
once: x, g and y forward, where a batched product and its gate take two more passes and copies to other layouts; c is
recomputed in the backward pass. Blocks of H and of G depend only on their distance to the diagonal. Rows of a product
are sequences, so x lies in memory as ``[D, B, T]``. Each program of a channel writes its sums to memory of its own: the
same input gives the same bits.

Products are in the precision set by `torch.set_float32_matmul_precision`: TF32 with ``high``.

Legend: B batch, T positions, D width, N ≤ T taps, BT positions of each of NT blocks, BB sequences per step, P programs
of a channel.
"""

# Inside kernels types are Triton's, which come without stubs.
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

from typing import Any

import torch

from argap.kernels.launch import (
    Launch,
    LaunchTable,
    block_size,
    jit,
    multiprocessors,
    tl,
    trains_kernels,
    triton,
)

BLOCK, LONGEST = 64, 128
"""Positions per block of H, and in the longest sequence: a program holds all blocks on the chip."""
LAUNCHES = LaunchTable(
    "trained_convolution",
    {
        "any": {
            "forward": Launch({"BB": 32}, warps=4, stages=1),
            "forward of blocks": Launch({"BB": 64}, warps=4, stages=2),
            "backward": Launch({"BB": 64}, warps=4, stages=2),
            "backward of blocks": Launch({"BB": 16}, warps=4, stages=2),
        }
    },
)
PROGRAMS = 2
"""Programs per multiprocessor, if the batch can be divided into as many parts."""

Given = torch.Tensor | None
"""An optional input."""


def trains_products(x: torch.Tensor, *others: Given) -> bool:
    """Return whether a convolution of ``x [B, T, D]`` uses `trained_convolution`: on a GPU, with a gradient needed."""
    return x.shape[1] <= LONGEST and x.dtype != torch.float64 and trains_kernels(x, *others)


def trained_convolution(
    x: torch.Tensor, taps: torch.Tensor, gate: Given = None, skip: Given = None, bias: Given = None
) -> torch.Tensor:
    """Compute y_t = g_t ⊙ (Σ_{n<N} h_n ⊙ x_{t−n} + k ⊙ x_t + b), with sums in float32; differentiable once.

    Args:
        x: ``[B, T, D]`` with T ≤ `LONGEST`, best in memory as ``[D, B, T]``.
        taps: h, ``[N, D]``.
        gate: g, ``[B, T, D]``; None: 1.
        skip: k, ``[D]``; None: 0.
        bias: b, ``[D]``; None: 0.

    Returns:
        y ``[B, T, D]`` in the dtype of ``x``, in memory ``[D, B, T]``.

    Always runs its kernels, even under `torch.compile`.
    """
    rows = x.permute(2, 0, 1).contiguous()
    gate = None if gate is None else gate.permute(2, 0, 1).contiguous()
    if skip is not None:
        taps = torch.cat([taps[:1] + skip, taps[1:]])
    return _convolve(rows, taps.mT.contiguous(), gate, bias).permute(1, 2, 0)


@torch.library.custom_op(
    "argap::trained_convolution",
    mutates_args=(),
    schema="(Tensor x, Tensor taps, Tensor? gate, Tensor? bias) -> Tensor",
)
def _convolve(x: torch.Tensor, taps: torch.Tensor, gate: Given, bias: Given) -> torch.Tensor:
    """Convolve ``x`` and multiply by ``gate``, both ``[D, B, T]``, with ``taps [D, N]``; returns ``[D, B, T]``."""
    y = x.new_empty(x.shape)
    programs, options = _launch("forward", x)
    _forward_kernel[(len(x) * programs,)](x, taps, gate, bias, y, x.shape[1], taps.shape[1], **options)
    return y


@_convolve.register_fake
def _(x: torch.Tensor, *others: Given) -> torch.Tensor:
    return x.new_empty(x.shape)


@torch.library.custom_op(
    "argap::trained_convolution_backward",
    mutates_args=(),
    schema="(Tensor dy, Tensor x, Tensor taps, Tensor? gate, Tensor? bias) -> (Tensor, Tensor, Tensor, Tensor)",
)
def _differentiate(
    dy: torch.Tensor, x: torch.Tensor, taps: torch.Tensor, gate: Given, bias: Given
) -> tuple[torch.Tensor, ...]:
    """Return the gradients of the other arguments, which are contiguous; for None an empty tensor."""
    (D, B, _), N = x.shape, taps.shape[1]
    programs, options = _launch("backward", x)
    size, blocks = options["BT"], options["NT"]
    dx, dtaps, dgate = x.new_empty(x.shape), taps.new_empty(D, N), _like(gate, x)
    products = x.new_empty(D, programs, blocks, size, size, dtype=torch.float32)
    sums = None if bias is None else x.new_empty(D, programs, dtype=torch.float32)
    _backward_kernel[(D * programs,)](
        *(dy, x, taps, gate, bias, dx, None if gate is None else dgate, products, sums, B, N), **options
    )
    _diagonals_kernel[(D * blocks,)](products, dtaps, programs, N, BT=size, NT=blocks)
    return dx, dtaps, dgate, x.new_empty(0) if sums is None else sums.sum(1)


@_differentiate.register_fake
def _(dy: torch.Tensor, x: torch.Tensor, taps: torch.Tensor, gate: Given, bias: Given) -> tuple[torch.Tensor, ...]:
    dbias = x.new_empty(0) if bias is None else x.new_empty(len(x), dtype=torch.float32)
    return x.new_empty(x.shape), taps.new_empty(taps.shape), _like(gate, x), dbias


def _like(given: Given, x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(0) if given is None else given.new_empty(given.shape)


def _launch(name: str, x: torch.Tensor) -> tuple[int, dict[str, int]]:
    """Return P, and the keyword arguments of both kernels."""
    D, B, T = x.shape
    size = min(BLOCK, block_size(T))
    blocks = triton.cdiv(T, size)
    launch = LAUNCHES.at(x.device, name if blocks == 1 else f"{name} of blocks")
    parts = triton.cdiv(B, launch.blocks["BB"])
    programs = min(parts, triton.cdiv(PROGRAMS * multiprocessors(x.device), D))
    rounded = torch.get_float32_matmul_precision() != "highest"
    options = {"T": T, "BT": size, "NT": blocks, "P": programs, "STEPS": triton.cdiv(parts, programs), "TF32": rounded}
    return programs, options | launch.arguments()


def _keep(ctx: Any, inputs: tuple[Given, ...], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dy: torch.Tensor) -> tuple[Given, ...]:
    gradients = _differentiate(dy.contiguous(), *ctx.saved_tensors)
    pairs = zip(gradients, ctx.saved_tensors, strict=True)
    return tuple(None if given is None else gradient.to(given.dtype) for gradient, given in pairs)


_convolve.register_autograd(_backward, setup_context=_keep)


@jit
def _matrices(taps, N, BT: tl.constexpr, NT: tl.constexpr, TF32: tl.constexpr):
    # The blocks of H at each distance m from the diagonal, with h_{m·BT+t−s} in row s and column t.
    o_t = tl.arange(0, BT)
    b_h = ()
    for m in tl.static_range(NT):
        o_n = m * BT + o_t[None, :] - o_t[:, None]
        b_m = tl.load(taps + o_n, mask=(o_n >= 0) & (o_n < N), other=0.0).to(tl.float32)
        b_h += (_operand(b_m, TF32),)
    return b_h


@jit
def _operand(b_x, TF32: tl.constexpr):
    # Rounded to the nearest number of TF32: tensor cores drop the last 13 bits.
    if TF32:
        b_x = ((b_x.to(tl.int32, bitcast=True) + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    return b_x


@jit
def _product(b_x, b_y, TF32: tl.constexpr):
    return tl.dot(b_x, b_y, input_precision="tf32") if TF32 else tl.dot(b_x, b_y, input_precision="ieee")


@jit
def _forward_kernel(
    x,
    taps,
    gate,
    bias,
    y,
    B,
    N,
    T: tl.constexpr,
    BT: tl.constexpr,
    NT: tl.constexpr,
    P: tl.constexpr,
    STEPS: tl.constexpr,
    TF32: tl.constexpr,
    BB: tl.constexpr,
):
    i_d, i_p = (tl.program_id(0) // P).to(tl.int64), tl.program_id(0) % P
    b_h = _matrices(taps + i_d * N, N, BT, NT, TF32)
    o_b, o_t = tl.arange(0, BB)[:, None], tl.arange(0, BT)[None, :]
    for step in range(STEPS):
        i_b = (i_p * STEPS + step) * BB
        base = (i_d * B + i_b) * T
        b_x = ()
        for j in tl.static_range(NT):
            o_x = o_b * T + j * BT + o_t
            mask = (i_b + o_b < B) & (j * BT + o_t < T)
            b_x += (_operand(tl.load(x + base + o_x, mask=mask, other=0.0).to(tl.float32), TF32),)
            b_c = _product(b_x[j], b_h[0], TF32)
            for i in tl.static_range(j):
                b_c += _product(b_x[i], b_h[j - i], TF32)
            if bias is not None:
                b_c += tl.load(bias + i_d).to(tl.float32)
            if gate is not None:
                b_c *= tl.load(gate + base + o_x, mask=mask, other=0.0).to(tl.float32)
            tl.store(y + base + o_x, b_c.to(y.dtype.element_ty), mask=mask)


@jit
def _backward_kernel(
    dy,
    x,
    taps,
    gate,
    bias,
    dx,
    dgate,
    products,
    dbias,
    B,
    N,
    T: tl.constexpr,
    BT: tl.constexpr,
    NT: tl.constexpr,
    P: tl.constexpr,
    STEPS: tl.constexpr,
    TF32: tl.constexpr,
    BB: tl.constexpr,
):
    i_d, i_p = (tl.program_id(0) // P).to(tl.int64), tl.program_id(0) % P
    b_h = _matrices(taps + i_d * N, N, BT, NT, TF32)
    o_b, o_t = tl.arange(0, BB)[:, None], tl.arange(0, BT)[None, :]
    b_g = ()
    for _ in tl.static_range(NT):
        b_g += (tl.zeros([BT, BT], tl.float32),)
    b_db = tl.zeros([BB], tl.float32)
    for step in range(STEPS):
        i_b = (i_p * STEPS + step) * BB
        base = (i_d * B + i_b) * T
        # 1. dg = dy ⊙ c and dc = dy ⊙ g, block by block.
        b_x, b_dc = (), ()
        b_sum = tl.zeros([BB, BT], tl.float32)
        for j in tl.static_range(NT):
            o_x = o_b * T + j * BT + o_t
            mask = (i_b + o_b < B) & (j * BT + o_t < T)
            b_x += (_operand(tl.load(x + base + o_x, mask=mask, other=0.0).to(tl.float32), TF32),)
            b_dy = tl.load(dy + base + o_x, mask=mask, other=0.0).to(tl.float32)
            if gate is not None:
                b_c = _product(b_x[j], b_h[0], TF32)
                for i in tl.static_range(j):
                    b_c += _product(b_x[i], b_h[j - i], TF32)
                if bias is not None:
                    b_c += tl.load(bias + i_d).to(tl.float32)
                tl.store(dgate + base + o_x, (b_dy * b_c).to(dgate.dtype.element_ty), mask=mask)
                b_dy *= tl.load(gate + base + o_x, mask=mask, other=0.0).to(tl.float32)
            b_sum += b_dy
            b_dc += (_operand(b_dy, TF32),)
        if bias is not None:
            b_db += tl.sum(b_sum, 1)
        # 2. dx = dc Hᵀ.
        for i in tl.static_range(NT):
            b_dx = _product(b_dc[i], tl.trans(b_h[0]), TF32)
            for j in tl.static_range(i + 1, NT):
                b_dx += _product(b_dc[j], tl.trans(b_h[j - i]), TF32)
            mask = (i_b + o_b < B) & (i * BT + o_t < T)
            tl.store(dx + base + o_b * T + i * BT + o_t, b_dx.to(dx.dtype.element_ty), mask=mask)
        # 3. G at each distance from the diagonal.
        b_sums = ()
        for m in tl.static_range(NT):
            b_gm = b_g[m]
            for i in tl.static_range(NT - m):
                b_gm += _product(tl.trans(b_x[i]), b_dc[i + m], TF32)
            b_sums += (b_gm,)
        b_g = b_sums
    o_s = tl.arange(0, BT)
    for m in tl.static_range(NT):
        p_g = products + ((i_d * P + i_p) * NT + m) * BT * BT
        tl.store(p_g + o_s[:, None] * BT + o_s[None, :], b_g[m])
    if bias is not None:
        tl.store(dbias + i_d * P + i_p, tl.sum(b_db, 0))


@jit
def _diagonals_kernel(products, dtaps, P, N, BT: tl.constexpr, NT: tl.constexpr):
    # Tap m·BT + n of a channel: over all s, G_{s,s+n} of the blocks at distance m and G_{s,s+n−BT} of those at m + 1.
    i_d, m = (tl.program_id(0) // NT).to(tl.int64), tl.program_id(0) % NT
    o_s, o_n = tl.arange(0, BT)[:, None], tl.arange(0, BT)
    o_g = o_s * BT + o_s + o_n[None, :]
    inside = o_s + o_n[None, :] < BT
    b_taps = tl.zeros([BT, BT], tl.float32)
    for i_p in range(P):
        p_g = products + ((i_d * P + i_p) * NT + m) * BT * BT
        b_taps += tl.load(p_g + o_g, mask=inside, other=0.0)
        b_taps += tl.load(p_g + BT * BT + o_g - BT, mask=(m + 1 < NT) & (o_s + o_n[None, :] >= BT), other=0.0)
    tl.store(dtaps + i_d * N + m * BT + o_n, tl.sum(b_taps, 0), mask=m * BT + o_n < N)
