"""The delta rule, gated or not: every position moves the state towards its value by a step β.

S_t = S_{t−1} + β_t k_tᵀ (v_t − k_t S_{t−1}) and y_t = q_t S_t (arXiv 2406.06484, section 2.2, transposed).

In a chunk after the state S the values actually added are V̂ = M (V − K S) with
M = (I + tril(diag(β) K Kᵀ, −1))⁻¹ diag(β), the UT transform of that paper's section 3. M has BT² entries and does not
depend on S: the first of two kernels (`argap.kernels.recurrent.delta_rule_inverse`) computes it for all chunks at once.
The second walks over the chunks with S in registers and forms V̂ there, so that W = M K, U = M V and the chunks' states
never go through memory. The scores tril(Q Kᵀ) of wide keys come from a kernel of their own.

If the state decays before it moves, by a factor for each position (the gated delta rule) or for each position and
channel of the key (Kimi delta attention), the products of a chunk have the factors exp(G_t − G_s), where G is the
running sum of its log decays. A factor for each channel does not leave the products: a third kernel
(`argap.kernels.recurrent.decayed_pairs`) computes them, and the scan reads queries and keys that are decayed already.

Legend: B batch, H heads, T positions, BT positions per chunk, NT = ⌈T / BT⌉ chunks, K key size, V value size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from argap.kernels.launch import (
    HeadTensors,
    Launch,
    LaunchTable,
    block_size,
    common_dtype,
    device_class,
    jit,
    multiprocessors,
    runs_kernels,
    strided,
    tl,
)
from argap.kernels.recurrent.decayed_pairs import decayed_pairs
from argap.kernels.recurrent.delta_rule_inverse import (
    CHUNK,
    SMALLEST_NORM,
    chunk_inverses,
    chunk_scores,
    inverse_norms,
    invert_products,
)
from argap.kernels.recurrent.recurrence import decayed_scores, for_each_head, in_chunks

LARGEST_KEY_BYTES = 512
"""The largest key the kernels support: K 256 in float16 and bfloat16, 128 in float32."""

LARGEST_DECAYED_KEY = 128
"""The same if every channel has its own decay."""
CHANNEL_CHUNK = 16
"""The longest chunk of the reference if every channel has its own decay: it holds K decays for each pair."""

SCORES_FIRST = ("256",)
"""Shape classes whose scores are computed before the scan, once for all programs of a head. Within the scan they would
be 36% of its FLOPs in blocks of 32 columns of V, and 22% in blocks of 64."""

_FLOAT32_KEYS = ("16 float32", "32 float32", "64 float32", "128 float32")


def _launch(BV: int, warps: int, stages: int, *, transposed: bool = True) -> Launch:
    return Launch({"BV": BV, "TRANSPOSED": int(transposed)}, warps, stages)


LAUNCHES = LaunchTable(
    "delta_rule: scan",
    {
        "hopper": {
            **dict.fromkeys(("16", "32", "64"), _launch(64, warps=4, stages=3)),
            "128": _launch(32, warps=4, stages=3),
            "256": _launch(128, warps=8, stages=2),
            **dict.fromkeys(_FLOAT32_KEYS, _launch(32, warps=8, stages=1)),
        },
        "any": {
            **dict.fromkeys(("16", "32", "64"), _launch(32, warps=4, stages=2)),
            "128": _launch(32, warps=4, stages=1),
            "256": _launch(16, warps=4, stages=1),
            **dict.fromkeys(_FLOAT32_KEYS, _launch(16, warps=4, stages=1)),
        },
    },
)

NARROWER = {
    "256": (
        _launch(64, warps=4, stages=2, transposed=False),
        _launch(32, warps=4, stages=2, transposed=False),
    )
}
"""On Hopper, from wide to narrow: used where wider blocks of V would leave half of the multiprocessors idle."""


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    *,
    log_decay: torch.Tensor | None = None,
    normalize: bool = False,
    norm_eps: float = 0.0,
    scale: float = 1.0,
    state: torch.Tensor | None = None,
    chunk: int | None = CHUNK,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute S_t = D_t + β_t k_tᵀ (v_t − k_t D_t) with D_t = a_t S_{t−1}, and y_t = s q_t S_t.

    Without the decay a_t this is DeltaNet (arXiv 2406.06484), with one for each head and position the gated delta rule
    (arXiv 2412.06464, eq. 10), with one for each channel of the key, D_t = diag(a_t) S_{t−1}, Kimi delta attention
    (arXiv 2510.26692, eq. 1).

    Args:
        q, k: ``[B, G, T, K]``, each for H / G neighbouring heads, any strides; a view of ``[B, T, G, K]`` costs no
            copy.
        v: ``[B, H, T, V]``, any strides.
        beta: ``[B, H, T]``.
        log_decay: log a ≤ 0, ``[B, H, T]`` or ``[B, H, T, K]``; None: no decay.
        scale: s.
        normalize: divide each q and k by its Euclidean norm, as `torch.nn.functional.normalize` does. Keys longer than
            √(2/β) let S grow without bound.
        norm_eps: ε of the norm √(‖x‖² + ε), as flash-linear-attention has it; 0: ‖x‖, at least `SMALLEST_NORM`.
        state: S before the first position, ``[B, H, K, V]``; None: 0.
        chunk: positions that the reference solves for at once; None: all.

    Returns:
        y ``[B, H, T, V]`` in the dtype of ``v``, and S after the last position ``[B, H, K, V]`` in float32 or wider.
        If β = 2 and one key repeats, S alternates and keeps every rounding error: bfloat16 is too coarse for that.

    Runs kernels on a GPU if no gradient is needed and a key has at most `LARGEST_KEY_BYTES`, with a decay for each
    channel `LARGEST_DECAYED_KEY` channels: S and the inverse in float32, products of float16 and bfloat16 on the tensor
    cores. Otherwise runs the reference, in float32 or wider.
    """
    dtype = common_dtype(q, k, v)
    fits = q.shape[-1] * dtype.itemsize <= LARGEST_KEY_BYTES and dtype.itemsize <= 4
    by_channel = log_decay is not None and log_decay.dim() == 4
    if by_channel:
        fits = fits and q.shape[-1] <= LARGEST_DECAYED_KEY
    options = {"log_decay": log_decay, "normalize": normalize, "norm_eps": norm_eps, "scale": scale, "chunk": chunk}
    if not (runs_kernels(q, k, v, beta, log_decay, state) and fits):
        return delta_rule_reference(q, k, v, beta, state=state, **options)
    if padded := -q.shape[-1] % 16 if q.shape[-1] > 128 else 0:
        # Triton 3.6 loads other keys of more than 128 channels wrongly on Hopper.
        q, k = F.pad(q, (0, padded)), F.pad(k, (0, padded))
        state = None if state is None else F.pad(state, (0, 0, 0, padded))
        y, ht = delta_rule(q, k, v, beta, state=state, **options)
        return y, ht[:, :, :-padded]
    if by_channel:
        q, k = (for_each_head(x, v.shape[1]) for x in (q, k))
    x = HeadTensors.of(q, k, v, state)
    _, H, T, K, V = x.shape
    ht = x.new_state(K, V)
    norms = inverse_norms(x.q, x.k, norm_eps) if normalize else None
    read, decays, sums = (x.q, x.k, x.k), None, None
    if log_decay is not None and by_channel:
        pairs = decayed_pairs(x.q, x.k, log_decay, norms, scale)
        inverse, scores = invert_products(pairs.lower, beta, x.k.dtype), pairs.scores
        read, decays, norms, scale = (pairs.q, pairs.k, pairs.left), pairs.decays, None, 1.0
    else:
        inverse, sums = chunk_inverses(x.k, beta, norms, log_decay)
        scores = chunk_scores(x.q, x.k, H, sums) if x.shape_class in SCORES_FIRST else None
    launch = _scan_launch(x)
    _scan_kernel[(x.programs(launch),)](
        *strided(*read, x.v, x.y, dims=3),
        *(inverse, scores, norms, sums, decays, x.h0, ht, T, H, x.heads_per_key, float(scale)),
        K=K,
        V=V,
        BK=block_size(K),
        BT=CHUNK,
        **launch.arguments(),
    )
    return x.y, ht


def _scan_launch(x: HeadTensors) -> Launch:
    """Choose the widest blocks of V whose programs keep more than half of the multiprocessors busy, or the narrowest.

    All give the same bits, so that a sequence does not depend on the others in its batch.
    """
    device = x.q.device
    launches = [LAUNCHES.at(device, x.shape_class)]
    if device_class(device) == "hopper":
        launches += NARROWER.get(x.shape_class, ())
    busy = (launch for launch in launches if 2 * x.programs(launch) > multiprocessors(device))
    return next(busy, launches[-1])


def delta_rule_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    *,
    log_decay: torch.Tensor | None = None,
    normalize: bool = False,
    norm_eps: float = 0.0,
    scale: float = 1.0,
    state: torch.Tensor | None = None,
    chunk: int | None = CHUNK,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `delta_rule` in PyTorch; differentiable.

    With queries and keys decayed from a chunk's start, Q̇ = Q e^G and K̇ = K e^G, and A the decayed products of keys,
    the added values of a chunk are U − W S with (I + tril(diag(β) A, −1)) [W, U] = diag(β) [K̇, V]: one triangular solve
    for all chunks.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    length = q.shape[2]
    size = length if chunk is None else min(chunk, length)
    decay = None
    if log_decay is not None:
        if log_decay.dim() == 3:
            log_decay = log_decay[..., None]
        elif chunk is not None:
            size = min(size, CHANNEL_CHUNK)
    out_dtype = v.dtype
    with torch.autocast(q.device.type, enabled=False):
        q, k = (for_each_head(x, v.shape[1]) for x in (q, k))
        q, k, v, beta = (in_chunks(x.to(dtype), size) for x in (q, k, v, beta[..., None]))
        if normalize:
            q, k = (normalized(x, norm_eps) for x in (q, k))
        if scale != 1:
            q = q * scale
        # 1. Products of the pairs in a chunk; queries and keys decayed from its start, keys to its end.
        q_decayed, k_decayed, k_left, chunk_decay = q, k, k, None
        if log_decay is not None:
            decay = in_chunks(log_decay.to(dtype), size).cumsum(dim=-2)
            total = decay[..., -1:, :]
            q_decayed, k_decayed = q * decay.exp(), k * decay.exp()
            k_left, chunk_decay = k * (total - decay).exp(), total.exp().mT
        lower = (beta * decayed_scores(k, k, decay)).tril(-1)
        scores = decayed_scores(q, k, decay)
        # 2. W and U of every chunk; the solver takes the diagonal to be 1.
        right = torch.cat([beta * k_decayed, beta * v], dim=-1)
        solved = torch.linalg.solve_triangular(lower, right, upper=False, unitriangular=True)
        w, u = solved.split((k.shape[-1], v.shape[-1]), dim=-1)
        # 3. Chunk by chunk: the added values, the output, the state.
        h = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1]) if state is None else state.to(dtype)
        outputs = []
        for n in range(q.shape[2]):
            added = u[:, :, n] - w[:, :, n] @ h
            outputs.append(q_decayed[:, :, n] @ h + scores[:, :, n] @ added)
            h = (h if chunk_decay is None else chunk_decay[:, :, n] * h) + k_left[:, :, n].mT @ added
        return torch.stack(outputs, dim=2).flatten(2, 3)[:, :, :length].to(out_dtype), h


def normalized(x: torch.Tensor, norm_eps: float) -> torch.Tensor:
    """Divide ``x [..., K]`` by the norm of `delta_rule`; differentiable."""
    if norm_eps:
        return x * (x.square().sum(dim=-1, keepdim=True) + norm_eps).rsqrt()
    return F.normalize(x, dim=-1, eps=SMALLEST_NORM)


# For T = 1 Triton would leave out the loop; the assembler that it brings, of CUDA 12.8, then computes addresses in
# shared memory for Hopper from a register that nothing has written (`tests/unit/kernels/test_kernels_compile.py`).
@jit(unspecialized=("T",))
def _scan_kernel(
    q,
    k,
    left,
    v,
    y,
    m,
    scores,
    norms,
    sums,
    decays,
    h0,
    ht,
    T,
    H,
    R,
    scale,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BT: tl.constexpr,
    BV: tl.constexpr,
    TRANSPOSED: tl.constexpr,
):
    # One head of one sequence and BV columns of V. With a decay for each channel, q and k are decayed from the chunk's
    # start, and `left` is k decayed to its end; otherwise `left` is not read. If TRANSPOSED, b_h, b_kh, b_added and b_y
    # hold transposes: each product then takes the previous result as its left operand, straight from registers, and a
    # loaded block as its right. Keys of 256 leave too few registers for both S and the operand made from it, which is
    # in shared memory if S is not transposed.
    NV: tl.constexpr = (V + BV - 1) // BV
    i_bh = (tl.program_id(0) // NV).to(tl.int64)
    i_b, i_h = i_bh // H, i_bh % H
    o_t = tl.arange(0, BT)
    o_k = tl.arange(0, BK)
    o_v = (tl.program_id(0) % NV) * BV + tl.arange(0, BV)
    # Offsets from the first chunk may exceed 2³¹; those within a chunk start at its first position.
    p_q = q[0] + i_b * q[1] + i_h // R * q[2]  # R heads share q and k
    p_k = k[0] + i_b * k[1] + i_h // R * k[2]
    p_v = v[0] + i_b * v[1] + i_h * v[2]
    p_y = y[0] + i_b * y[1] + i_h * y[2]
    o_q = o_t[:, None] * q[3] + o_k[None, :]
    o_kk = o_t[:, None] * k[3] + o_k[None, :]
    o_vv = o_t[:, None] * v[3] + o_v[None, :]
    o_y = o_t[:, None] * y[3] + o_v[None, :]
    NT = tl.cdiv(T, BT)
    p_m = m + i_bh * NT * (BT * BT)
    o_m = o_t[:, None] * BT + o_t[None, :]
    if scores is not None:
        p_s = scores + i_bh * NT * (BT * BT)
    m_m = (o_t[:, None] // 16) >= (o_t[None, :] // 16)  # the blocks of 16 that the first kernel writes
    m_k, m_v = o_k < K, o_v < V
    dtype = q[0].dtype.element_ty
    if norms is not None:
        p_rq = norms + i_bh // R * (NT * BT) + o_t
        p_rk = p_rq + (tl.num_programs(0) // NV // R).to(tl.int64) * (NT * BT)
    if sums is not None:
        p_c = sums + i_bh * (NT * BT)
    if decays is not None:
        p_d = decays + i_bh * (NT * K) + o_k
        p_l = left[0] + i_b * left[1] + i_h * left[2]
        o_l = o_t[:, None] * left[3] + o_k[None, :]

    # 1. The initial state.
    if TRANSPOSED:
        o_h = i_bh * (K * V) + o_k[None, :] * V + o_v[:, None]
        m_h = m_v[:, None] & m_k[None, :]
        b_h = tl.zeros([BV, BK], dtype=tl.float32)
    else:
        o_h = i_bh * (K * V) + o_k[:, None] * V + o_v[None, :]
        m_h = m_k[:, None] & m_v[None, :]
        b_h = tl.zeros([BK, BV], dtype=tl.float32)
    if h0 is not None:
        b_h = tl.load(h0 + o_h, mask=m_h, other=0.0)

    for start in range(0, T, BT):
        m_t = (o_t < T - start)[:, None]
        b_q = tl.load(p_q + o_q, mask=m_t & m_k[None, :], other=0.0)
        b_k = tl.load(p_k + o_kk, mask=m_t & m_k[None, :], other=0.0)
        b_v = tl.load(p_v + o_vv, mask=m_t & m_v[None, :], other=0.0)
        b_m = tl.load(p_m + o_m, mask=m_m, other=0.0)
        b_hc = b_h.to(dtype)
        # 2. V̂ = M (V − e^G K S), the values that the chunk adds. b_rk and b_rq are one over the norms of k and q; b_c
        #    is G, the running sum of log decays, and b_e the last of it.
        b_kh = _product(b_k, b_hc, None, TRANSPOSED)
        if norms is not None:
            b_rk = tl.load(p_rk)
            b_kh *= _each_row(b_rk, TRANSPOSED)
        if sums is not None:
            b_c = tl.load(p_c + o_t)
            b_e = tl.load(p_c + BT - 1)
            b_kh *= _each_row(tl.exp(b_c), TRANSPOSED)
        b_error = _turned(b_v, TRANSPOSED).to(tl.float32) - b_kh
        b_added = _product(b_m, b_error.to(dtype), None, TRANSPOSED)
        # 3. Y = e^G Q S + tril(Q Kᵀ) V̂; b_s is the transpose, triu(K Qᵀ), with the factors of decays.
        if scores is None:
            b_s = tl.dot(b_k, tl.trans(b_q), input_precision="tf32x3")
            if sums is not None:
                b_s *= tl.exp(tl.minimum(b_c[None, :] - b_c[:, None], 0.0))
            b_s = tl.where(o_t[:, None] <= o_t[None, :], b_s, 0.0)
        else:
            b_s = tl.load(p_s + o_m)
            p_s += BT * BT
        if norms is not None:
            b_added *= _each_row(b_rk, TRANSPOSED)
        b_y = _product(b_q, b_hc, None, TRANSPOSED)
        if sums is not None:
            b_y *= _each_row(tl.exp(b_c), TRANSPOSED)
            b_added_left = (b_added * _each_row(tl.exp(b_e - b_c), TRANSPOSED)).to(dtype)
            b_h *= tl.exp(b_e)
            p_c += BT
        b_added = b_added.to(dtype)
        if sums is None:
            b_added_left = b_added
        b_y = _product(tl.trans(b_s.to(dtype)), b_added, b_y, TRANSPOSED)
        b_y *= scale
        if norms is not None:
            b_y *= _each_row(tl.load(p_rq), TRANSPOSED)
            p_rq += BT
            p_rk += BT
        tl.store(p_y + o_y, _turned(b_y, TRANSPOSED).to(y[0].dtype.element_ty), mask=m_t & m_v[None, :])
        # 4. The state after the chunk, e^E S + Kᵀ e^(E − G) V̂ with E the end of G.
        if decays is not None:
            b_d = tl.load(p_d, mask=m_k, other=0.0)
            b_h *= b_d[None, :] if TRANSPOSED else b_d[:, None]
            b_k = tl.load(p_l + o_l, mask=m_t & m_k[None, :], other=0.0)
            p_d += K
            p_l += BT * left[3]
        b_h = _product(tl.trans(b_k), b_added_left, b_h, TRANSPOSED)
        p_q += BT * q[3]
        p_k += BT * k[3]
        p_v += BT * v[3]
        p_y += BT * y[3]
        p_m += BT * BT

    # 5. The final state.
    tl.store(ht + o_h, b_h, mask=m_h)


@jit
def _product(b_a, b_b, b_sum, TRANSPOSED: tl.constexpr):
    # A B, added to b_sum if there is one. If TRANSPOSED, b_b, b_sum and the result are transposes.
    if TRANSPOSED:
        return tl.dot(b_b, tl.trans(b_a), b_sum, input_precision="tf32x3")
    else:  # Triton compiles what follows an if, too, even after a return
        return tl.dot(b_a, b_b, b_sum, input_precision="tf32x3")


@jit
def _turned(b_x, TRANSPOSED: tl.constexpr):
    return tl.trans(b_x) if TRANSPOSED else b_x


@jit
def _each_row(b_r, TRANSPOSED: tl.constexpr):
    # A factor for each row of a block; if TRANSPOSED, for each of its columns.
    return b_r[None, :] if TRANSPOSED else b_r[:, None]
