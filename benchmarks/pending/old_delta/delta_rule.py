"""The delta rule: every position moves the state towards its value by a step β, in two kernels.

S_t = S_{t−1} + β_t k_tᵀ (v_t − k_t S_{t−1}) and y_t = q_t S_t (arXiv 2406.06484, section 2.2, transposed).

In a chunk after the state S the values actually added are V̂ = M (V − K S) with
M = (I + tril(diag(β) K Kᵀ, −1))⁻¹ diag(β), the UT transform of that paper's section 3. M has BT² entries and does not
depend on S: the first kernel (`argap.kernels.delta_rule_inverse`) computes it for all chunks at once. The second walks
over the chunks with S in registers and forms V̂ there, so that neither W = M K, U = M V nor any chunk's state goes
through memory.

Legend: B batch, H heads, T positions, BT positions per chunk, NT = ⌈T / BT⌉ chunks, K key size, V value size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from old_delta.delta_rule_inverse import CHUNK, SMALLEST_NORM, chunk_inverses, inverse_norms
from argap.kernels.launch import (
    HeadTensors,
    Launch,
    LaunchTable,
    block_size,
    common_dtype,
    jit,
    runs_kernels,
    strided,
    tl,
)
from argap.kernels.recurrence import in_chunks

LARGEST_KEY_BYTES = 512
"""The largest key that the kernels take: K 256 in float16 and bfloat16, 128 in float32."""

_FLOAT32_KEYS = ("16 float32", "32 float32", "64 float32", "128 float32")
LAUNCHES = LaunchTable(
    "delta_rule: scan",
    {
        "hopper": {
            **dict.fromkeys(("16", "32", "64"), Launch({"BV": 64}, warps=4, stages=3)),
            "128": Launch({"BV": 32}, warps=4, stages=3),
            "256": Launch({"BV": 32}, warps=4, stages=1),
            **dict.fromkeys(_FLOAT32_KEYS, Launch({"BV": 32}, warps=8, stages=1)),
        },
        "any": {
            **dict.fromkeys(("16", "32", "64"), Launch({"BV": 32}, warps=4, stages=2)),
            "128": Launch({"BV": 32}, warps=4, stages=1),
            "256": Launch({"BV": 16}, warps=4, stages=1),
            **dict.fromkeys(_FLOAT32_KEYS, Launch({"BV": 16}, warps=4, stages=1)),
        },
    },
)


def delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    *,
    normalize: bool = False,
    state: torch.Tensor | None = None,
    chunk: int | None = CHUNK,
) -> tuple[torch.Tensor, torch.Tensor]:
    """S_t = S_{t−1} + β_t k_tᵀ (v_t − k_t S_{t−1}), y_t = q_t S_t.

    Args:
        q, k: ``[B, H, T, K]``, any strides; a view of ``[B, T, H, K]`` costs no copy.
        v: ``[B, H, T, V]``, any strides.
        beta: ``[B, H, T]``.
        normalize: divide each q and k by its Euclidean norm, as `torch.nn.functional.normalize` does. Keys longer than
            √(2/β) let S grow without bound.
        state: S before the first position, ``[B, H, K, V]``; None: 0.
        chunk: positions that the reference solves for at once; None: all.

    Returns:
        y ``[B, H, T, V]`` in the dtype of ``v``, and S after the last position ``[B, H, K, V]`` in float32 or wider.
        If β = 2 and one key repeats, S alternates and keeps every rounding error: bfloat16 is too coarse for that.

    Runs kernels on a GPU if no gradient is needed and a key has at most `LARGEST_KEY_BYTES`: S and the inverse in
    float32, products of float16 and bfloat16 on the tensor cores. Otherwise runs the reference, in float32 or wider.
    """
    dtype = common_dtype(q, k, v)
    fits = q.shape[-1] * dtype.itemsize <= LARGEST_KEY_BYTES and dtype.itemsize <= 4
    if not (runs_kernels(q, k, v, beta, state) and fits):
        return delta_rule_reference(q, k, v, beta, normalize=normalize, state=state, chunk=chunk)
    x = HeadTensors.of(q, k, v, state)
    _, H, T, K, V = x.shape
    ht = x.new_state(K, V)
    norms = inverse_norms(x.q, x.k) if normalize else None
    inverse = chunk_inverses(x.k, beta, norms)
    launch = LAUNCHES.at(x.q.device, x.shape_class)
    _scan_kernel[(x.programs(launch),)](
        *(*strided(x.q, x.k, x.v, x.y, dims=3), inverse, norms, x.h0, ht, T, H),
        K=K,
        V=V,
        BK=block_size(K),
        BT=CHUNK,
        **launch.arguments(),
    )
    return x.y, ht


def delta_rule_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    *,
    normalize: bool = False,
    state: torch.Tensor | None = None,
    chunk: int | None = CHUNK,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`delta_rule` in PyTorch, differentiable.

    The added values of a chunk are U − W S with (I + tril(diag(β) K Kᵀ, −1)) [W, U] = diag(β) [K, V]: one triangular
    solve for all chunks.
    """
    dtype = torch.promote_types(q.dtype, torch.float32)
    length = q.shape[2]
    size = length if chunk is None else min(chunk, length)
    out_dtype = v.dtype
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, beta = (in_chunks(x.to(dtype), size) for x in (q, k, v, beta[..., None]))
        if normalize:
            q, k = (F.normalize(x, dim=-1, eps=SMALLEST_NORM) for x in (q, k))
        # 1. W and U of every chunk; the solver takes the diagonal to be 1.
        k_beta = beta * k
        lower = (k_beta @ k.mT).tril(-1)
        solved = torch.linalg.solve_triangular(
            lower, torch.cat([k_beta, beta * v], dim=-1), upper=False, unitriangular=True
        )
        w, u = solved.split((k.shape[-1], v.shape[-1]), dim=-1)
        # 2. Chunk by chunk: the added values, the output, the state.
        scores = (q @ k.mT).tril()
        h = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1]) if state is None else state.to(dtype)
        outputs = []
        for n in range(q.shape[2]):
            added = u[:, :, n] - w[:, :, n] @ h
            outputs.append(q[:, :, n] @ h + scores[:, :, n] @ added)
            h = h + k[:, :, n].mT @ added
        return torch.stack(outputs, dim=2).flatten(2, 3)[:, :, :length].to(out_dtype), h


@jit
def _scan_kernel(
    q,
    k,
    v,
    y,
    m,
    norms,
    h0,
    ht,
    T,
    H,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    BT: tl.constexpr,
    BV: tl.constexpr,
):
    # One head of one sequence and BV columns of V. b_h is Sᵀ [BV, BK]: each product then takes the previous result as
    # its left operand, straight from registers, and a loaded block as its right.
    NV: tl.constexpr = (V + BV - 1) // BV
    i_bh = (tl.program_id(0) // NV).to(tl.int64)
    i_b, i_h = i_bh // H, i_bh % H
    o_t = tl.arange(0, BT)
    o_k = tl.arange(0, BK)
    o_v = (tl.program_id(0) % NV) * BV + tl.arange(0, BV)
    # Offsets from the first chunk may exceed 2³¹; those within a chunk start at its first position.
    p_q = q[0] + i_b * q[1] + i_h * q[2]
    p_k = k[0] + i_b * k[1] + i_h * k[2]
    p_v = v[0] + i_b * v[1] + i_h * v[2]
    p_y = y[0] + i_b * y[1] + i_h * y[2]
    o_q = o_t[:, None] * q[3] + o_k[None, :]
    o_kk = o_t[:, None] * k[3] + o_k[None, :]
    o_vv = o_t[:, None] * v[3] + o_v[None, :]
    o_y = o_t[:, None] * y[3] + o_v[None, :]
    NT = tl.cdiv(T, BT)
    p_m = m + i_bh * NT * (BT * BT)
    o_m = o_t[:, None] * BT + o_t[None, :]
    m_m = (o_t[:, None] // 16) >= (o_t[None, :] // 16)  # the blocks of 16 that the first kernel writes
    m_k, m_v = o_k < K, o_v < V
    dtype = q[0].dtype.element_ty
    if norms is not None:
        p_rq = norms + i_bh * (NT * BT) + o_t
        p_rk = p_rq + (tl.num_programs(0) // NV).to(tl.int64) * (NT * BT)

    # 1. The initial state.
    o_h = i_bh * (K * V) + o_k[None, :] * V + o_v[:, None]
    m_h = m_v[:, None] & m_k[None, :]
    b_h = tl.zeros([BV, BK], dtype=tl.float32)
    if h0 is not None:
        b_h = tl.load(h0 + o_h, mask=m_h, other=0.0)

    for start in range(0, T, BT):
        m_t = (o_t < T - start)[:, None]
        b_q = tl.load(p_q + o_q, mask=m_t & m_k[None, :], other=0.0)
        b_k = tl.load(p_k + o_kk, mask=m_t & m_k[None, :], other=0.0)
        b_v = tl.load(p_v + o_vv, mask=m_t & m_v[None, :], other=0.0)
        b_m = tl.load(p_m + o_m, mask=m_m, other=0.0)
        b_hc = b_h.to(dtype)
        # 2. V̂ᵀ = (V − K S)ᵀ Mᵀ, the values that the chunk adds. b_rk and b_rq are one over the norms of k and q.
        b_kh = tl.dot(b_hc, tl.trans(b_k), input_precision="tf32x3")
        if norms is not None:
            b_rk = tl.load(p_rk)
            b_kh *= b_rk[None, :]
        b_error = tl.trans(b_v).to(tl.float32) - b_kh
        b_added = tl.dot(b_error.to(dtype), tl.trans(b_m), input_precision="tf32x3")
        # 3. Yᵀ = (Q S)ᵀ + (tril(Q Kᵀ) V̂)ᵀ.
        b_s = tl.dot(b_k, tl.trans(b_q), input_precision="tf32x3")
        b_s = tl.where(o_t[:, None] <= o_t[None, :], b_s, 0.0)
        if norms is not None:
            b_added *= b_rk[None, :]
        b_y = tl.dot(b_hc, tl.trans(b_q), input_precision="tf32x3")
        b_y = tl.dot(b_added.to(dtype), b_s.to(dtype), b_y, input_precision="tf32x3")
        if norms is not None:
            b_y *= tl.load(p_rq)[None, :]
            p_rq += BT
            p_rk += BT
        tl.store(p_y + o_y, tl.trans(b_y).to(y[0].dtype.element_ty), mask=m_t & m_v[None, :])
        # 4. The state after the chunk, (S + Kᵀ V̂)ᵀ.
        b_h = tl.dot(b_added.to(dtype), b_k, b_h, input_precision="tf32x3")
        p_q += BT * q[3]
        p_k += BT * k[3]
        p_v += BT * v[3]
        p_y += BT * y[3]
        p_m += BT * BT

    # 5. The final state.
    tl.store(ht + o_h, b_h, mask=m_h)
