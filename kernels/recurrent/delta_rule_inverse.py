"""The parts of the delta rule that do not depend on the state, for all chunks at once.

M = (I + tril(diag(β) K Kᵀ, −1))⁻¹ diag(β), the UT transform of arXiv 2406.06484, section 3, where K Kᵀ has the factors
exp(G_t − G_s) if the state decays; G, the running sum of a chunk's log decays; and, if queries and keys are normalized,
one over their norms. With a decay for each channel the products come from `argap.kernels.recurrent.decayed_pairs`.

Legend: B batch, H heads, T positions, BT positions per chunk, NT = ⌈T / BT⌉ chunks, K key size.
"""

# Inside kernels types are Triton's, which come without stubs.
# pyright: reportGeneralTypeIssues=false, reportArgumentType=false, reportCallIssue=false

from __future__ import annotations

import torch

from argap.kernels.launch import Launch, LaunchTable, block_size, jit, key_class, rows, strided, tl, triton

CHUNK = 64
"""BT of the kernels: four blocks of 16."""
SMALLEST_NORM = 1e-6
"""Lower bound of a key's or query's norm before dividing by it."""

LAUNCHES = LaunchTable(
    "delta_rule: inverse",
    {
        "any": {
            **{str(key): Launch({"BC": key}, warps=1, stages=1) for key in (16, 32, 64, 128)},
            **{f"{key} float32": Launch({"BC": key}, warps=1, stages=1) for key in (16, 32)},
            **{f"{key} float32": Launch({"BC": key}, warps=4, stages=1) for key in (64, 128)},
            "256": Launch({"BC": 64}, warps=1, stages=1),
        }
    },
)
"""BC: channels of the key at a time."""
SCORE_LAUNCHES = LaunchTable("delta_rule: scores", {"any": {"any": Launch({}, warps=4, stages=1)}})
NORM_LAUNCHES = LaunchTable("delta_rule: norms", {"any": {"any": Launch({}, warps=4, stages=1)}})


def inverse_norms(q: torch.Tensor, k: torch.Tensor, eps: float) -> torch.Tensor:
    """Compute one over the norm of each query, then of each key.

    ``q``, ``k`` are ``[B, G, T, K]`` with unit stride along K; the result is float32 ``[2, B, G, NT · BT]``. ``eps`` is
    added to the squared norms; without it they have the lower bound `SMALLEST_NORM`².
    """
    B, G, T, K = q.shape
    NT = triton.cdiv(T, CHUNK)
    norms = q.new_empty(2, B, G, NT * CHUNK, dtype=torch.float32)
    for r, x in zip(norms, (q, k), strict=True):
        _norms_kernel[(NT, B * G)](
            *(*strided(x, dims=3), r, T, G, float(eps)),
            K=K,
            BK=block_size(K),
            BT=CHUNK,
            SMALLEST=SMALLEST_NORM,
            **NORM_LAUNCHES.at(q.device, "any").arguments(),
        )
    return norms


def chunk_inverses(
    k: torch.Tensor, beta: torch.Tensor, norms: torch.Tensor | None, log_decay: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute M of every chunk, ``[B, H, NT, BT, BT]`` in the dtype of ``k``, and G, float32 ``[B, H, NT · BT]``.

    Blocks of 16 above the diagonal of M are not written. ``k [B, G, T, K]``, each for H / G heads, has unit stride
    along K, ``beta`` and ``log_decay`` are ``[B, H, T]`` (without decays the sums are None), and ``norms`` is what
    `inverse_norms` returned or None.
    """
    (B, H, T), K = beta.shape, k.shape[-1]
    NT = triton.cdiv(T, CHUNK)
    m = k.new_empty(B, H, NT, CHUNK, CHUNK)
    sums = None if log_decay is None else k.new_empty(B, H, NT * CHUNK, dtype=torch.float32)
    _invert_kernel[(NT, B * H)](
        *(*strided(k, beta, log_decay, dims=3), None, m, sums, norms, T, H, H // k.shape[1]),
        K=K,
        BT=CHUNK,
        # M is rounded to bfloat16 in the end, four times as coarse as one product in tf32.
        PRECISION="tf32" if k.dtype == torch.bfloat16 else "tf32x3",
        **LAUNCHES.at(k.device, key_class(K, k.dtype)).arguments(),
    )
    return m, sums


def invert_products(lower: torch.Tensor, beta: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Compute M of every chunk in ``dtype`` from the products of its keys, ``lower`` of `DecayedPairs`."""
    m = torch.empty_like(lower, dtype=dtype)
    B, H, NT = lower.shape[:3]
    _invert_kernel[(NT, B * H)](
        *(None, *strided(beta, None, dims=3), lower, m, None, None, beta.shape[-1], H, 1),
        K=16,
        BT=CHUNK,
        PRECISION="tf32" if dtype == torch.bfloat16 else "tf32x3",
        **LAUNCHES.at(lower.device, key_class(16, dtype)).arguments(),
    )
    return m


def chunk_scores(q: torch.Tensor, k: torch.Tensor, heads: int, sums: torch.Tensor | None) -> torch.Tensor:
    """Compute triu(K Qᵀ) of every chunk, ``[B, H, NT, BT, BT]`` in the dtype of ``k``, without normalizing q and k.

    ``q``, ``k`` are ``[B, G, T, K]`` with unit stride along K, for H ``heads``. ``sums`` from `chunk_inverses`: the
    factors exp(G_t − G_s) of decays; None: 1.
    """
    (B, _, T, K), H = k.shape, heads
    NT = triton.cdiv(T, CHUNK)
    scores = k.new_empty(B, H, NT, CHUNK, CHUNK)
    _scores_kernel[(NT, B * H)](
        *(*strided(q, k, dims=3), sums, scores, T, H, H // k.shape[1]),
        K=K,
        BK=block_size(K),
        BT=CHUNK,
        **SCORE_LAUNCHES.at(k.device, "any").arguments(),
    )
    return scores


@jit
def _norms_kernel(x, r, T, H, eps, K: tl.constexpr, BK: tl.constexpr, BT: tl.constexpr, SMALLEST: tl.constexpr):
    # One over the norm of each row of a chunk, for one head.
    i_bh = tl.program_id(1).to(tl.int64)
    start = tl.program_id(0).to(tl.int64) * BT
    o_t, o_k = tl.arange(0, BT), tl.arange(0, BK)
    m_tk = (o_t < T - start)[:, None] & (o_k < K)[None, :]
    p_x = x[0] + (i_bh // H) * x[1] + (i_bh % H) * x[2] + start * x[3]
    b_x = tl.load(p_x + o_t[:, None] * x[3] + o_k[None, :], mask=m_tk, other=0.0).to(tl.float32)
    b_norm = tl.sqrt(tl.sum(b_x * b_x, 1) + eps)
    # A row of zeros has any factor: 1 / SMALLEST times a value would exceed float16's range.
    b_r = tl.where(b_norm > 0, 1 / tl.maximum(b_norm, SMALLEST), 0.0)
    tl.store(r + i_bh * (tl.num_programs(0) * BT) + start + o_t, b_r)


@jit
def _scores_kernel(q, k, sums, scores, T, H, R, K: tl.constexpr, BK: tl.constexpr, BT: tl.constexpr):
    # triu(K Qᵀ) of one chunk of one head.
    i_t, i_bh = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    o_t, o_k = tl.arange(0, BT), tl.arange(0, BK)
    o_pos = i_t * BT + o_t.to(tl.int64)[:, None]
    m_tk = (o_pos < T) & (o_k < K)[None, :]
    b_q = tl.load(rows(q, i_bh // H, i_bh % H // R, o_pos, o_k), mask=m_tk, other=0.0)
    b_k = tl.load(rows(k, i_bh // H, i_bh % H // R, o_pos, o_k), mask=m_tk, other=0.0)
    b_s = tl.dot(b_k, tl.trans(b_q), input_precision="tf32x3")
    if sums is not None:
        b_c = tl.load(sums + (i_bh * tl.num_programs(0) + i_t) * BT + o_t)
        b_s *= tl.exp(tl.minimum(b_c[None, :] - b_c[:, None], 0.0))
    b_s = tl.where(o_t[:, None] <= o_t[None, :], b_s, 0.0).to(scores.dtype.element_ty)
    p_s = scores + (i_bh * tl.num_programs(0) + i_t) * (BT * BT)
    tl.store(p_s + o_t[:, None] * BT + o_t[None, :], b_s)


@jit
def _invert_kernel(
    k,
    beta,
    g,
    lower,
    inverse,
    sums,
    norms,
    T,
    H,
    R,
    K: tl.constexpr,
    BT: tl.constexpr,
    PRECISION: tl.constexpr,
    BC: tl.constexpr,
):
    # M of one chunk of one head, in blocks of 16. The geometric series of the nilpotent part would be shorter, but with
    # repeated keys its powers exceed 10¹⁷ and cancel; here no block's entries exceed those of the inverse.
    i_t = tl.program_id(0).to(tl.int64)
    i_bh = tl.program_id(1).to(tl.int64)
    i_b, i_h = i_bh // H, i_bh % H
    start = i_t * BT
    p_beta = beta[0] + i_b * beta[1] + i_h * beta[2]
    # 1. For keys wider than BC channels, the products K_i K_jᵀ over all channels but the first BC.
    b_sums = None
    o_l = (i_bh * tl.num_programs(0) + i_t) * (BT * BT) + tl.arange(0, 16)[:, None] * BT + tl.arange(0, 16)[None, :]
    for first in tl.static_range(BC, K, BC):
        b_k = ()
        for i in tl.static_range(4):
            b_k += (_keys(k, i_b, i_h // R, start + 16 * i, first, T, K, BC),)
        b_a = ()
        for i in tl.static_range(4):
            for j in tl.static_range(i + 1):
                b_sum = None if b_sums is None else b_sums[i * (i + 1) // 2 + j]
                b_a += (tl.dot(b_k[i], tl.trans(b_k[j]), b_sum, input_precision="tf32x3"),)
        b_sums = b_a
    # 2. The four blocks of keys, of β, of G, and of one over the keys' norms.
    b_k = ()
    b_beta = ()
    b_c = ()
    b_r = ()
    b_before = 0.0
    for i in tl.static_range(4):
        o_t = start + 16 * i + tl.arange(0, 16).to(tl.int64)
        if lower is None:
            b_k += (_keys(k, i_b, i_h // R, start + 16 * i, 0, T, K, BC),)
        b_beta += (tl.load(p_beta + o_t * beta[3], mask=o_t < T, other=0.0).to(tl.float32),)
        if g is not None:
            b_g = tl.load(g[0] + i_b * g[1] + i_h * g[2] + o_t * g[3], mask=o_t < T, other=0.0).to(tl.float32)
            b_c += (b_before + tl.cumsum(b_g, 0),)
            b_before += tl.sum(b_g, 0)
            tl.store(sums + i_bh * (tl.num_programs(0) * BT) + o_t, b_c[i])
        if norms is not None:
            p_r = norms + (tl.num_programs(1) + i_bh) // R * (tl.num_programs(0) * BT) + start + 16 * i
            b_r += (tl.load(p_r + tl.arange(0, 16)),)
    # 3. L = tril(diag(β) K Kᵀ, −1) by blocks, row by row: block (i, j) is number i(i + 1)/2 + j.
    b_l = ()
    for i in tl.static_range(4):
        for j in tl.static_range(i + 1):
            if lower is None:
                b_sum = None if b_sums is None else b_sums[i * (i + 1) // 2 + j]
                b_a = tl.dot(b_k[i], tl.trans(b_k[j]), b_sum, input_precision="tf32x3")
            else:
                b_a = tl.load(lower + o_l + 16 * i * BT + 16 * j)
            if norms is not None:
                b_a *= b_r[i][:, None] * b_r[j][None, :]
            if g is not None:
                b_a *= tl.exp(tl.minimum(b_c[i][:, None] - b_c[j][None, :], 0.0))
            b_l += (b_a * b_beta[i][:, None],)
    # 4. T = (I + L)⁻¹ likewise: T_ij = −T_ii Σ_{j≤m<i} L_im T_mj for i > j.
    b_t = ()
    for i in tl.static_range(4):
        b_ii = _invert_block(b_l[i * (i + 1) // 2 + i], 16, PRECISION)
        for j in tl.static_range(i):
            b_sum = _dot(b_l[i * (i + 1) // 2 + j], b_t[j * (j + 1) // 2 + j], PRECISION)
            for m in tl.static_range(j + 1, i):
                b_sum += _dot(b_l[i * (i + 1) // 2 + m], b_t[m * (m + 1) // 2 + j], PRECISION)
            b_t += (-_dot(b_ii, b_sum, PRECISION),)
        b_t += (b_ii,)
    # 5. M = T diag(β); blocks above the diagonal are neither written nor read.
    o_m = tl.arange(0, 16)[:, None] * BT + tl.arange(0, 16)[None, :]
    p_m = inverse + (i_bh * tl.num_programs(0) + i_t) * (BT * BT) + o_m
    for i in tl.static_range(4):
        for j in tl.static_range(i + 1):
            b_m = b_t[i * (i + 1) // 2 + j] * b_beta[j][None, :]
            tl.store(p_m + 16 * i * BT + 16 * j, b_m.to(inverse.dtype.element_ty))


@jit
def _keys(k, i_b, i_h, start, first, T, K: tl.constexpr, BC: tl.constexpr):
    # 16 positions of a head from `start`, BC channels from `first`.
    o_t = start + tl.arange(0, 16).to(tl.int64)
    o_k = first + tl.arange(0, BC)
    m_tk = (o_t < T)[:, None] & (o_k < K)[None, :]
    return tl.load(rows(k, i_b, i_h, o_t[:, None], o_k), mask=m_tk, other=0.0)


@jit
def _dot(b_a, b_b, PRECISION: tl.constexpr):
    if PRECISION == "bf16":
        return tl.dot(b_a.to(tl.bfloat16), b_b.to(tl.bfloat16))
    else:
        return tl.dot(b_a, b_b, input_precision=PRECISION)


@jit
def _invert_block(b_l, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    # (I + L)⁻¹ of 16 or 64 positions, by doubling: blocks of 2, then 4, 8 and 16, then 32 and 64.
    o_t = tl.arange(0, SIZE)
    o_i, o_j = o_t[:, None], o_t[None, :]
    b_l = tl.where(o_i > o_j, b_l, 0.0)
    b_t = tl.where(o_i == o_j, 1.0, 0.0) - tl.where(o_i // 2 == o_j // 2, b_l, 0.0)
    b_t = _merge_inverses(b_t, b_l, o_i, o_j, 2, PRECISION)
    b_t = _merge_inverses(b_t, b_l, o_i, o_j, 4, PRECISION)
    b_t = _merge_inverses(b_t, b_l, o_i, o_j, 8, PRECISION)
    if SIZE == 64:
        b_t = _merge_inverses(b_t, b_l, o_i, o_j, 16, PRECISION)
        b_t = _merge_inverses(b_t, b_l, o_i, o_j, 32, PRECISION)
    return b_t


@jit
def _merge_inverses(b_t, b_l, o_i, o_j, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    # Two neighbouring blocks with inverses T₁ and T₂ have −T₂ L₂₁ T₁ below the diagonal of their joint inverse.
    b_l21 = tl.where((o_i // (2 * SIZE) == o_j // (2 * SIZE)) & (o_i // SIZE > o_j // SIZE), b_l, 0.0)
    return b_t - _dot(b_t, _dot(b_l21, b_t, PRECISION), PRECISION)
