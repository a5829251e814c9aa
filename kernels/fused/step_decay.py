"""The log decay −e^λ softplus(x + b) of a gate, as gated DeltaNet and Kimi delta attention have it, in one pass.

Mamba-2 needs the step softplus(x + b) too, which the same pass writes beside the log decay. The kernel takes as long as
reading the gate and writing its results in float32.

Legend: N rows (batch and positions), D gates a row, H of them with one rate for each D / H neighbours.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from argap.kernels.launch import Launch, LaunchTable, jit, runs_kernels, tl, triton, unit_stride
from argap.kernels.scan.selective_scan_backward import softplus

# A step of each head is a narrow row.
LAUNCHES = LaunchTable(
    "step_decay",
    {
        "any": {
            "any": Launch({"BN": 8, "BD": 256}, warps=4, stages=1),
            "narrow": Launch({"BN": 64, "BD": 32}, warps=4, stages=1),
        }
    },
)
NARROW = 32
"""The widest narrow row of steps."""


def step_decay(x: torch.Tensor, bias: torch.Tensor, log_rate: torch.Tensor) -> torch.Tensor:
    """Compute −e^λ ⊙ softplus(x + b).

    ``x [..., D]``, ``bias`` b ``[D]`` and ``log_rate`` λ ``[H]``, each for D / H neighbours, give ``[..., D]`` in
    float32 or wider.

    Runs one kernel on a GPU if no gradient is needed; otherwise the reference.
    """
    if not runs_kernels(x, bias, log_rate) or x.dtype == torch.float64:
        return step_decay_reference(x, bias, log_rate)
    y = x.new_empty(x.shape, dtype=torch.float32)
    _launch("any", x, bias, log_rate, y)
    return y


def step_and_decay(
    x: torch.Tensor, bias: torch.Tensor, rate: torch.Tensor, least: float = 0.0, most: float = math.inf
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute Δ = softplus(x + b), kept between ``least`` and ``most``, and the log decay A Δ.

    ``x [..., D]``, ``bias`` b ``[D]`` and ``rate`` A ``[H]``, each for D / H neighbours, give two ``[..., D]`` in
    float32 or wider.

    Runs one kernel on a GPU if no gradient is needed; otherwise the reference.
    """
    if not runs_kernels(x, bias, rate) or x.dtype == torch.float64:
        return step_and_decay_reference(x, bias, rate, least, most)
    step, decay = (x.new_empty(x.shape, dtype=torch.float32) for _ in range(2))
    _launch("narrow" if x.shape[-1] <= NARROW else "any", x, bias, rate, decay, step, least, most)
    return step, decay


def _launch(
    shape: str,
    x: torch.Tensor,
    bias: torch.Tensor,
    rate: torch.Tensor,
    y: torch.Tensor,
    step: torch.Tensor | None = None,
    least: float = 0.0,
    most: float = math.inf,
) -> None:
    D = x.shape[-1]
    rows = unit_stride(x.reshape(-1, D))
    launch = LAUNCHES.at(y.device, shape)
    tiles = triton.cdiv(len(rows), launch.blocks["BN"]) * triton.cdiv(D, launch.blocks["BD"])
    if tiles:
        _step_decay_kernel[(tiles,)](
            *(rows, bias.contiguous(), rate.contiguous(), y, step, least, most, len(rows), rows.stride(0)),
            D=D,
            SHARED=D // rate.numel(),
            **launch.arguments(),
        )


def step_decay_reference(x: torch.Tensor, bias: torch.Tensor, log_rate: torch.Tensor) -> torch.Tensor:
    """Compute `step_decay` in PyTorch, in float32 or wider; differentiable."""
    wide = torch.promote_types(x.dtype, torch.float32)
    rate = log_rate.to(wide).flatten().exp().repeat_interleave(x.shape[-1] // log_rate.numel())
    return -rate * F.softplus(x.to(wide) + bias.to(wide))


def step_and_decay_reference(
    x: torch.Tensor, bias: torch.Tensor, rate: torch.Tensor, least: float = 0.0, most: float = math.inf
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `step_and_decay` in PyTorch, in float32 or wider; differentiable."""
    wide = torch.promote_types(x.dtype, torch.float32)
    step = F.softplus(x.to(wide) + bias.to(wide)).clamp(least, most)
    return step, (step.unflatten(-1, (rate.numel(), -1)) * rate.to(wide).flatten()[:, None]).flatten(-2)


@jit
def _step_decay_kernel(
    x,
    bias,
    rate,
    y,
    step,
    least,
    most,
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
    b_rate = tl.load(rate + o_d // SHARED, mask=m_d, other=0.0).to(tl.float32)
    b_bias = tl.load(bias + o_d, mask=m_d, other=0.0).to(tl.float32)
    o_nd = o_n[:, None] * D + o_d[None, :]
    b_x = tl.load(x + o_n[:, None] * s_x + o_d[None, :], mask=m_nd, other=0.0).to(tl.float32) + b_bias[None, :]
    b_y = softplus(b_x)
    if step is None:
        b_rate = -tl.exp(b_rate)
    else:
        b_y = tl.where(b_y < least, least, b_y)  # NaN stays
        b_y = tl.where(b_y > most, most, b_y)
        tl.store(step + o_nd, b_y, mask=m_nd)
    tl.store(y + o_nd, b_rate[None, :] * b_y, mask=m_nd)
