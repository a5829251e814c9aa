"""Gradients of the selective scan, in one kernel that walks from the last position to the first.

Let s be the step before softplus, Δ = softplus(s), a_t = e^{Δ_t A}, h_t = a_t h_{t−1} + Δ_t u_t B_t,
p_t = C_t · h_t + D u_t and y_t = p_t SiLU(z_t) (`argap.kernels.scan.selective_scan`). Write dx for the gradient with
respect to x and σ for the logistic function; dy and the gradient of the last state are given. Then

- dp_t = dy_t SiLU(z_t), and dz_t = dy_t p_t σ(z_t) (1 + z_t (1 − σ(z_t)));
- dh_t = C_t dp_t + a_{t+1} dh_{t+1}: the same recurrence in the other direction; before the first position a_1 dh_1;
- dC_t = Σ_e dp_t h_t and dB_t = Σ_e Δ_t u_t dh_t, sums over the channels, and dD = Σ_t dp_t u_t;
- du_t = D dp_t + Δ_t (B_t · dh_t), and dA = Σ_t Δ_t r_t with r_t = dh_t a_t h_{t−1};
- ds_t = σ(s_t) (u_t (B_t · dh_t) + A · r_t).

The states h_{t−1} are not kept: the forward kernel stores one every `STORED_EVERY` positions. From it the states
before each tile of the chunk are recomputed into a scratch of the chunk's size, and from these the states of a tile, in
registers. Each program's sums over channels go to memory of their own, which PyTorch adds up, so that the same input
gives the same bits. For N = 16 these sums take 4 bytes per position and channel, twice the memory of ``u`` in
16 bits.

Legend: B batch, T positions, E channels, N states per channel, BT positions per tile, BA positions per tile where
states are recomputed, L `STORED_EVERY`, P programs that share a sequence's channels.
"""

from __future__ import annotations

import torch

from argap.kernels.launch import (
    Launch,
    LaunchTable,
    block_size,
    contiguous_float32,
    jit,
    strided,
    tl,
    triton,
    unit_stride,
)

# By the states of a channel. A thread has at most 16 of them, all of one channel.
LAUNCHES = LaunchTable(
    "selective_scan_backward",
    {
        "any": {
            str(N): Launch({"BE": 32, "BT": 2 if N == 16 else 1, "BA": 4}, warps=N // 16, stages=1)
            for N in (16, 32, 64)
        }
    },
)
STORED_EVERY = 32
"""L: positions from one stored state to the next; a multiple of BT and BA and of twice the forward kernel's BT."""

Gradients = tuple[torch.Tensor, ...]


def selective_scan_backward(
    dy: torch.Tensor,
    dht: torch.Tensor | None,
    states: torch.Tensor,
    u: torch.Tensor,
    step: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    skip: torch.Tensor | None,
    gate: torch.Tensor | None,
) -> Gradients:
    """Compute the gradients above, in the dtypes of their tensors.

    Args:
        dy: ``[B, T, E]``.
        dht: the gradient with respect to the state after the last position, ``[B, E, N]``; None: 0.
        states: the states before positions 0, L, 2L, …, float32 ``[B, ⌈T/L⌉, N, E]``.
        u, step, A, B, C, skip, gate: the arguments of `argap.kernels.scan.selective_scan.selective_scan`.

    Returns:
        du, dstep, dA, dB, dC, dskip, dgate, and the gradient with respect to the state before the first position,
        float32 ``[B, E, N]``. Without skip or gate their gradients have no elements.
    """
    (batch, T, E), N = u.shape, A.shape[1]
    launch = LAUNCHES.at(u.device, str(block_size(N)))
    programs = triton.cdiv(E, launch.blocks["BE"])
    sums = [u.new_empty(programs, batch, T, N, dtype=torch.float32) for _ in range(2)]  # dB and dC
    by_sequence = [u.new_empty(batch, E, N, dtype=torch.float32) for _ in range(2)]  # dA and that of the state
    scratch = u.new_empty(batch, STORED_EVERY // launch.blocks["BT"], N, E, dtype=torch.float32)
    dskip = None if skip is None else skip.new_empty(batch, E, dtype=torch.float32)
    du, dstep = u.new_empty(batch, T, E), step.new_empty(batch, T, E)
    dgate = None if gate is None else gate.new_empty(batch, T, E)
    inputs = (unit_stride(u), unit_stride(step), unit_stride(B.float()), unit_stride(C.float()))
    _backward_kernel[(programs, batch, 1)](
        *strided(*inputs, unit_stride(gate), unit_stride(dy), dims=2),
        *(contiguous_float32(A), unit_stride(skip), states, scratch, contiguous_float32(dht)),
        *(du, dstep, dgate, *sums, by_sequence[0], dskip, by_sequence[1], T),
        E=E,
        N=N,
        BN=triton.next_power_of_2(N),
        L=STORED_EVERY,
        **launch.arguments(),
    )
    dB, dC = (x.sum(0) for x in sums)
    return (
        du,
        dstep,
        by_sequence[0].sum(0).to(A.dtype),
        dB.to(B.dtype),
        dC.to(C.dtype),
        u.new_empty(0) if skip is None or dskip is None else dskip.sum(0).to(skip.dtype),
        u.new_empty(0) if dgate is None else dgate,
        by_sequence[1],
    )


@jit
def _backward_kernel(
    u,
    step,
    B,
    C,
    gate,
    dy,
    A,
    skip,
    states,
    scratch,
    dht,
    du,
    dstep,
    dgate,
    dB,
    dC,
    dA,
    dskip,
    dh0,
    T,
    E: tl.constexpr,
    N: tl.constexpr,
    BN: tl.constexpr,
    BE: tl.constexpr,
    BT: tl.constexpr,
    BA: tl.constexpr,
    L: tl.constexpr,
):
    i_e, i_b = tl.program_id(0), tl.program_id(1).to(tl.int64)
    # BE channels of one sequence. ``zero`` keeps the compiler from giving several to a thread (see the forward kernel).
    zero = tl.num_programs(2) - 1
    o_e = i_e * BE + tl.arange(0, BE)
    o_t, o_a, o_n = tl.arange(0, BT), tl.arange(0, BA), tl.arange(0, BN)
    m_e, m_n = (o_e < E)[None, :], (o_n < N)[None, :]
    o_col = (o_e + zero)[None, :]
    m_h = (o_n < N)[:, None] & m_e
    o_h = o_col * N + o_n[:, None]  # in a state [E, N]
    o_s = o_n[:, None] * E + o_col  # in a stored state [N, E]
    chunks = tl.cdiv(T, L)
    p_scratch = scratch + i_b * ((L // BT) * N * E) + o_s
    p_row = i_b * T
    p_dB = dB + (i_e * tl.num_programs(1) + i_b) * T * N + o_n
    p_dC = dC + (i_e * tl.num_programs(1) + i_b) * T * N + o_n

    # 1. Parameters, and the gradient of the state after the last position; A in units of log 2, for exp2.
    b_A = tl.load(A + o_h, mask=m_h, other=0.0) * 1.4426950408889634  # log₂ e
    b_skip = tl.zeros([1, BE], dtype=tl.float32)
    if skip is not None:
        b_skip = tl.load(skip + o_col, mask=m_e, other=0.0).to(tl.float32)
    b_dh = tl.zeros([BN, BE], dtype=tl.float32)
    if dht is not None:
        b_dh = tl.load(dht + i_b * E * N + o_h, mask=m_h, other=0.0)
    b_dA = tl.zeros([BN, BE], dtype=tl.float32)
    b_dskip = tl.zeros([BT, BE], dtype=tl.float32)

    for i_c in range(chunks - 1, -1, -1):
        # 2. The states before the tiles of a chunk, BA positions at a time, while the next ones are loaded.
        first = i_c * L
        length = tl.minimum(L, T - first)
        b_h = tl.load(states + (i_b * chunks + i_c) * N * E + o_s, mask=m_h, other=0.0)
        b_next_u = _load(u, i_b, first, T, o_a, o_col, m_e)
        b_next_step = _load(step, i_b, first, T, o_a, o_col, m_e)
        b_next_B = _load(B, i_b, first, T, o_a, o_n[None, :], m_n)
        tl.debug_barrier()  # the scratch of the chunk after it has been read
        for i_a in range(tl.cdiv(length, BA)):
            start = first + i_a * BA
            b_delta = _step_size(b_next_step, start, T, o_a)
            b_du = b_delta * b_next_u.to(tl.float32)
            b_B = tl.broadcast_to(b_next_B[:, :, None], (BA, BN, BE))
            b_next_u = _load(u, i_b, start + BA, T, o_a, o_col, m_e)
            b_next_step = _load(step, i_b, start + BA, T, o_a, o_col, m_e)
            b_next_B = _load(B, i_b, start + BA, T, o_a, o_n[None, :], m_n)
            for i in tl.static_range(BA):
                if i % BT == 0:
                    tl.store(p_scratch + ((i_a * BA + i) // BT) * (N * E), b_h, mask=m_h)
                b_h = tl.exp2(position(b_delta, i)[None, :] * b_A) * b_h + position(b_du, i)[None, :] * position(b_B, i)
        tl.debug_barrier()

        # 3. The same tiles from the last to the first.
        tiles = tl.cdiv(length, BT)
        start = first + (tiles - 1) * BT
        b_next_u = _load(u, i_b, start, T, o_t, o_col, m_e)
        b_next_step = _load(step, i_b, start, T, o_t, o_col, m_e)
        b_next_dy = _load(dy, i_b, start, T, o_t, o_col, m_e)
        b_next_z = b_next_u
        if gate is not None:
            b_next_z = _load(gate, i_b, start, T, o_t, o_col, m_e)
        b_next_B = _load(B, i_b, start, T, o_t, o_n[None, :], m_n)
        b_next_C = _load(C, i_b, start, T, o_t, o_n[None, :], m_n)
        b_next_h = tl.load(p_scratch + (tiles - 1) * (N * E), mask=m_h, other=0.0)
        for i_t in range(tiles - 1, -1, -1):
            start = first + i_t * BT
            b_u, b_step, b_h = b_next_u.to(tl.float32), b_next_step.to(tl.float32), b_next_h
            b_dy, b_z = b_next_dy.to(tl.float32), b_next_z.to(tl.float32)
            b_delta = _step_size(b_next_step, start, T, o_t)
            b_B = tl.broadcast_to(b_next_B[:, :, None], (BT, BN, BE))
            b_C = tl.broadcast_to(b_next_C[:, :, None], (BT, BN, BE))
            before = tl.maximum(i_t - 1, 0)
            b_next_u = _load(u, i_b, first + before * BT, T, o_t, o_col, m_e)
            b_next_step = _load(step, i_b, first + before * BT, T, o_t, o_col, m_e)
            b_next_dy = _load(dy, i_b, first + before * BT, T, o_t, o_col, m_e)
            b_next_z = b_next_u
            if gate is not None:
                b_next_z = _load(gate, i_b, first + before * BT, T, o_t, o_col, m_e)
            b_next_B = _load(B, i_b, first + before * BT, T, o_t, o_n[None, :], m_n)
            b_next_C = _load(C, i_b, first + before * BT, T, o_t, o_n[None, :], m_n)
            b_next_h = tl.load(p_scratch + before * (N * E), mask=m_h, other=0.0)
            b_input = b_delta * b_u
            b_dp = b_dy
            b_sigmoid = b_dy
            if gate is not None:
                b_sigmoid = 1 / (1 + tl.exp(-b_z))
                b_dp = b_dy * b_z * b_sigmoid

            # 4. The states before each position, and from those after it dC.
            b_states = tl.zeros([BT, BN, BE], dtype=tl.float32)
            b_p = b_skip * b_u
            for i in tl.static_range(BT):
                m_i = (o_t == i)[:, None]
                b_states = tl.where(m_i[:, :, None], b_h[None, :, :], b_states)
                b_h = tl.exp2(position(b_delta, i)[None, :] * b_A) * b_h + position(b_input, i)[None, :] * position(
                    b_B, i
                )
                b_p = tl.where(m_i, b_p + tl.sum(b_h * position(b_C, i), 0)[None, :], b_p)
                b_sum = _sum_channels(b_h * position(b_dp, i)[None, :])
                tl.store(p_dC + (start + i).to(tl.int64) * N, b_sum, mask=(o_n < N) & (start + i < T))

            # 5. The gradient of the states, position by position from the last.
            b_dinput = tl.zeros([BT, BE], dtype=tl.float32)  # B · dh
            b_ddecay = tl.zeros([BT, BE], dtype=tl.float32)  # A · r
            for i in tl.static_range(BT - 1, -1, -1):
                m_i = (o_t == i)[:, None]
                b_dh += position(b_C, i) * position(b_dp, i)[None, :]
                b_sum = _sum_channels(b_dh * position(b_input, i)[None, :])
                tl.store(p_dB + (start + i).to(tl.int64) * N, b_sum, mask=(o_n < N) & (start + i < T))
                b_dinput = tl.where(m_i, tl.sum(b_dh * position(b_B, i), 0)[None, :], b_dinput)
                b_dh *= tl.exp2(position(b_delta, i)[None, :] * b_A)
                b_r = b_dh * position(b_states, i)
                b_dA += position(b_delta, i)[None, :] * b_r
                b_ddecay = tl.where(m_i, tl.sum(b_A * b_r, 0)[None, :], b_ddecay)

            # 6. The rest, by position and channel.
            o_out = (p_row + start + o_t)[:, None] * E + o_col
            m_out = (start + o_t < T)[:, None] & m_e
            tl.store(du + o_out, (b_skip * b_dp + b_delta * b_dinput).to(du.dtype.element_ty), mask=m_out)
            b_ddelta = b_u * b_dinput + 0.6931471805599453 * b_ddecay  # log 2
            b_dstep = b_ddelta / (1 + tl.exp(-b_step))
            tl.store(dstep + o_out, b_dstep.to(dstep.dtype.element_ty), mask=m_out)
            if gate is not None:
                b_dgate = b_dy * b_p * b_sigmoid * (1 + b_z * (1 - b_sigmoid))
                tl.store(dgate + o_out, b_dgate.to(dgate.dtype.element_ty), mask=m_out)
            b_dskip += b_dp * b_u
    # 7. Sums over the positions, and the gradient of the state before the first.
    tl.store(dA + i_b * E * N + o_h, b_dA, mask=m_h)
    tl.store(dh0 + i_b * E * N + o_h, b_dh, mask=m_h)
    if skip is not None:
        tl.store(dskip + i_b * E + o_e + zero, tl.sum(b_dskip, 0), mask=o_e < E)


@jit
def _load(x, i_b, start, T, o_t, o_col, m_col):
    # A tile of the `strided` x: positions from ``start``, 0 where T ends.
    o_row = start + o_t
    return tl.load(
        x[0] + i_b * x[1] + o_row.to(tl.int64)[:, None] * x[2] + o_col, mask=(o_row < T)[:, None] & m_col, other=0.0
    )


@jit
def _step_size(b_step, start, T, o_t):
    # Past the end Δ = 0: the state stays unchanged.
    return tl.where((start + o_t < T)[:, None], softplus(b_step.to(tl.float32)), 0.0)


@jit
def position(b_x, i: tl.constexpr):
    """Return position i of a tile ``[BT, …]``."""
    # x + −0 = x, so the compiler drops this sum; Triton takes -0.0 for 0.0.
    nothing = tl.full([1, 1], -(2**31), tl.int32).to(tl.float32, bitcast=True)
    o_t = tl.arange(0, b_x.shape[0])
    if len(b_x.shape) == 3:
        return tl.sum(tl.where((o_t == i)[:, None, None], b_x, nothing[:, :, None]), 0)
    else:
        return tl.sum(tl.where((o_t == i)[:, None], b_x, nothing), 0)


@jit
def _sum_channels(b_x):
    # The sums of the rows of a tile [BN, BE]. `tl.sum` alone would take five shuffles a row. To split a row into
    # halves, the compiler first gives each thread 16 neighbours of one row, through shared memory and once for all
    # halvings, and adds what a thread has.
    for _ in tl.static_range(4):  # pyright: ignore[reportGeneralTypeIssues]
        if b_x.shape[1] > 2:
            b_even, b_odd = tl.split(tl.reshape(b_x, [b_x.shape[0], b_x.shape[1] // 2, 2]))
            b_x = b_even + b_odd
    return tl.sum(b_x, 1)


@jit
def softplus(b_x):
    """Compute max(x, 0) + log(1 + e^{−|x|})."""
    # With z = e^{−|x|} in [0, 1] the polynomial is log(1 + z) / z, interpolated in Chebyshev nodes: its relative error
    # is 2·10⁻⁷ in float32, so small steps are exact.
    b_z = tl.exp2(tl.abs(b_x) * -1.4426950408889634)  # log₂ e
    b_log = 0.0052534579 * b_z - 0.029588507
    b_log = b_log * b_z + 0.078361668
    b_log = b_log * b_z - 0.1367477
    b_log = b_log * b_z + 0.19111431
    b_log = b_log * b_z - 0.24844369
    b_log = b_log * b_z + 0.33319271
    b_log = b_log * b_z - 0.49999502
    b_log = b_log * b_z + 1.0
    return tl.maximum(b_x, 0.0) + b_z * b_log
