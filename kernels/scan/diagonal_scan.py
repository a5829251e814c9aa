"""A diagonal linear recurrence, h_t = a_t ⊙ h_{t−1} + x_t: the RG-LRU's, channel by channel.

A program owns some channels of one sequence. It scans tiles of positions, two consecutive steps composing into one
(Blelloch, CMU-CS-90-190, section 1.4), and carries h from tile to tile in registers, so that inputs are read and h is
written once.

Legend: B batch, T positions, D channels, BT positions and BD channels per tile.
"""

# Inside kernels types are Triton's, which come without stubs.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import torch

from argap.kernels.launch import (
    Launch,
    LaunchTable,
    contiguous_float32,
    jit,
    runs_kernels,
    strided,
    tl,
    triton,
    unit_stride,
)
from argap.kernels.recurrent.recurrence import linear_scan

LAUNCHES = LaunchTable("diagonal_scan", {"any": {"any": Launch({"BT": 128, "BD": 16}, warps=1, stages=1)}})
CHUNK = 256
"""Positions whose tree the reference keeps at once: without gradients its memory does not grow with T."""


def diagonal_scan(
    decay: torch.Tensor,
    value: torch.Tensor,
    *,
    starts: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the recurrence above (arXiv 2402.19427, eq. 4, with x_t = √(1 − a_t²) ⊙ i_t ⊙ u_t).

    Args:
        decay: a, ``[B, T, D]``.
        value: x, ``[B, T, D]``.
        starts: where a counts as 0, boolean ``[B, T]``; None: nowhere.
        state: h before the first position, ``[B, D]``; None: 0.

    Returns:
        h ``[B, T, D]`` in the dtype of ``value``, and h after the last position, ``[B, D]`` in float32 or wider.

    Runs one kernel with float32 arithmetic on a GPU if no gradient is needed; otherwise the reference.
    """
    if not runs_kernels(decay, value, starts, state) or torch.float64 in (decay.dtype, value.dtype):
        return diagonal_scan_reference(decay, value, starts=starts, state=state)
    B, T, D = value.shape
    decay, value = unit_stride(decay), unit_stride(value)
    h, ht = value.new_empty(B, T, D), value.new_empty(B, D, dtype=torch.float32)
    launch = LAUNCHES.at(h.device, "any")
    _scan_kernel[(triton.cdiv(D, launch.blocks["BD"]), B)](
        *(*strided(decay, value, starts, dims=2), contiguous_float32(state), h, ht, T), D=D, **launch.arguments()
    )
    return h, ht


def diagonal_scan_reference(
    decay: torch.Tensor,
    value: torch.Tensor,
    *,
    starts: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `diagonal_scan` in PyTorch, in float32 or wider; differentiable."""
    wide = torch.promote_types(torch.promote_types(decay.dtype, value.dtype), torch.float32)
    decay = decay.to(wide) if starts is None else decay.to(wide).masked_fill(starts[..., None], 0.0)
    outputs = []
    for a, x in zip(decay.split(CHUNK, dim=1), value.to(wide).split(CHUNK, dim=1), strict=True):
        h = linear_scan(a, x, state)
        outputs.append(h.to(value.dtype))
        state = h[:, -1]
    assert state is not None  # T ≥ 1
    return torch.cat(outputs, dim=1), state


@jit
def _scan_kernel(decay, value, starts, h0, h, ht, T, D: tl.constexpr, BT: tl.constexpr, BD: tl.constexpr):
    i_b = tl.program_id(1).to(tl.int64)
    o_d = tl.program_id(0) * BD + tl.arange(0, BD)
    o_t = tl.arange(0, BT)
    m_d = o_d < D
    o_t64 = o_t.to(tl.int64)[:, None]
    p_a = decay[0] + i_b * decay[1] + o_t64 * decay[2] + o_d[None, :]
    p_x = value[0] + i_b * value[1] + o_t64 * value[2] + o_d[None, :]
    p_h = h + (i_b * T + o_t64) * D + o_d[None, :]
    b_h = tl.zeros([BD], dtype=tl.float32)
    if h0 is not None:
        b_h = tl.load(h0 + i_b * D + o_d, mask=m_d, other=0.0)
    for start in range(0, T, BT):
        left = T - start
        m_td = (o_t < left)[:, None] & m_d[None, :]
        b_a = tl.load(p_a, mask=m_td, other=1.0).to(tl.float32)  # past the end h stays
        b_x = tl.load(p_x, mask=m_td, other=0.0).to(tl.float32)
        if starts is not None:
            p_s = starts[0] + i_b * starts[1] + (start + o_t).to(tl.int64) * starts[2]
            b_a = tl.where(tl.load(p_s, mask=o_t < left, other=False)[:, None] != 0, 0.0, b_a)
        b_as, b_xs = tl.associative_scan((b_a, b_x), 0, _compose)
        b_hs = b_xs + b_as * b_h[None, :]
        tl.store(p_h, b_hs.to(h.dtype.element_ty), mask=m_td)
        b_h = tl.sum(tl.where((o_t == BT - 1)[:, None], b_hs, 0.0), 0)
        p_a += BT * decay[2]
        p_x += BT * value[2]
        p_h += BT * D
    tl.store(ht + i_b * D + o_d, b_h, mask=m_d)


@jit
def _compose(b_a, b_x, b_next_a, b_next_x):
    # One step after another: h ↦ a' (a h + x) + x'.
    return b_a * b_next_a, b_next_a * b_x + b_next_x
