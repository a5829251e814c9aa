"""Mamba's selective scan, with its step's softplus, its skip and its gate, in one kernel.

h_t = e^{Δ_t A} ⊙ h_{t−1} + Δ_t u_t B_t and y_t = (C_t · h_t + D ⊙ u_t) ⊙ SiLU(z_t), for each channel with N
states (arXiv 2312.00752, algorithm 2 and section 3.4). The states of all positions would be N times the
input; here they stay in registers. What bounds the kernel is the exponential for each of B·T·E·N states.

Legend: B batch, T positions, E channels, N states a channel, U positions of a tile.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from argap.kernels.language import jit, runs_kernels, tl, triton
from argap.kernels.launch import Launch, LaunchTable
from argap.kernels.layout import with_rows
from argap.kernels.linear_scan import linear_scan

# A warp has 32 channels, one a thread with all its states; BE is 32 a warp.
LAUNCHES = LaunchTable("selective_scan", {"any": {"any": Launch({"BE": 32, "U": 4}, warps=1, stages=1)}})
LARGEST_STATES = 64
CHUNK = 256
"""Positions whose states the reference holds at once: without gradients, memory does not grow with T."""


def selective_scan(
    u: torch.Tensor,
    step: torch.Tensor,
    decay: torch.Tensor,
    written: torch.Tensor,
    readout: torch.Tensor,
    *,
    skip: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``u``, ``step`` ``[B, T, E]`` with Δ = softplus(``step``), ``decay`` A < 0 ``[E, N]``, ``written`` B and
    ``readout`` C ``[B, T, N]``, ``skip`` D ``[E]`` (None: 0), ``gate`` z ``[B, T, E]`` (None: no gate) to y
    ``[B, T, E]`` in the type of ``u`` and h after the last position ``[B, E, N]`` in float32 or wider;
    ``state`` is h before the first; None: 0.

    On a GPU, where no gradient is asked for and N ≤ 64, one kernel, in float32; else the reference.
    """
    given = (u, step, decay, written, readout, skip, gate, state)
    if runs_kernels(*given) and decay.shape[1] <= LARGEST_STATES and u.dtype != torch.float64:
        return _by_kernel(u, step, decay, written, readout, skip, gate, state)
    return selective_scan_reference(u, step, decay, written, readout, skip=skip, gate=gate, state=state)


def selective_scan_reference(
    u: torch.Tensor,
    step: torch.Tensor,
    decay: torch.Tensor,
    written: torch.Tensor,
    readout: torch.Tensor,
    *,
    skip: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`selective_scan` in PyTorch, differentiable, in float32 or wider."""
    kind = torch.promote_types(u.dtype, torch.float32)
    answer = u.dtype
    u, step, decay, written, readout = (x.to(kind) for x in (u, step, decay, written, readout))
    outputs = []
    for x, raw, b, c in zip(*(full.split(CHUNK, dim=1) for full in (u, step, written, readout)), strict=True):
        size = F.softplus(raw)[..., None]
        states = linear_scan(torch.exp(size * decay), size * x[..., None] * b[..., None, :], state)
        state = states[:, -1]
        outputs.append((states * c[..., None, :]).sum(dim=-1))
    assert state is not None  # T ≥ 1
    y = torch.cat(outputs, dim=1)
    if skip is not None:
        y = y + skip.to(kind) * u
    if gate is not None:
        y = y * F.silu(gate.to(kind))
    return y.to(answer), state


def _by_kernel(
    u: torch.Tensor,
    step: torch.Tensor,
    decay: torch.Tensor,
    written: torch.Tensor,
    readout: torch.Tensor,
    skip: torch.Tensor | None,
    gate: torch.Tensor | None,
    state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    batch, length, width = u.shape
    states = decay.shape[1]
    y = u.new_empty(batch, length, width)
    after = u.new_empty(batch, width, states, dtype=torch.float32)
    u, step, written, readout = (with_rows(x) for x in (u, step, written, readout))
    skip, gate = (None if x is None else with_rows(x) for x in (skip, gate))
    before = None if state is None else state.float().contiguous()
    launch = LAUNCHES.at(u.device, "any")
    _scan[(triton.cdiv(width, launch.blocks["BE"]), batch, 1)](
        *(u, step, decay.float().contiguous(), written, readout, skip, gate, before, y, after, length),
        *(*u.stride()[:2], *step.stride()[:2], *written.stride()[:2], *readout.stride()[:2]),
        *((0, 0) if gate is None else gate.stride()[:2]),
        E=width,
        N=states,
        BN=triton.next_power_of_2(states),
        **launch.arguments(),
    )
    return y, after


@jit
def _scan(
    u,
    step,
    decay,
    written,
    readout,
    skip,
    gate,
    before,
    y,
    after,
    length,
    u_b,
    u_t,
    step_b,
    step_t,
    written_b,
    written_t,
    readout_b,
    readout_t,
    gate_b,
    gate_t,
    E: tl.constexpr,
    N: tl.constexpr,
    BN: tl.constexpr,
    BE: tl.constexpr,
    U: tl.constexpr,
):
    b = tl.program_id(1).to(tl.int64)
    # 0, as the grid's third dimension is 1: an offset that the compiler does not know. It would give several
    # aligned channels to a thread and the positions of a tile to several threads; so a thread has all
    # positions and all states of one channel, and no step moves data between threads.
    nowhere = tl.num_programs(2) - 1
    e = tl.program_id(0) * BE + tl.arange(0, BE)
    rows = tl.arange(0, U)
    n = tl.arange(0, BN)
    in_width, in_states = e < E, n < N
    far, at = rows.to(tl.int64)[:, None], (e + nowhere)[None, :]
    u_at = u + b * u_b + far * u_t + at
    step_at = step + b * step_b + far * step_t + at
    y_at = y + (b * length + far) * E + at
    written_at = written + b * written_b + far * written_t + n[None, :]
    readout_at = readout + b * readout_b + far * readout_t + n[None, :]
    if gate is not None:
        gate_at = gate + b * gate_b + far * gate_t + at

    of_state = e[None, :] * N + n[:, None] + nowhere
    held = in_states[:, None] & in_width[None, :]
    rates = tl.load(decay + of_state, mask=held, other=0.0) * 1.4426950408889634  # log₂ e
    h = tl.zeros([BN, BE], dtype=tl.float32)
    if before is not None:
        h = tl.load(before + b * E * N + of_state, mask=held, other=0.0)
    if skip is not None:
        through = tl.load(skip + e + nowhere, mask=in_width, other=0.0).to(tl.float32)

    there = (rows < length)[:, None]
    inside = there & in_width[None, :]
    u_c = tl.load(u_at, mask=inside, other=0.0)
    raw_c = tl.load(step_at, mask=inside, other=0.0)
    next_b = tl.load(written_at, mask=there & in_states[None, :], other=0.0)
    next_c = tl.load(readout_at, mask=there & in_states[None, :], other=0.0)
    for start in range(0, length, U):
        x = u_c.to(tl.float32)
        size = _softplus(raw_c.to(tl.float32))
        size = tl.where((rows < length - start)[:, None], size, 0.0)  # past the end h stays
        b_c, c_c = next_b.to(tl.float32), next_c.to(tl.float32)
        here = inside
        there = (rows < length - start - U)[:, None]
        inside = there & in_width[None, :]
        u_at += U * u_t
        step_at += U * step_t
        written_at += U * written_t
        readout_at += U * readout_t
        # The next tile's loads are under way while this one is computed.
        u_c = tl.load(u_at, mask=inside, other=0.0)
        raw_c = tl.load(step_at, mask=inside, other=0.0)
        next_b = tl.load(written_at, mask=there & in_states[None, :], other=0.0)
        next_c = tl.load(readout_at, mask=there & in_states[None, :], other=0.0)
        if gate is not None:
            z = tl.load(gate_at, mask=here, other=0.0).to(tl.float32)
            gate_at += U * gate_t
        added = size * x
        result = tl.zeros([U, BE], dtype=tl.float32)
        for i in tl.static_range(U):
            mine = (rows == i)[:, None]
            b_t = tl.sum(tl.where(mine, b_c, 0.0), 0)
            c_t = tl.sum(tl.where(mine, c_c, 0.0), 0)
            size_t = tl.sum(tl.where(mine, size, -0.0), 0)  # x + −0 is x: nothing is left of the sum
            added_t = tl.sum(tl.where(mine, added, -0.0), 0)
            h = tl.exp2(size_t[None, :] * rates) * h + added_t[None, :] * b_t[:, None]
            result = tl.where(mine, tl.sum(h * c_t[:, None], 0)[None, :], result)
        if skip is not None:
            result += through[None, :] * x
        if gate is not None:
            result *= z / (1 + tl.exp(-z))
        tl.store(y_at, result.to(y.dtype.element_ty), mask=here)
        y_at += U * E
    tl.store(after + b * E * N + of_state, h, mask=held)


@jit
def _softplus(x):
    # log(1 + e^x). The logarithm of the rounded sum, times what the rounding took from e^x, keeps small steps
    # exact; from 20 on it is x.
    power = tl.exp(tl.minimum(x, 20.0))
    total = 1 + power
    small = total == 1
    log = tl.where(small, power, tl.log(total) * (power / tl.where(small, 1.0, total - 1)))
    return tl.where(x > 20, x, log)
