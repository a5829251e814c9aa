"""The long convolution of 16-bit inputs as products with blocks of the filter's Toeplitz matrix, on the tensor cores.

For one channel y_t = Σ_s h_{t−s} x_s is a product with a lower triangular matrix, whose blocks depend only on their
distance to the diagonal. A program multiplies BM blocks of x, from any positions and sequences, by one block of the
matrix after another, starting at the diagonal, as far as the filter reaches. With 2048 positions and taps this takes
twenty times the operations of a Fourier transform, but less time.

Rows of a tile are runs of positions, so x lies in memory as ``[D, B, T]`` (`new_by_channel`). From row to row a block
of the matrix shifts the filter by one position; with `COPIES` shifted copies of the filter all rows are aligned.

Sums are in float32, in an order that depends on neither the batch nor T: a sequence has the same bits alone, in a
batch and truncated.

Legend: B batch, T positions, D width, N ≤ T taps, BN positions per block, BK positions per step.
"""

from __future__ import annotations

import torch

from argap.kernels.launch import Launch, LaunchTable, jit, new_by_channel, runs_kernels, strided, tl, triton

COPIES = 8
"""The number of 16-bit values in one load."""
LARGEST_BLOCK = 128
SHORTEST, LONGEST, MULTIPLE = 512, 2048, 16
"""Lengths for which this measured faster than transforms. Rows of lengths that are no such multiple are not aligned."""
LAUNCHES = LaunchTable(
    "toeplitz_convolution",
    {"any": {}, "hopper": {"any": Launch({"BM": 128, "BN": 64, "BK": 64}, warps=4, stages=3)}},
)


def takes_products(x: torch.Tensor) -> bool:
    """Return whether long convolutions of tensors like ``x [B, T, D]`` should go through `toeplitz_convolution`."""
    T = x.shape[1]
    fits = SHORTEST <= T <= LONGEST and T % MULTIPLE == 0 and x.dtype in (torch.bfloat16, torch.float16)
    return fits and runs_kernels(x) and "any" in LAUNCHES.rows(x.device)


def shifted_taps(taps: torch.Tensor, length: int, dtype: torch.dtype) -> torch.Tensor:
    """Lay out ``taps`` h ``[N, D]`` as `toeplitz_convolution` reads them for ``length`` positions.

    Returns ``[D, COPIES, L]`` in ``dtype``, the dtype of the inputs: copy c has h_m at `LARGEST_BLOCK` + c + m and
    zeros elsewhere. L is the number of taps, rounded up to whole blocks, plus a block of zeros before and after them.
    """
    taps = taps[:length].mT.to(dtype)
    D, N = taps.shape
    size = LARGEST_BLOCK * (2 + -(-N // LARGEST_BLOCK))
    copies = taps.new_zeros(D, COPIES, size)
    for c in range(COPIES):
        copies[:, c, LARGEST_BLOCK + c :][:, :N] = taps
    return copies


def toeplitz_convolution(
    x: torch.Tensor, copies: torch.Tensor, gate: torch.Tensor | None = None, skip: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute g ⊙ (h ∗ x + s ⊙ x) for ``x [B, T, D]`` with the ``copies`` of h from `shifted_taps` for T.

    ``gate`` g is ``[B, T, D]``, None: 1; ``skip`` s is ``[D]``, None: 0. Inputs may have any strides and are fastest in
    the layout of `new_by_channel`, which the result also has.
    """
    B, T, D = x.shape
    y = new_by_channel(x)
    launch = LAUNCHES.at(x.device, "any")
    tiles = triton.cdiv(triton.cdiv(T, launch.blocks["BN"]) * B, launch.blocks["BM"])
    _multiply_kernel[(tiles * D,)](
        *(*strided(x, gate, y, dims=3), copies, None if skip is None else skip.contiguous(), T, B),
        FIRST=LARGEST_BLOCK,
        L=copies.shape[2],
        COPIES=COPIES,
        **launch.arguments(),
    )
    return y


@jit
def _multiply_kernel(
    x,
    gate,
    y,
    copies,
    skip,
    T,
    B,
    FIRST: tl.constexpr,
    L: tl.constexpr,
    COPIES: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    # BM blocks of BN positions of one channel. Blocks of all sequences at the same positions are neighbours, so that a
    # program's blocks have about the same number of positions before them; those with the most start first.
    N = tl.cdiv(T, BN)
    NM = tl.cdiv(N * B, BM)
    i_d = (tl.program_id(0) // NM).to(tl.int64)  # offsets may exceed 2³¹
    start = (NM - 1 - tl.program_id(0) % NM) * BM
    o_m = start + tl.arange(0, BM)
    o_b = (o_m % B).to(tl.int64)[:, None]
    o_first = o_m // B * BN
    o_k, o_n = tl.arange(0, BK), tl.arange(0, BN)
    last = tl.minimum(start + BM, N * B) - 1
    # 1. The products, from the diagonal backwards.
    o_s = o_first + (BN - BK)
    p_x = x[0] + o_b * x[1] + (o_s[:, None] + o_k[None, :]) * x[2] + i_d * x[3]
    o_h = FIRST + BK - BN + (o_k % COPIES) * L - o_k // COPIES * COPIES
    p_h = copies + i_d * (COPIES * L) + o_h[:, None] + o_n[None, :]
    b_y = tl.zeros([BM, BN], dtype=tl.float32)
    for _ in range(0, tl.minimum((last // B + 1) * BN, L - 2 * FIRST + BN), BK):
        m_x = (o_s >= 0)[:, None] & (o_s[:, None] + o_k[None, :] < T)
        b_y = tl.dot(tl.load(p_x, mask=m_x, other=0.0), tl.load(p_h), b_y)
        o_s -= BK
        p_x -= BK * x[2]
        p_h += BK
    # 2. Skip, gate, store.
    o_t = o_first[:, None] + o_n[None, :]
    m_t = o_t < T
    if skip is not None:
        p_x = x[0] + o_b * x[1] + o_t * x[2] + i_d * x[3]
        b_y += tl.load(p_x, mask=m_t, other=0.0).to(tl.float32) * tl.load(skip + i_d).to(tl.float32)
    if gate is not None:
        b_y *= tl.load(gate[0] + o_b * gate[1] + o_t * gate[2] + i_d * gate[3], mask=m_t, other=0.0).to(tl.float32)
    tl.store(y[0] + o_b * y[1] + o_t * y[2] + i_d * y[3], b_y.to(y[0].dtype.element_ty), mask=m_t)
