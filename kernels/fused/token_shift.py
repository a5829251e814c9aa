"""RWKV's token shift: mix each position with the previous one, in several proportions at once.

The kernel takes as long as reading x once and writing the mixes.

Legend: B batch, T positions, D width, M mixes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from argap.kernels.launch import Launch, LaunchTable, jit, runs_kernels, tl, triton

LAUNCHES = LaunchTable("token_shift", {"any": {"any": Launch({"BT": 8, "BD": 256}, warps=4, stages=1)}})


def token_shift(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Compute μ ⊙ x_t + (1 − μ) ⊙ x_{t−1} for each μ, with x_{−1} = 0 (arXiv 2305.13048, section 3.1).

    ``x [B, T, D]`` and M ``weights`` μ ``[D]`` give M mixes ``[B, T, D]`` in the dtype of ``x``.

    Runs one kernel with float32 arithmetic and one rounding on a GPU if no gradient is needed and all dtypes are equal;
    otherwise the reference.
    """
    alike = x.dtype != torch.float64 and all(weight.dtype == x.dtype for weight in weights)
    if not (alike and runs_kernels(x, *weights)):
        return token_shift_reference(x, weights)
    x, (B, T, D) = x.contiguous(), x.shape
    y = x.new_empty(len(weights), B, T, D)
    launch = LAUNCHES.at(x.device, "any")
    tiles = triton.cdiv(T, launch.blocks["BT"]) * triton.cdiv(D, launch.blocks["BD"])
    _shift_kernel[(tiles * B,)](
        *(x, tuple(weight.contiguous() for weight in weights), y, T, y.stride(0)), D=D, **launch.arguments()
    )
    return list(y.unbind())


def token_shift_reference(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Compute `token_shift` with torch operations, each rounded; differentiable."""
    return mixed(x, F.pad(x[:, :-1], (0, 0, 1, 0)), weights)


def mixed(x: torch.Tensor, previous: torch.Tensor, weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Compute μ ⊙ ``x`` + (1 − μ) ⊙ ``previous`` for each μ ``[D]``; the inputs are ``[..., D]``."""
    return [previous + weight * (x - previous) for weight in weights]


@jit
def _shift_kernel(x, weights, y, T, s_y, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
    # BT positions and BD channels of one sequence; neighbours in the grid are neighbours in the width. The previous
    # positions are in the L1 cache by then.
    ND: tl.constexpr = (D + BD - 1) // BD
    NT = tl.cdiv(T, BT)
    i_bt = tl.program_id(0) // ND
    o_d = (tl.program_id(0) % ND) * BD + tl.arange(0, BD)
    o_t = (i_bt % NT) * BT + tl.arange(0, BT)
    m_d = o_d < D
    m_td = (o_t < T)[:, None] & m_d[None, :]
    o_x = ((i_bt // NT).to(tl.int64) * T + o_t)[:, None] * D + o_d[None, :]  # may exceed 2³¹
    b_x = tl.load(x + o_x, mask=m_td, other=0.0).to(tl.float32)
    b_previous = tl.load(x + o_x - D, mask=m_td & (o_t > 0)[:, None], other=0.0).to(tl.float32)
    b_x -= b_previous
    for n in tl.static_range(len(weights)):
        b_w = tl.load(weights[n] + o_d, mask=m_d, other=0.0).to(tl.float32)
        tl.store(y + n * s_y + o_x, (b_previous + b_w[None, :] * b_x).to(y.dtype.element_ty), mask=m_td)
