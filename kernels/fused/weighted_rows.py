"""The weighted sum of chosen rows: what the experts of a token add to its stream, in one pass.

The kernel takes as long as reading each chosen row once and writing the sums.

Legend: N tokens, K rows for each, S rows to choose from, D width.
"""

from __future__ import annotations

import torch

from argap.kernels.launch import Launch, LaunchTable, jit, runs_kernels, tl, triton, unit_stride

LAUNCHES = LaunchTable("weighted_rows", {"any": {"any": Launch({"BN": 2, "BD": 1024}, warps=4, stages=1)}})


def weighted_rows(rows: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute yₙ = Σₖ wₙₖ r_{iₙₖ}; a row of weight 0 is not read, whatever it holds.

    Args:
        rows: r, ``[S, D]``.
        index: i, integers from 0 to S − 1, ``[N, K]``.
        weights: w, ``[N, K]``.

    Returns:
        ``[N, D]`` in the dtype of ``rows``.

    Runs one kernel with float32 arithmetic and one rounding on a GPU if no gradient is needed; otherwise the reference.
    """
    if not runs_kernels(rows, index, weights) or torch.float64 in (rows.dtype, weights.dtype):
        return weighted_rows_reference(rows, index, weights)
    rows, (N, K), D = unit_stride(rows), index.shape, rows.shape[1]
    y = rows.new_empty(N, D)
    launch = LAUNCHES.at(y.device, "any")
    tiles = triton.cdiv(N, launch.blocks["BN"]) * triton.cdiv(D, launch.blocks["BD"])
    if tiles:
        _weighted_rows_kernel[(tiles,)](
            *(rows, index.contiguous(), weights.contiguous(), y, N, rows.stride(0)), D=D, K=K, **launch.arguments()
        )
    return y


def weighted_rows_reference(rows: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute `weighted_rows` in PyTorch; differentiable."""
    wide = torch.promote_types(rows.dtype, torch.float32)
    weights = weights[..., None].to(wide)
    return (rows[index].to(wide) * weights).where(weights != 0, 0.0).sum(1).to(rows.dtype)


@jit
def _weighted_rows_kernel(
    rows, index, weights, y, N, s_rows, D: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr
):
    # BN tokens and BD columns; neighbours in the grid are neighbours in the width. Offsets may exceed 2³¹.
    ND: tl.constexpr = (D + BD - 1) // BD
    o_d = (tl.program_id(0) % ND) * BD + tl.arange(0, BD)
    o_n = (tl.program_id(0) // ND).to(tl.int64) * BN + tl.arange(0, BN)
    m_n = o_n < N
    m_nd = m_n[:, None] & (o_d < D)[None, :]
    b_y = tl.zeros([BN, BD], tl.float32)
    for k in range(K):
        b_i = tl.load(index + o_n * K + k, mask=m_n, other=0).to(tl.int64)
        b_w = tl.load(weights + o_n * K + k, mask=m_n, other=0.0).to(tl.float32)
        m_r = m_nd & (b_w != 0)[:, None]
        b_r = tl.load(rows + b_i[:, None] * s_rows + o_d[None, :], mask=m_r, other=0.0).to(tl.float32)
        b_y += b_w[:, None] * b_r
    tl.store(y + o_n[:, None] * D + o_d[None, :], b_y.to(y.dtype.element_ty), mask=m_nd)
