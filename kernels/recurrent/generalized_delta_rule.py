"""The generalized delta rule: a state that decays by channel and is corrected along keys of its own, as in RWKV-7.

In a chunk after the state S the read values p_t = a_t S_{t−1} are W S + U with (I − A_ab) [W, U] = [ȧ, A_ak V], where
A_xy are the products of the x of a position with the y of earlier ones, decayed between them, and ȧ is a decayed from
the chunk's start. Two kernels compute these for all chunks at once, with the inverse in between
(`argap.kernels.recurrent.delta_rule_inverse`); a third walks over the chunks with S in registers. On Hopper bfloat16
keys of 33 to 128 channels take the faster kernels of `argap.kernels.recurrent.chunk_transitions`.

Legend: B batch, H heads, T positions, BT positions per chunk, NT = ⌈T / BT⌉ chunks, K key size, V value size.
"""

# Inside kernels types are Triton's, which come without stubs.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import torch
import torch.nn.functional as F

from argap.kernels.launch import (
    HeadTensors,
    Launch,
    LaunchTable,
    block_size,
    common_dtype,
    jit,
    key_class,
    runs_kernels,
    strided,
    tl,
    triton,
    unit_stride,
)
from argap.kernels.recurrent.chunk_transitions import _rows, chain_transitions, has_transitions
from argap.kernels.recurrent.decayed_pairs import CHUNK, RANGE, _operand
from argap.kernels.recurrent.delta_rule_inverse import invert_products
from argap.kernels.recurrent.recurrence import decayed_scores, in_chunks

LARGEST_KEY = 128
_FLOAT32_KEYS = ("16 float32", "32 float32", "64 float32", "128 float32")
LAUNCHES = LaunchTable(
    "generalized_delta_rule: scan",
    {
        "hopper": {
            **dict.fromkeys(("16", "32", "64"), Launch({"BV": 64}, warps=4, stages=3)),
            "128": Launch({"BV": 32}, warps=4, stages=2),
            **dict.fromkeys(_FLOAT32_KEYS, Launch({"BV": 16}, warps=4, stages=1)),
        },
        "any": {
            **dict.fromkeys(("16", "32", "64"), Launch({"BV": 32}, warps=4, stages=1)),
            "128": Launch({"BV": 16}, warps=4, stages=1),
            **dict.fromkeys(_FLOAT32_KEYS, Launch({"BV": 16}, warps=4, stages=1)),
        },
    },
)
PRODUCT_LAUNCHES = LaunchTable(
    "generalized_delta_rule: products",
    {
        "any": {
            f"{key}{dtype}": Launch({"BC": min(key, 32)}, warps=2, stages=1)
            for key in (16, 32, 64, 128)
            for dtype in ("", " float32")
        }
    },
)
"""BC: channels of the key at a time; two warps for the reason given in `argap.kernels.recurrent.decayed_pairs`."""
READ_LAUNCHES = LaunchTable("generalized_delta_rule: reads", {"any": {"any": Launch({"BC": 32}, warps=2, stages=1)}})


def generalized_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    log_decay: torch.Tensor,
    least_log_decay: float | None = None,
    state: torch.Tensor | None = None,
    chunk: int | None = 16,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute S_t = diag(w_t) S_{t−1} + b_tᵀ (a_t S_{t−1}) + k_tᵀ v_t and y_t = q_t S_t (arXiv 2503.14456, section 4).

    The paper's state is the transpose. With w_t = 1, a_t = k_t, b_t = −β_t k_t and values β_t v_t this is the delta
    rule.

    Args:
        q, k, a, b: ``[B, H, T, K]``.
        v: ``[B, H, T, V]``.
        log_decay: log w ≤ 0, ``[B, H, T, K]``.
        least_log_decay: a number below which no log w is, if known; −e^−½ in RWKV-7.
        state: S before the first position, ``[B, H, K, V]``; None: 0.
        chunk: C, positions solved for at once; None: all.

    Returns:
        y ``[B, H, T, V]`` in the dtype of ``v``, and S after the last position ``[B, H, K, V]`` in float32 or wider.

    Runs kernels on a GPU if no gradient is needed, K ≤ 128 and a chunk of 64 positions is known to decay by e^−80 at
    most (``least_log_decay``): S in float32, products of float16 and bfloat16 on the tensor cores.
    Otherwise runs the reference, in float32 or wider.
    """
    given = (q, k, v, a, b)
    dtype = common_dtype(*given)
    least = float("-inf") if least_log_decay is None else least_log_decay
    fits = -least * CHUNK <= 2 * RANGE and q.shape[-1] <= LARGEST_KEY and dtype.itemsize <= 4
    if not (fits and runs_kernels(*given, log_decay, state)):
        return generalized_delta_rule_reference(
            *given, log_decay=log_decay, least_log_decay=least_log_decay, state=state, chunk=chunk
        )
    x = HeadTensors.of(q.to(dtype), k.to(dtype), v, state)
    a, b = (unit_stride(part.to(dtype)) for part in (a, b))
    B, H, T, K, V = x.shape
    if has_transitions(x.q, least):
        return x.y, chain_transitions(x, a, b, log_decay)
    NT = triton.cdiv(T, CHUNK)
    sizes: dict[str, int] = {"K": K, "BT": CHUNK}
    # 1. Products of the pairs in a chunk, and what is decayed from its start or to its end.
    decayed = [q.new_empty(B, H, T, K, dtype=dtype) for _ in range(4)]  # q and a from the start, k and b to the end
    on_k, on_b, from_k = (q.new_empty(B, H, NT, CHUNK, CHUNK, dtype=dtype) for _ in range(3))
    lower = torch.empty_like(on_k, dtype=torch.float32)
    decays = q.new_empty(B, H, NT, K, dtype=torch.float32)
    _products_kernel[(NT * B * H,)](
        *strided(x.q, x.k, a, b, unit_stride(log_decay), dims=3),
        *(*decayed, on_k, on_b, from_k, lower, decays, T, H),
        **sizes,
        **PRODUCT_LAUNCHES.at(q.device, key_class(K, dtype)).arguments(),
    )
    # 2. W, in the place of ȧ, and U.
    inverse = invert_products(lower, q.new_ones(1, 1, 1).expand(B, H, T), dtype)
    read = q.new_empty(B, H, T, V, dtype=dtype)
    _reads_kernel[(NT * B * H,)](
        *(*strided(x.v, dims=3), decayed[1], from_k, inverse, read, T, H),
        **sizes,
        V=V,
        **READ_LAUNCHES.at(q.device, "any").arguments(),
    )
    # 3. Chunk by chunk.
    ht = x.new_state(K, V)
    launch = LAUNCHES.at(q.device, key_class(K, dtype))
    _scan_kernel[(x.programs(launch),)](
        *(*strided(x.v, x.y, dims=3), *decayed, read, on_k, on_b, decays, x.h0, ht, T, H),
        **sizes,
        V=V,
        BK=block_size(K),
        **launch.arguments(),
    )
    return x.y, ht


def generalized_delta_rule_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    log_decay: torch.Tensor,
    least_log_decay: float | None = None,
    state: torch.Tensor | None = None,
    chunk: int | None = 16,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute `generalized_delta_rule` in PyTorch, one triangular solve for all chunks; differentiable."""
    dtype = torch.promote_types(q.dtype, torch.float32)
    length = q.shape[2]
    size = length if chunk is None else min(chunk, length)
    least = float("-inf") if least_log_decay is None else least_log_decay * size
    out_dtype = v.dtype
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, a, b, decay = (in_chunks(x.to(dtype), size) for x in (q, k, v, a, b, log_decay))
        decay = decay.cumsum(dim=-2)
        # 1. Products of the pairs in a chunk. a reads the state before its position: its row is the next one's.
        later = F.pad(a[..., 1:, :], (0, 0, 0, 1))
        lower, from_k = (F.pad(decayed_scores(later, x, decay, least)[..., :-1, :], (0, 0, 1, 0)) for x in (b, k))
        on_b, on_k = (decayed_scores(q, x, decay, least) for x in (b, k))
        # 2. Queries and a decayed from the chunk's start, k and b to its end.
        total = decay[..., -1:, :]
        q_decayed, a_decayed = q * decay.exp(), a * F.pad(decay[..., :-1, :], (0, 0, 1, 0)).exp()
        k_left, b_left = (x * (total - decay).exp() for x in (k, b))
        # 3. W and U of every chunk; the solver takes the diagonal to be 1.
        right = torch.cat([a_decayed, from_k @ v], dim=-1)
        solved = torch.linalg.solve_triangular(-lower, right, upper=False, unitriangular=True)
        w, u = solved.split((k.shape[-1], v.shape[-1]), dim=-1)
        # 4. Chunk by chunk: the read values, the output, the state.
        h = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1]) if state is None else state.to(dtype)
        kept, outputs = total.exp().mT, []
        for n in range(q.shape[2]):
            read = u[:, :, n] + w[:, :, n] @ h
            outputs.append(q_decayed[:, :, n] @ h + on_b[:, :, n] @ read + on_k[:, :, n] @ v[:, :, n])
            h = kept[:, :, n] * h + b_left[:, :, n].mT @ read + k_left[:, :, n].mT @ v[:, :, n]
        return torch.stack(outputs, dim=2).flatten(2, 3)[:, :, :length].to(out_dtype), h


@jit
def _products_kernel(
    q,
    k,
    a,
    b,
    g,
    qd,
    ad,
    kl,
    bl,
    on_k,
    on_b,
    from_k,
    lower,
    decays,
    T,
    H,
    K: tl.constexpr,
    BT: tl.constexpr,
    BC: tl.constexpr,
):
    # One chunk of one head. Both factors of a pair are decayed to half of the chunk's decay.
    NT = tl.cdiv(T, BT)
    i_c = tl.program_id(0).to(tl.int64)  # among all chunks of all heads; offsets may exceed 2³¹
    i_bh, start = i_c // NT, (i_c % NT) * BT
    i_b, i_h = i_bh // H, i_bh % H
    left = T - start
    o_t = tl.arange(0, BT)
    o_i, o_j = o_t[:, None], o_t[None, :]
    dtype = qd.dtype.element_ty
    b_tril = tl.where(o_i >= o_j, 1.0, 0.0)
    b_qk = tl.zeros([BT, BT], dtype=tl.float32)
    b_qb = tl.zeros([BT, BT], dtype=tl.float32)
    b_ak = tl.zeros([BT, BT], dtype=tl.float32)
    b_ab = tl.zeros([BT, BT], dtype=tl.float32)
    for first in tl.static_range(0, K, BC):
        o_c = first + tl.arange(0, BC)[None, :]
        m_tc = (o_i < left) & (o_c < K)
        b_q = _rows(q, i_b, i_h, start, o_i, o_c, m_tc).to(tl.float32)
        b_k = _rows(k, i_b, i_h, start, o_i, o_c, m_tc).to(tl.float32)
        b_a = _rows(a, i_b, i_h, start, o_i, o_c, m_tc).to(tl.float32)
        b_b = _rows(b, i_b, i_h, start, o_i, o_c, m_tc).to(tl.float32)
        b_g = _rows(g, i_b, i_h, start, o_i, o_c, m_tc).to(tl.float32)
        b_gc = tl.dot(b_tril, b_g, input_precision="tf32x3")
        b_gp = b_gc - b_g  # a reads the state before its position
        b_e = tl.min(b_gc, 0)[None, :]
        o_out = (i_bh * T + start + o_i) * K + o_c
        tl.store(qd + o_out, (b_q * tl.exp(b_gc)).to(dtype), mask=m_tc)
        tl.store(ad + o_out, (b_a * tl.exp(b_gp)).to(dtype), mask=m_tc)
        tl.store(kl + o_out, (b_k * tl.exp(b_e - b_gc)).to(dtype), mask=m_tc)
        tl.store(bl + o_out, (b_b * tl.exp(b_e - b_gc)).to(dtype), mask=m_tc)
        tl.store(decays + i_c * K + o_c, tl.exp(b_e), mask=o_c < K)
        b_half = b_e / 2
        b_qt = _operand(b_q * tl.exp(b_gc - b_half), dtype)
        b_at = _operand(b_a * tl.exp(b_gp - b_half), dtype)
        b_from = tl.exp(b_half - b_gc)
        b_kt = tl.trans(_operand(b_k * b_from, dtype))
        b_bt = tl.trans(_operand(b_b * b_from, dtype))
        b_qk = tl.dot(b_qt, b_kt, b_qk, input_precision="tf32x3")
        b_qb = tl.dot(b_qt, b_bt, b_qb, input_precision="tf32x3")
        b_ak = tl.dot(b_at, b_kt, b_ak, input_precision="tf32x3")
        b_ab = tl.dot(b_at, b_bt, b_ab, input_precision="tf32x3")
    o_s = i_c * (BT * BT) + o_i * BT + o_j
    tl.store(on_k + o_s, tl.where(o_i >= o_j, b_qk, 0.0).to(dtype))
    tl.store(on_b + o_s, tl.where(o_i >= o_j, b_qb, 0.0).to(dtype))
    tl.store(from_k + o_s, tl.where(o_i > o_j, b_ak, 0.0).to(dtype))
    tl.store(lower + o_s, -b_ab)


@jit
def _reads_kernel(v, ad, from_k, m, read, T, H, K: tl.constexpr, V: tl.constexpr, BT: tl.constexpr, BC: tl.constexpr):
    # W = M ȧ and U = M (A_ak V) of one chunk of one head, BC columns at a time.
    NT = tl.cdiv(T, BT)
    i_c = tl.program_id(0).to(tl.int64)
    i_bh, start = i_c // NT, (i_c % NT) * BT
    left = T - start
    o_i, o_j = tl.arange(0, BT)[:, None], tl.arange(0, BT)[None, :]
    dtype = ad.dtype.element_ty
    o_s = i_c * (BT * BT) + o_i * BT + o_j
    # Blocks of 16 above the diagonal of M are not written.
    b_m = tl.load(m + o_s, mask=(o_i // 16) >= (o_j // 16), other=0.0)
    b_f = tl.load(from_k + o_s)
    for first in tl.static_range(0, K, BC):
        o_c = first + tl.arange(0, BC)[None, :]
        m_tc = (o_i < left) & (o_c < K)
        p_a = ad + (i_bh * T + start + o_i) * K + o_c
        b_a = tl.load(p_a, mask=m_tc, other=0.0)
        tl.store(p_a, tl.dot(b_m, b_a, input_precision="tf32x3").to(dtype), mask=m_tc)
    for first in tl.static_range(0, V, BC):
        o_c = first + tl.arange(0, BC)[None, :]
        m_tc = (o_i < left) & (o_c < V)
        b_v = tl.load(v[0] + i_bh // H * v[1] + i_bh % H * v[2] + (start + o_i) * v[3] + o_c, mask=m_tc, other=0.0)
        b_u = tl.dot(b_f, b_v, input_precision="tf32x3").to(dtype)
        b_u = tl.dot(b_m, b_u, input_precision="tf32x3").to(dtype)
        tl.store(read + (i_bh * T + start + o_i) * V + o_c, b_u, mask=m_tc)


@jit
def _scan_kernel(
    v,
    y,
    qd,
    w,
    kl,
    bl,
    read,
    on_k,
    on_b,
    decays,
    h0,
    ht,
    T,
    H,
    K: tl.constexpr,
    V: tl.constexpr,
    BT: tl.constexpr,
    BK: tl.constexpr,
    BV: tl.constexpr,
):
    # One head of one sequence and BV columns of V.
    NV: tl.constexpr = (V + BV - 1) // BV
    NT = tl.cdiv(T, BT)
    i_bh = (tl.program_id(0) // NV).to(tl.int64)
    i_b, i_h = i_bh // H, i_bh % H
    o_t, o_k = tl.arange(0, BT), tl.arange(0, BK)
    o_v = (tl.program_id(0) % NV) * BV + tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < V
    dtype = qd.dtype.element_ty
    p_v = v[0] + i_b * v[1] + i_h * v[2] + o_t[:, None] * v[3] + o_v[None, :]
    p_y = y[0] + i_b * y[1] + i_h * y[2] + o_t[:, None] * y[3] + o_v[None, :]
    p_u = read + i_bh * T * V + o_t[:, None] * V + o_v[None, :]
    o_tk = i_bh * T * K + o_t[:, None] * K + o_k[None, :]
    o_s = i_bh * NT * (BT * BT) + o_t[:, None] * BT + o_t[None, :]
    p_d = decays + i_bh * NT * K + o_k
    o_h = i_bh * (K * V) + o_k[:, None] * V + o_v[None, :]
    m_h = m_k[:, None] & m_v[None, :]
    b_h = tl.zeros([BK, BV], dtype=tl.float32)
    if h0 is not None:
        b_h = tl.load(h0 + o_h, mask=m_h, other=0.0)
    for start in range(0, T, BT):
        m_t = (o_t < T - start)[:, None]
        m_tk, m_tv = m_t & m_k[None, :], m_t & m_v[None, :]
        b_w = tl.load(w + o_tk, mask=m_tk, other=0.0)
        b_q = tl.load(qd + o_tk, mask=m_tk, other=0.0)
        b_k = tl.load(kl + o_tk, mask=m_tk, other=0.0)
        b_b = tl.load(bl + o_tk, mask=m_tk, other=0.0)
        b_v = tl.load(p_v, mask=m_tv, other=0.0)
        b_u = tl.load(p_u, mask=m_tv, other=0.0)
        b_hc = b_h.to(dtype)
        # P = W S + U, Y = q̇ S + A_qb P + A_qk V, and the state after the chunk.
        b_p = (tl.dot(b_w, b_hc, input_precision="tf32x3") + b_u.to(tl.float32)).to(dtype)
        b_h *= tl.load(p_d, mask=m_k, other=0.0)[:, None]
        b_h = tl.dot(tl.trans(b_k), b_v, b_h, input_precision="tf32x3")
        b_h = tl.dot(tl.trans(b_b), b_p, b_h, input_precision="tf32x3")
        b_y = tl.dot(tl.load(on_k + o_s), b_v, input_precision="tf32x3")
        b_y = tl.dot(b_q, b_hc, b_y, input_precision="tf32x3")
        b_y = tl.dot(tl.load(on_b + o_s), b_p, b_y, input_precision="tf32x3")
        tl.store(p_y, b_y.to(y[0].dtype.element_ty), mask=m_tv)
        p_v += BT * v[3]
        p_y += BT * y[3]
        p_u += BT * V
        o_tk += BT * K
        o_s += BT * BT
        p_d += K
    tl.store(ht + o_h, b_h, mask=m_h)
