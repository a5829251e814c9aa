"""The log decay −e^λ softplus(x + b) of a gate, as gated DeltaNet and Kimi delta attention have it, in one pass.

The kernel takes as long as reading the gate and writing the log decays in float32.

Legend: N rows (batch and positions), D gates a row, H of them with one rate for each D / H neighbours.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from argap.kernels.launch import Launch, LaunchTable, jit, runs_kernels, tl, triton, unit_stride
from argap.kernels.scan.selective_scan_backward import softplus

LAUNCHES = LaunchTable("step_decay", {"any": {"any": Launch({"BN": 8, "BD": 256}, warps=4, stages=1)}})


def step_decay(x: torch.Tensor, bias: torch.Tensor, log_rate: torch.Tensor) -> torch.Tensor:
    """Compute −e^λ ⊙ softplus(x + b).

    ``x [..., D]``, ``bias`` b ``[D]`` and ``log_rate`` λ ``[H]``, each for D / H neighbours, give ``[..., D]`` in
    float32 or wider.

    Runs one kernel on a GPU if no gradient is needed; otherwise the reference.
    """
    if not runs_kernels(x, bias, log_rate) or x.dtype == torch.float64:
        return step_decay_reference(x, bias, log_rate)
    y, D = x.new_empty(x.shape, dtype=torch.float32), x.shape[-1]
    rows = unit_stride(x.reshape(-1, D))
    launch = LAUNCHES.at(y.device, "any")
    tiles = triton.cdiv(len(rows), launch.blocks["BN"]) * triton.cdiv(D, launch.blocks["BD"])
    _step_decay_kernel[(tiles,)](
        *(rows, bias.contiguous(), log_rate.contiguous(), y, len(rows), rows.stride(0)),
        D=D,
        SHARED=D // log_rate.numel(),
        **launch.arguments(),
    )
    return y


def step_decay_reference(x: torch.Tensor, bias: torch.Tensor, log_rate: torch.Tensor) -> torch.Tensor:
    """Compute `step_decay` in PyTorch, in float32 or wider; differentiable."""
    wide = torch.promote_types(x.dtype, torch.float32)
    rate = log_rate.to(wide).flatten().exp().repeat_interleave(x.shape[-1] // log_rate.numel())
    return -rate * F.softplus(x.to(wide) + bias.to(wide))


@jit
def _step_decay_kernel(
    x,
    bias,
    log_rate,
    y,
    N,
    s_x,
    D: tl.constexpr,
    SHARED: tl.constexpr,
    BN: tl.constexpr,
    BD: tl.constexpr,
):
    # BN rows and BD columns; neighbours in the grid are neighbours in the width. Offsets may exceed 2³¹.
    ND: tl.constexpr = (D + BD - 1) // BD
    o_d = (tl.program_id(0) % ND) * BD + tl.arange(0, BD)
    o_n = (tl.program_id(0) // ND).to(tl.int64) * BN + tl.arange(0, BN)
    m_d = o_d < D
    m_nd = (o_n < N)[:, None] & m_d[None, :]
    b_rate = tl.exp(tl.load(log_rate + o_d // SHARED, mask=m_d, other=0.0).to(tl.float32))
    b_bias = tl.load(bias + o_d, mask=m_d, other=0.0).to(tl.float32)
    b_x = tl.load(x + o_n[:, None] * s_x + o_d[None, :], mask=m_nd, other=0.0).to(tl.float32) + b_bias[None, :]
    tl.store(y + o_n[:, None] * D + o_d[None, :], -b_rate[None, :] * softplus(b_x), mask=m_nd)
