"""Linear attention, retention and Mamba-2's SSD: a running sum of kᵀv, read by each query, with a decay or none.

One pass over the positions, chunk by chunk. A program owns one head of one sequence and a block of V's columns,
keeps the state S in registers in float32, and reads q, k and v once. No chunk's state goes through memory, and
nothing depends on the number of sequences: a sequence gives the same bits alone and in a batch. A long sequence runs by
segments, all at once, after a first pass over k and v for the states before them.

Legend: B batch, H heads, T positions, BT positions per chunk, K key size, V value size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from argap.kernels.launch import HeadTensors, Launch, LaunchTable, block_size, jit, rows, runs_kernels, strided, tl
from argap.kernels.recurrent.recurrence import chunked_recurrence, for_each_head

SMALLEST_SUM = 1e-6
"""Lower bound on the sum of weights in a division; with ReLU features the sum may be 0."""

NO_DECAY, DECAY_PER_HEAD, DECAY_PER_POSITION = 0, 1, 2

_IN_FLOAT32 = {
    **dict.fromkeys(("16 float32", "32 float32", "64 float32"), Launch({"BT": 32, "BV": 32}, warps=4, stages=2)),
    "128 float32": Launch({"BT": 32, "BV": 32}, warps=4, stages=1),
    "256 float32": Launch({"BT": 16, "BV": 32}, warps=4, stages=1),
    "512 float32": Launch({"BT": 16, "BV": 16}, warps=4, stages=1),
}
LAUNCHES = LaunchTable(
    "linear_attention",
    {
        "hopper": {
            **dict.fromkeys(("16", "32", "64"), Launch({"BT": 64, "BV": 64}, warps=4, stages=4)),
            "128": Launch({"BT": 64, "BV": 64}, warps=4, stages=3),
            "256": Launch({"BT": 64, "BV": 32}, warps=4, stages=2),
            "512": Launch({"BT": 16, "BV": 16}, warps=4, stages=1),
            **_IN_FLOAT32,
        },
        "any": {
            **dict.fromkeys(("16", "32", "64"), Launch({"BT": 64, "BV": 64}, warps=4, stages=2)),
            "128": Launch({"BT": 64, "BV": 32}, warps=4, stages=1),
            "256": Launch({"BT": 32, "BV": 16}, warps=4, stages=1),
            "512": Launch({"BT": 16, "BV": 16}, warps=4, stages=1),
            **_IN_FLOAT32,
        },
    },
)
LARGEST_KEY = 512
LONG, SEGMENT = 32_768, 8192
"""From how many positions on a sequence runs by segments of that length, so that few long sequences fill a GPU."""


def linear_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    log_decay: torch.Tensor | None = None,
    step: torch.Tensor | None = None,
    skip: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
    normalize: bool = False,
    keep_state: bool = True,
    chunk: int | None = 64,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute S_t = a_t S_{t−1} + Δ_t k_tᵀ v_t and y_t = q_t S_t + D v_t.

    Without a_t, Δ and D this is linear attention (arXiv 2006.16236, eqs. 18 to 20), with a decay a for each head
    retention (arXiv 2307.08621, eq. 6), with one for each position Mamba-2's SSD (arXiv 2405.21060, eq. 2), where
    a_t = e^{A Δ_t}.

    Args:
        q, k: ``[B, G, T, K]``, each for H / G neighbouring heads, any strides; a view of ``[B, T, G, K]`` costs no
            copy.
        v: ``[B, H, T, V]``, any strides.
        log_decay: log a ≤ 0, ``[H]`` or ``[B or 1, H, T]``; None: no decay.
        step: Δ, ``[B, H, T]``; None: 1.
        skip: D, ``[H]``; None: 0.
        state: S before the first position, ``[B, H, K, V]``, or ``[B, H, K, V + 1]`` with ``normalize``; None: 0.
        normalize: divide q_t S_t by q_t Σ_{s≤t} Δ_s k_s (each k_s decayed as S is), at least `SMALLEST_SUM`.
        keep_state: return S after the last position.
        chunk: positions that the reference compares at once; None: all.

    Returns:
        y ``[B, H, T, V]`` in the dtype of ``v``, and S after the last position ``[B, H, K, V]`` in float32 or wider,
        or None. With ``normalize`` S has one more column, the sum of keys.

    Runs a kernel on a GPU if no gradient is needed and K ≤ 512: sums in float32, products of float16 and bfloat16 on
    the tensor cores. Otherwise runs the reference, in float32 or wider.
    """
    given = (q, k, v, log_decay, step, skip, state)
    if not runs_kernels(*given) or q.shape[-1] > LARGEST_KEY or q.dtype == torch.float64:
        options = {"step": step, "skip": skip, "normalize": normalize, "keep_state": keep_state, "chunk": chunk}
        return linear_attention_reference(q, k, v, log_decay=log_decay, state=state, **options)
    x = HeadTensors.of(q, k, v, state)
    B, H, T = x.shape[:3]
    if log_decay is not None and log_decay.dim() == 3:
        log_decay = log_decay.float().expand(B, H, T)
    if T < LONG:
        return x.y, _forward(x, log_decay, step, skip, normalize=normalize, keep_state=keep_state)
    last = [
        _in_segments(sequence, g, s, skip, normalize=normalize)
        for sequence, g, s in zip(
            _sequences(x),
            [log_decay] * B if log_decay is None or log_decay.dim() == 1 else log_decay.split(1),
            [None] * B if step is None else step.split(1),
            strict=True,
        )
    ]
    return x.y, torch.cat(last) if keep_state else None


def _forward(
    x: HeadTensors,
    log_decay: torch.Tensor | None,
    step: torch.Tensor | None,
    skip: torch.Tensor | None,
    *,
    normalize: bool,
    keep_state: bool = True,
    output: bool = True,
) -> torch.Tensor | None:
    """Launch the kernel, which fills ``x.y`` if ``output``, and return the last state if ``keep_state``."""
    _, H, T, K, V = x.shape
    kind, decay = NO_DECAY, log_decay
    if log_decay is not None:
        kind = DECAY_PER_POSITION
        if log_decay.dim() == 1:
            kind, decay = DECAY_PER_HEAD, log_decay.float()[None, :, None]
    ht = x.new_state(K, V + normalize) if keep_state else None
    launch = LAUNCHES.at(x.q.device, x.shape_class)
    _forward_kernel[(x.programs(launch),)](
        *strided(x.q, x.k, x.v, x.y if output else None, decay, step, dims=3),
        *(None if skip is None else skip.contiguous(), x.h0, ht, T, H, x.heads_per_key),
        K=K,
        V=V,
        BK=block_size(K),
        DECAY=kind,
        NORMALIZE=normalize,
        WHOLE=T % launch.blocks["BT"] == 0,
        SMALLEST=SMALLEST_SUM,
        **launch.arguments(),
    )
    return ht


def _sequences(x: HeadTensors) -> list[HeadTensors]:
    states = [None] * len(x.v) if x.h0 is None else x.h0.split(1)
    parts = zip(*(part.split(1) for part in (x.q, x.k, x.v, x.y)), states, strict=True)
    return [HeadTensors(*part) for part in parts]


def _in_segments(
    x: HeadTensors,
    log_decay: torch.Tensor | None,
    step: torch.Tensor | None,
    skip: torch.Tensor | None,
    *,
    normalize: bool,
) -> torch.Tensor:
    """Fill ``x.y`` of one long sequence by its segments at once and return the last state.

    A first pass gives what each segment adds to the state, a second one runs them all from the states before them. What
    is left over follows.
    """
    _, _, T, K, V = x.shape
    count = T // SEGMENT
    main, constant = count * SEGMENT, log_decay is not None and log_decay.dim() == 1

    def segments(part: Any) -> Any:
        """Turn ``[1, H, T, ...]`` into ``[count, H, SEGMENT, ...]``, a view; None stays None."""
        return None if part is None else part[:, :, :main].unflatten(2, (count, SEGMENT))[0].transpose(0, 1)

    whole = HeadTensors(segments(x.q), segments(x.k), segments(x.v), segments(x.y), None)
    decays = log_decay if constant else segments(log_decay)
    added = _forward(whole, decays, segments(step), None, normalize=normalize, output=False)
    assert added is not None
    kept = None
    if decays is not None:
        kept = (decays[None] * SEGMENT if constant else decays.sum(-1)).float().exp()[..., None, None]
    state = x.new_state(K, V + normalize).zero_() if x.h0 is None else x.h0
    before = []
    for n in range(count):
        before.append(state)
        state = (state if kept is None else kept[n % len(kept)] * state) + added[n]
    whole = replace(whole, h0=torch.cat(before))
    _forward(whole, decays, segments(step), skip, normalize=normalize, keep_state=False)
    if main == T:
        return state
    q, k, v, y = (part[:, :, main:] for part in (x.q, x.k, x.v, x.y))
    g, left = (part if part is None or part.dim() == 1 else part[:, :, main:] for part in (log_decay, step))
    last = _forward(HeadTensors(q, k, v, y, state), g, left, skip, normalize=normalize)
    assert last is not None
    return last


def linear_attention_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    log_decay: torch.Tensor | None = None,
    step: torch.Tensor | None = None,
    skip: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
    normalize: bool = False,
    keep_state: bool = True,
    chunk: int | None = 64,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute `linear_attention` in PyTorch; differentiable."""
    q, k = (for_each_head(x, v.shape[1]) for x in (q, k))
    if log_decay is not None:
        per_head = log_decay.dim() == 1
        log_decay = log_decay[None, :, None, None].expand(-1, -1, q.shape[2], -1) if per_head else log_decay[..., None]
    values = torch.cat([v, torch.ones_like(v[..., :1])], dim=-1) if normalize else v
    if step is not None:
        values = values * step[..., None]
    y, state = chunked_recurrence(q, k, values, chunk, log_decay, state)
    if normalize:
        y = y[..., :-1] / y[..., -1:].clamp_min(SMALLEST_SUM)
    if skip is not None:
        y = y + skip[:, None, None].to(y.dtype) * v
    return y.to(v.dtype), state if keep_state else None


@jit
def _forward_kernel(
    q,
    k,
    v,
    y,
    g,
    step,
    skip,
    h0,
    ht,
    T,
    H,
    R,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    DECAY: tl.constexpr,
    NORMALIZE: tl.constexpr,
    WHOLE: tl.constexpr,
    SMALLEST: tl.constexpr,
    BT: tl.constexpr,
    BV: tl.constexpr,
):
    # One head of one sequence and BV columns of V. Programs of a head are neighbours in the grid and share q and k, and
    # so do R heads.
    NV: tl.constexpr = (V + BV - 1) // BV
    i_bh = (tl.program_id(0) // NV).to(tl.int64)
    i_b, i_h = i_bh // H, i_bh % H
    o_t = tl.arange(0, BT)
    o_k = tl.arange(0, BK)
    o_v = (tl.program_id(0) % NV) * BV + tl.arange(0, BV)
    o_t64 = o_t.to(tl.int64)[:, None]  # offsets may exceed 2³¹
    p_q = rows(q, i_b, i_h // R, o_t64, o_k)
    p_k = rows(k, i_b, i_h // R, o_t64, o_k)
    p_v = rows(v, i_b, i_h, o_t64, o_v)
    if y is not None:
        p_y = rows(y, i_b, i_h, o_t64, o_v)
    m_k, m_v = o_k < K, o_v < V
    dtype = q[0].dtype.element_ty

    # 1. The initial state b_h = S, and b_z, the sum of keys in its last column.
    COLUMNS: tl.constexpr = V + 1 if NORMALIZE else V
    o_h = i_bh * (K * COLUMNS) + o_k[:, None] * COLUMNS + o_v[None, :]
    o_z = i_bh * (K * COLUMNS) + o_k * COLUMNS + V
    m_h = m_k[:, None] & m_v[None, :]
    b_h = tl.zeros([BK, BV], dtype=tl.float32)
    b_z = tl.zeros([BK], dtype=tl.float32)
    if h0 is not None:
        b_h = tl.load(h0 + o_h, mask=m_h, other=0.0)
        if NORMALIZE:
            b_z = tl.load(h0 + o_z, mask=m_k, other=0.0)

    # 2. Decays that are the same in every chunk. b_d: from key j to query i; b_ds: from the chunk's start;
    #    b_de: to its end; d_c: over the whole chunk.
    m_s = o_t[:, None] >= o_t[None, :]
    b_d = tl.where(m_s, 1.0, 0.0)
    if DECAY == 1:
        log_gamma = tl.load(g[0] + i_h * g[2])
        b_d = tl.exp(tl.where(m_s, (o_t[:, None] - o_t[None, :]) * log_gamma, float("-inf")))
        b_ds = tl.exp((o_t + 1) * log_gamma)
        b_de_whole = tl.exp((BT - 1 - o_t) * log_gamma)
        d_c_whole = tl.exp(BT * log_gamma)
    if DECAY == 2:
        p_g = g[0] + i_b * g[1] + i_h * g[2] + o_t.to(tl.int64) * g[3]
    if step is not None:
        p_step = step[0] + i_b * step[1] + i_h * step[2] + o_t.to(tl.int64) * step[3]
    if skip is not None:
        b_skip = tl.load(skip + i_h).to(tl.float32)

    for start in range(0, T, BT):
        # 3. Load the chunk. If all chunks are complete, no mask is kept.
        left = BT if WHOLE else T - start
        m_t = o_t < left
        if y is not None:
            b_q = tl.load(p_q, mask=m_t[:, None] & m_k[None, :], other=0.0)
        b_k = tl.load(p_k, mask=m_t[:, None] & m_k[None, :], other=0.0)
        b_v = tl.load(p_v, mask=m_t[:, None] & m_v[None, :], other=0.0)
        # 4. This chunk's decays; none exceeds 1.
        if DECAY == 1:
            b_de, d_c = b_de_whole, d_c_whole
            if left < BT:
                b_de = tl.exp(tl.where(m_t, left - 1 - o_t, 0) * log_gamma)
                d_c = tl.exp(left * log_gamma)
        if DECAY == 2:
            b_g = tl.load(p_g, mask=m_t, other=0.0)
            b_gc = tl.cumsum(b_g, 0)
            g_n = tl.sum(b_g, 0)
            b_d = tl.exp(tl.where(m_s, b_gc[:, None] - b_gc[None, :], float("-inf")))
            b_ds = tl.exp(b_gc)
            b_de = tl.exp(tl.minimum(g_n - b_gc, 0.0))
            d_c = tl.exp(g_n)
            p_g += BT * g[3]
        if step is not None:  # part of the decays of a key, to a query and to the chunk's end
            b_step = tl.load(p_step, mask=m_t, other=0.0).to(tl.float32)
            b_dk = b_d * b_step[None, :]
            b_w = b_step
            if DECAY != 0:
                b_w = b_de * b_step
            p_step += BT * step[3]
        else:
            b_dk = b_d
            if DECAY != 0:
                b_w = b_de
        # 5. The output: earlier chunks through the state, this one pair by pair. With a decay the state's part is
        #    scaled as it is added.
        if y is not None:
            b_s = tl.dot(b_q, tl.trans(b_k), input_precision="tf32x3")
            if DECAY != 0:
                b_s *= b_dk
            else:
                b_s = tl.where(m_s, b_s, 0.0)
                if step is not None:
                    b_s *= b_step[None, :]
            if NORMALIZE:
                b_qz = tl.sum(b_q.to(tl.float32) * b_z[None, :], 1)
                if DECAY != 0:
                    b_qz *= b_ds
                b_total = tl.maximum(tl.sum(b_s, 1) + b_qz, SMALLEST)
            if skip is not None:  # a position's score with itself; what is divided below is multiplied here
                b_self = b_skip
                if NORMALIZE:
                    b_self = (b_skip * b_total)[:, None]
                b_s = tl.where(o_t[:, None] == o_t[None, :], b_s + b_self, b_s)
            if DECAY == 0:
                b_y = tl.dot(b_q, b_h.to(dtype), input_precision="tf32x3")
                b_y = tl.dot(b_s.to(dtype), b_v, b_y, input_precision="tf32x3")
            else:
                b_y = tl.dot(b_s.to(dtype), b_v, input_precision="tf32x3")
                b_y += tl.dot(b_q, b_h.to(dtype), input_precision="tf32x3") * b_ds[:, None]
            if NORMALIZE:
                b_y = b_y / b_total[:, None]
            tl.store(p_y, b_y.to(y[0].dtype.element_ty), mask=m_t[:, None] & m_v[None, :])
            p_q += BT * q[3]
            p_y += BT * y[3]
        # 6. The state after the chunk.
        if DECAY != 0 or step is not None:
            b_v = (b_v * b_w[:, None]).to(dtype)
        if DECAY != 0:
            b_h *= d_c
        if NORMALIZE:
            b_kz = b_k.to(tl.float32)
            if DECAY != 0 or step is not None:
                b_kz *= b_w[:, None]
            if DECAY != 0:
                b_z *= d_c
            b_z += tl.sum(b_kz, 0)
        b_h = tl.dot(tl.trans(b_k), b_v, b_h, input_precision="tf32x3")
        p_k += BT * k[3]
        p_v += BT * v[3]

    # 7. The final state.
    if ht is not None:
        tl.store(ht + o_h, b_h, mask=m_h)
        if NORMALIZE:
            tl.store(ht + o_z, b_z, mask=m_k)  # every block of V's columns stores the same sum
