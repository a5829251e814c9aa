"""Mamba's selective scan with its softplus, skip and gate, in one kernel.

h_t = e^{Δ_t A} ⊙ h_{t−1} + Δ_t u_t B_t and y_t = (C_t · h_t + D ⊙ u_t) ⊙ SiLU(z_t), for each channel with N states
(arXiv 2312.00752, algorithm 2 and section 3.4). The states of all positions would take N times the memory of the
input; here they stay in registers. The kernel is bound by one exponential for each of the B·T·E·N states.

Legend: B batch, T positions, E channels, N states per channel, BT positions per tile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from argap.kernels.launch import (
    Launch,
    LaunchTable,
    block_size,
    contiguous_float32,
    jit,
    runs_kernels,
    strided,
    tl,
    trains_kernels,
    triton,
    unit_stride,
)
from argap.kernels.recurrent.recurrence import linear_scan
from argap.kernels.scan.selective_scan_backward import STORED_EVERY, position, selective_scan_backward, softplus

# By the states of a channel. A thread has one channel with all its states and B and C of a whole tile, so BE is 32 per
# warp, and more than 16 states leave no room for further positions in a tile.
LAUNCHES = LaunchTable(
    "selective_scan",
    {"any": {str(N): Launch({"BE": 32, "BT": 4 if N == 16 else 1}, warps=1, stages=1) for N in (16, 32, 64)}},
)
LARGEST_STATES = 64
LONG, SEGMENT = 32_768, 8192
"""From how many positions on a sequence runs by segments of that length, so that few long sequences fill a GPU."""
CHUNK = 256
"""Positions whose states the reference keeps at once: without gradients its memory does not grow with T."""


def selective_scan(
    u: torch.Tensor,
    step: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    *,
    skip: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run the recurrence above with Δ = softplus(``step``).

    Args:
        u, step: ``[B, T, E]``.
        A: negative, ``[E, N]``.
        B, C: ``[B, T, N]``.
        skip: D, ``[E]``; None: 0.
        gate: z, ``[B, T, E]``; None: no gate.
        state: h before the first position, ``[B, E, N]``; None: 0.

    Returns:
        y ``[B, T, E]`` in the dtype of ``u``, and h after the last position, ``[B, E, N]`` in float32 or wider.

    Runs one kernel in float32 on a GPU if N ≤ 64, and a second one for gradients; otherwise the reference. Only the
    reference has second-order gradients.
    """
    given = (u, step, A, B, C, skip, gate, state)
    if A.shape[1] <= LARGEST_STATES and u.dtype != torch.float64:
        if runs_kernels(*given):
            if u.shape[1] < LONG:
                return _scan(*given)
            rows = zip(
                *(x.split(1) for x in (u, step, B, C)), *(_sequences(x, len(u)) for x in (gate, state)), strict=True
            )
            found = [_in_segments(u, step, A, B, C, skip, z, h) for u, step, B, C, z, h in rows]
            ys, states = zip(*found, strict=True)
            return (torch.cat(ys), torch.cat(states)) if len(ys) > 1 else found[0]
        if trains_kernels(*given):
            y, ht, _ = _scan_for_training(*given)
            return y, ht
    return selective_scan_reference(u, step, A, B, C, skip=skip, gate=gate, state=state)


def _scan(
    u: torch.Tensor,
    step: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    skip: torch.Tensor | None,
    gate: torch.Tensor | None,
    state: torch.Tensor | None,
    states: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the kernel; if ``states`` is given, it receives the states before positions 0, `STORED_EVERY`, …."""
    (batch, T, E), N = u.shape, A.shape[1]
    u, step = unit_stride(u), unit_stride(step)
    B, C = unit_stride(B.float()), unit_stride(C.float())  # every thread reads all of them: converted once
    skip, gate = unit_stride(skip), unit_stride(gate)
    y = u.new_empty(batch, T, E)
    ht = u.new_empty(batch, E, N, dtype=torch.float32)
    launch = LAUNCHES.at(u.device, str(block_size(N)))
    _scan_kernel[(triton.cdiv(E, launch.blocks["BE"]), batch, 1)](
        *strided(u, step, B, C, gate, dims=2),
        *(contiguous_float32(A), skip, contiguous_float32(state), y, ht, states, T),
        E=E,
        N=N,
        BN=triton.next_power_of_2(N),
        L=STORED_EVERY,
        **launch.arguments(),
    )
    return y, ht


def _sequences(x: torch.Tensor | None, count: int) -> Sequence[torch.Tensor | None]:
    return [None] * count if x is None else x.split(1)


def _in_segments(
    u: torch.Tensor,
    step: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    skip: torch.Tensor | None,
    gate: torch.Tensor | None,
    state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run `_scan` of one long sequence by its segments at once.

    A first pass gives what each segment adds to the state, a second one runs them all from the states before them. What
    is left over follows.
    """
    count = u.shape[1] // SEGMENT
    main = count * SEGMENT

    def segments(x: Any) -> Any:
        return None if x is None else x[0, :main].unflatten(0, (count, SEGMENT))

    parts = [segments(x) for x in (u, step, B, C, gate)]
    _, added = _scan(parts[0], parts[1], A, parts[2], parts[3], None, None, None)
    total = torch.stack([F.softplus(part.float()).sum(0) for part in parts[1]])
    states = linear_scan((total[..., None] * A.float())[None].exp(), added[None], state)[0]
    first = torch.zeros_like(added[:1]) if state is None else state.float()
    before = torch.cat([first, states[:-1]])
    y, _ = _scan(parts[0], parts[1], A, parts[2], parts[3], skip, parts[4], before)
    y, last = y.flatten(0, 1)[None], states[-1:]
    if main < u.shape[1]:
        u, step, B, C = (x[:, main:] for x in (u, step, B, C))
        rest, last = _scan(u, step, A, B, C, skip, None if gate is None else gate[:, main:], last)
        y = torch.cat([y, rest], dim=1)
    return y, last


@torch.library.custom_op(
    "argap::selective_scan",
    mutates_args=(),
    schema="(Tensor u, Tensor step, Tensor A, Tensor B, Tensor C, Tensor? skip, Tensor? gate, Tensor? state)"
    " -> (Tensor, Tensor, Tensor)",
)
def _scan_for_training(
    u: torch.Tensor, step: torch.Tensor, A: torch.Tensor, *others: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run `_scan` as an operator that is opaque to `torch.compile`; also returns the stored states."""
    states = _new_states(u, A)
    return *_scan(u, step, A, *others, states=states), states  # pyright: ignore[reportArgumentType]


@_scan_for_training.register_fake
def _(u: torch.Tensor, step: torch.Tensor, A: torch.Tensor, *others: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    batch, T, E = u.shape
    return u.new_empty(batch, T, E), u.new_empty(batch, *A.shape, dtype=torch.float32), _new_states(u, A)


def _new_states(u: torch.Tensor, A: torch.Tensor) -> torch.Tensor:
    (batch, T, E), N = u.shape, A.shape[1]
    return u.new_empty(batch, (T + STORED_EVERY - 1) // STORED_EVERY, N, E, dtype=torch.float32)


_scan_backward = torch.library.custom_op(
    "argap::selective_scan_backward",
    selective_scan_backward,
    mutates_args=(),
    schema="(Tensor dy, Tensor? dht, Tensor states, Tensor u, Tensor step, Tensor A, Tensor B, Tensor C, Tensor? skip,"
    " Tensor? gate) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


@_scan_backward.register_fake
def _(
    dy: torch.Tensor, dht: torch.Tensor | None, states: torch.Tensor, *given: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    like = (
        states.new_empty(0) if x is None else torch.empty_like(x, memory_format=torch.contiguous_format) for x in given
    )
    return *like, states.new_empty(states.shape[0], states.shape[3], states.shape[2])


def _keep(ctx: Any, inputs: tuple[torch.Tensor | None, ...], output: tuple[torch.Tensor, ...]) -> None:
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(output[2], *inputs)


def _backward(ctx: Any, dy: torch.Tensor | None, dht: torch.Tensor | None, _: None) -> tuple[torch.Tensor | None, ...]:
    states, *given, state = ctx.saved_tensors
    dy = torch.zeros_like(given[0]) if dy is None else dy
    gradients = _scan_backward(dy, dht, states, *given)
    wanted = (x is not None for x in (*given, state))
    return tuple(gradient if want else None for gradient, want in zip(gradients, wanted, strict=True))


_scan_for_training.register_autograd(_backward, setup_context=_keep)


def selective_scan_reference(
    u: torch.Tensor,
    step: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    *,
    skip: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `selective_scan` in PyTorch, in float32 or wider; differentiable."""
    dtype = torch.promote_types(u.dtype, torch.float32)
    out_dtype = u.dtype
    u, step, A, B, C = (x.to(dtype) for x in (u, step, A, B, C))
    outputs = []
    for u_c, step_c, B_c, C_c in zip(*(x.split(CHUNK, dim=1) for x in (u, step, B, C)), strict=True):
        delta = F.softplus(step_c)[..., None]
        states = linear_scan(torch.exp(delta * A), delta * u_c[..., None] * B_c[..., None, :], state)
        state = states[:, -1]
        outputs.append((states * C_c[..., None, :]).sum(dim=-1))
    assert state is not None  # T ≥ 1
    y = torch.cat(outputs, dim=1)
    if skip is not None:
        y = y + skip.to(dtype) * u
    if gate is not None:
        y = y * F.silu(gate.to(dtype))
    return y.to(out_dtype), state


@jit
def _scan_kernel(
    u,
    step,
    B,
    C,
    gate,
    A,
    skip,
    h0,
    y,
    ht,
    states,
    T,
    E: tl.constexpr,
    N: tl.constexpr,
    BN: tl.constexpr,
    BE: tl.constexpr,
    BT: tl.constexpr,
    L: tl.constexpr,
):
    i_b = tl.program_id(1).to(tl.int64)
    # BE channels of one sequence. ``zero`` is 0, since the grid's third dimension is 1, but the compiler does not know
    # that. If it knew the channels to be aligned, it would give several to a thread and spread the positions of a tile
    # over several threads; this way a thread has all positions and states of one channel, and no step moves data
    # between threads.
    zero = tl.num_programs(2) - 1
    o_e = tl.program_id(0) * BE + tl.arange(0, BE)
    o_t = tl.arange(0, BT)
    o_n = tl.arange(0, BN)
    m_e, m_n = o_e < E, o_n < N
    o_row, o_col = o_t.to(tl.int64)[:, None], (o_e + zero)[None, :]
    p_u = u[0] + i_b * u[1] + o_row * u[2] + o_col
    p_step = step[0] + i_b * step[1] + o_row * step[2] + o_col
    p_y = y + (i_b * T + o_row) * E + o_col
    p_B = B[0] + i_b * B[1] + o_row * B[2] + o_n[None, :]
    p_C = C[0] + i_b * C[1] + o_row * C[2] + o_n[None, :]
    p_gate = p_u  # not read without a gate
    if gate is not None:
        p_gate = gate[0] + i_b * gate[1] + o_row * gate[2] + o_col

    o_h = o_e[None, :] * N + o_n[:, None] + zero
    m_h = m_n[:, None] & m_e[None, :]
    # 1. Parameters and the initial state; A in units of log 2, for exp2.
    b_A = tl.load(A + o_h, mask=m_h, other=0.0) * 1.4426950408889634  # log₂ e
    b_h = tl.zeros([BN, BE], dtype=tl.float32)
    if h0 is not None:
        b_h = tl.load(h0 + i_b * E * N + o_h, mask=m_h, other=0.0)
    b_skip = tl.zeros([BE], dtype=tl.float32)
    if skip is not None:
        b_skip = tl.load(skip + o_e + zero, mask=m_e, other=0.0).to(tl.float32)

    # 2. Two tiles are in registers. As soon as one is taken, the tile after the other replaces it, so that a load has
    #    two tiles' time to complete. Copying one tile to the other would wait for the load.
    m_e, m_n = m_e[None, :], m_n[None, :]
    b_u0, b_step0, b_z0, b_B0, b_C0 = _load_tile(
        u, step, gate, B, C, p_u, p_step, p_gate, p_B, p_C, 0, o_t < T, m_e, m_n
    )
    b_u1, b_step1, b_z1, b_B1, b_C1 = _load_tile(
        u, step, gate, B, C, p_u, p_step, p_gate, p_B, p_C, BT, o_t < T - BT, m_e, m_n
    )
    for start in range(0, T, 2 * BT):
        if states is not None:
            p_states = states + (i_b * tl.cdiv(T, L) + start // L) * N * E + o_n[:, None] * E + o_col
            if start % L == 0:
                tl.store(p_states, b_h, mask=m_h)
        p_u += 2 * BT * u[2]
        p_step += 2 * BT * step[2]
        p_B += 2 * BT * B[2]
        p_C += 2 * BT * C[2]
        if gate is not None:
            p_gate += 2 * BT * gate[2]
        left = T - start
        b_u, b_delta, b_z, b_B, b_C = _take_tile(b_u0, b_step0, b_z0, b_B0, b_C0, o_t < left, BE)
        b_u0, b_step0, b_z0, b_B0, b_C0 = _load_tile(
            u, step, gate, B, C, p_u, p_step, p_gate, p_B, p_C, 0, o_t < left - 2 * BT, m_e, m_n
        )
        b_h = _scan_tile(b_u, b_delta, b_z, b_B, b_C, b_A, b_h, b_skip, gate, p_y, o_t, (o_t < left)[:, None] & m_e)
        b_u, b_delta, b_z, b_B, b_C = _take_tile(b_u1, b_step1, b_z1, b_B1, b_C1, o_t < left - BT, BE)
        b_u1, b_step1, b_z1, b_B1, b_C1 = _load_tile(
            u, step, gate, B, C, p_u, p_step, p_gate, p_B, p_C, BT, o_t < left - 3 * BT, m_e, m_n
        )
        p_y += BT * E
        b_h = _scan_tile(
            b_u, b_delta, b_z, b_B, b_C, b_A, b_h, b_skip, gate, p_y, o_t, (o_t < left - BT)[:, None] & m_e
        )
        p_y += BT * E
    # 5. The final state.
    tl.store(ht + i_b * E * N + o_h, b_h, mask=m_h)


@jit
def _load_tile(u, step, gate, B, C, p_u, p_step, p_gate, p_B, p_C, ahead: tl.constexpr, m_t, m_e, m_n):
    # The tile ``ahead`` positions after the pointers.
    m_te, m_tn = m_t[:, None] & m_e, m_t[:, None] & m_n
    b_u = tl.load(p_u + ahead * u[2], mask=m_te, other=0.0)
    b_step = tl.load(p_step + ahead * step[2], mask=m_te, other=0.0)
    b_z = b_u
    if gate is not None:
        b_z = tl.load(p_gate + ahead * gate[2], mask=m_te, other=0.0)
    b_B = tl.load(p_B + ahead * B[2], mask=m_tn, other=0.0)
    b_C = tl.load(p_C + ahead * C[2], mask=m_tn, other=0.0)
    return b_u, b_step, b_z, b_B, b_C


@jit
def _take_tile(b_u, b_step, b_z, b_B, b_C, m_t, BE: tl.constexpr):
    # 3. A tile in float32. Every thread needs all of B and C; they change threads once per tile.
    b_delta = tl.where(m_t[:, None], softplus(b_step.to(tl.float32)), 0.0)  # past the end h stays unchanged
    BT: tl.constexpr = b_B.shape[0]
    BN: tl.constexpr = b_B.shape[1]
    b_B = tl.broadcast_to(b_B[:, :, None], (BT, BN, BE))
    b_C = tl.broadcast_to(b_C[:, :, None], (BT, BN, BE))
    return b_u.to(tl.float32), b_delta, b_z.to(tl.float32), b_B, b_C


@jit
def _scan_tile(b_u, b_delta, b_z, b_B, b_C, b_A, b_h, b_skip, gate, p_y, o_t, m_te):
    # 4. A tile, position by position; then skip and gate. Returns the state after it.
    b_du = b_delta * b_u
    b_y = b_skip[None, :] * b_u
    for i in tl.static_range(b_u.shape[0]):  # pyright: ignore[reportGeneralTypeIssues]
        b_h = tl.exp2(position(b_delta, i)[None, :] * b_A) * b_h + position(b_du, i)[None, :] * position(b_B, i)
        b_y = tl.where((o_t == i)[:, None], b_y + tl.sum(b_h * position(b_C, i), 0)[None, :], b_y)
    if gate is not None:
        b_y *= b_z / (1 + tl.exp(-b_z))
    tl.store(p_y, b_y.to(p_y.dtype.element_ty), mask=m_te)
    return b_h
