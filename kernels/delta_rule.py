"""The delta rule: a state that is moved towards each new value by β, in two kernels.

S_t = S_{t−1} + β_t k_tᵀ (v_t − k_t S_{t−1}) and y_t = q_t S_t (arXiv 2406.06484, section 2.2, transposed).

In a chunk of C positions after the state S the values that are really added are V̂ = M (V − K S) with
M = (I + tril(diag(β) K Kᵀ, −1))⁻¹ diag(β), the UT transform of that paper's section 3. M has C² numbers
and nothing in it waits for S: the first kernel makes it for all chunks at once. The second walks over the
chunks with S in registers and forms V̂ there, so that neither W = M K, U = M V nor the state of a chunk
goes through memory.

Legend: B batch, H heads, T positions, C positions of a chunk, N = ⌈T / C⌉ chunks, K key size, V value size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from argap.kernels.chunks import in_chunks
from argap.kernels.language import jit, runs_kernels, tl, triton
from argap.kernels.launch import Launch, LaunchTable
from argap.kernels.layout import empty_heads_inside, key_class, padded, with_rows

C = 64
"""Positions of a kernel's chunk: four blocks of 16."""
LARGEST_KEY_BYTES = 512
"""Of a key that the kernels take: K 256 in float16 and bfloat16, 128 in float32."""
SMALLEST_NORM = 1e-6
"""What the norm of a key or query is taken for where it is less."""

# By the key size, rounded up to a power of 2; float32 doubles the tiles.
INVERSE_LAUNCHES = LaunchTable(
    "delta_rule: inverse",
    {
        "any": {
            **{key: Launch({}, warps=1, stages=1) for key in ("16", "32", "64", "128", "float32 16", "float32 32")},
            **{key: Launch({}, warps=4, stages=1) for key in ("256", "float32 64", "float32 128")},
        }
    },
)
SCAN_LAUNCHES = LaunchTable(
    "delta_rule: scan",
    {
        "hopper": {
            **{key: Launch({"BV": 64}, warps=4, stages=3) for key in ("16", "32", "64")},
            "128": Launch({"BV": 32}, warps=4, stages=3),
            "256": Launch({"BV": 32}, warps=4, stages=1),
            **{f"float32 {key}": Launch({"BV": 32}, warps=8, stages=1) for key in (16, 32, 64, 128)},
        },
        "any": {
            **{key: Launch({"BV": 32}, warps=4, stages=2) for key in ("16", "32", "64")},
            "128": Launch({"BV": 32}, warps=4, stages=1),
            "256": Launch({"BV": 16}, warps=4, stages=1),
            **{f"float32 {key}": Launch({"BV": 16}, warps=4, stages=1) for key in (16, 32, 64, 128)},
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
    chunk: int | None = C,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``q``, ``k`` ``[B, H, T, K]``, ``v [B, H, T, V]`` and ``beta [B, H, T]`` to y ``[B, H, T, V]`` in the type
    of ``v`` and S after them ``[B, H, K, V]`` in float32 or wider.

    ``normalize`` divides each q and k by its Euclidean norm, as `torch.nn.functional.normalize` does;
    keys longer than √(2/β) let S grow without bound. With β = 2 and one key again and again S alternates and
    keeps every rounding: bfloat16 is too coarse for that. ``state`` is S before the first position; None: 0.
    A view of ``[B, T, H, …]`` costs no copy.

    On a GPU, where no gradient is asked for and a key has at most `LARGEST_KEY_BYTES`, kernels; S and the
    inverse are in float32, products of float16 and bfloat16 on the tensor cores. Else the reference, in
    float32 or wider, which solves for ``chunk`` positions at once, or for all with None.
    """
    kind = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    if runs_kernels(q, k, v, beta, state) and q.shape[-1] * kind.itemsize <= LARGEST_KEY_BYTES and kind.itemsize <= 4:
        return _by_kernels(q, k, v, beta, normalize, state)
    return delta_rule_reference(q, k, v, beta, normalize=normalize, state=state, chunk=chunk)


def delta_rule_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    *,
    normalize: bool = False,
    state: torch.Tensor | None = None,
    chunk: int | None = C,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`delta_rule` in PyTorch, differentiable: with L the part below the diagonal of diag(β) K Kᵀ, the
    added values are U − W S with (I + L) [W, U] = diag(β) [K, V], one triangular solve for all chunks."""
    kind = torch.promote_types(q.dtype, torch.float32)
    length = q.shape[2]
    size = length if chunk is None else min(chunk, length)
    answer = v.dtype
    with torch.autocast(q.device.type, enabled=False):
        q, k, v, beta = (in_chunks(x.to(kind), size) for x in (q, k, v, beta[..., None]))
        if normalize:
            q, k = (F.normalize(x, dim=-1, eps=SMALLEST_NORM) for x in (q, k))
        weighted = beta * k
        lower = (weighted @ k.mT).tril(-1)
        solved = torch.linalg.solve_triangular(  # it takes the diagonal for 1
            lower, torch.cat([weighted, beta * v], dim=-1), upper=False, unitriangular=True
        )
        w, u = solved.split((k.shape[-1], v.shape[-1]), dim=-1)
        scores = (q @ k.mT).tril()
        now = q.new_zeros(*q.shape[:2], k.shape[-1], v.shape[-1]) if state is None else state.to(kind)
        outputs = []
        for n in range(q.shape[2]):
            added = u[:, :, n] - w[:, :, n] @ now
            outputs.append(q[:, :, n] @ now + scores[:, :, n] @ added)
            now = now + k[:, :, n].mT @ added
        return torch.stack(outputs, dim=2).flatten(2, 3)[:, :, :length].to(answer), now


def _by_kernels(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    beta: torch.Tensor,
    normalize: bool,
    state: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    batch, heads, length, key = q.shape
    value = v.shape[-1]
    kind = torch.promote_types(torch.promote_types(q.dtype, k.dtype), v.dtype)
    y = empty_heads_inside(batch, heads, length, value, v)
    q, k, v = (with_rows(x.to(kind)) for x in (q, k, v))
    chunks = triton.cdiv(length, C)
    inverse = q.new_empty(batch, heads, chunks, C, C, dtype=kind)
    norms = q.new_empty(2, batch, heads, chunks * C, dtype=torch.float32) if normalize else None
    after = q.new_empty(batch, heads, key, value, dtype=torch.float32)
    before = None if state is None else state.float().contiguous()
    sizes = {"K": key, "BK": padded(key), "C": C}
    shape_class = key_class(key) if kind.itemsize == 2 else f"float32 {key_class(key)}"
    if norms is not None:
        for of_x, x in zip(norms, (q, k), strict=True):
            _take_norms[(chunks, batch * heads)](
                *(x, of_x, length, heads, *x.stride()[:3]), **sizes, SMALLEST=SMALLEST_NORM, num_warps=4
            )
    _invert[(chunks, batch * heads)](
        *(k, beta, inverse, norms, length, heads),
        *(*k.stride()[:3], *beta.stride()),
        **sizes,
        # The inverse ends up in bfloat16, whose rounding is four times that of one product in tf32.
        PRECISION="tf32" if kind == torch.bfloat16 else "tf32x3",
        **INVERSE_LAUNCHES.at(q.device, shape_class).arguments(),
    )
    launch = SCAN_LAUNCHES.at(q.device, shape_class)
    _scan[(triton.cdiv(value, launch.blocks["BV"]) * batch * heads,)](
        *(q, k, v, inverse, norms, y, before, after, length, heads),
        *(*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *y.stride()[:3]),
        **sizes,
        V=value,
        **launch.arguments(),
    )
    return y, after


@jit
def _take_norms(
    x,
    norms,
    length,
    heads,
    x_b,
    x_h,
    x_t,
    K: tl.constexpr,
    BK: tl.constexpr,
    C: tl.constexpr,
    SMALLEST: tl.constexpr,
):
    # One over the norm of each row of a chunk.
    pair = tl.program_id(1).to(tl.int64)
    start = tl.program_id(0).to(tl.int64) * C
    rows, keys = tl.arange(0, C), tl.arange(0, BK)
    inside = (rows < length - start)[:, None] & (keys < K)[None, :]
    x += (pair // heads) * x_b + (pair % heads) * x_h + start * x_t
    row = tl.load(x + rows[:, None] * x_t + keys[None, :], mask=inside, other=0.0).to(tl.float32)
    inverse = 1 / tl.maximum(tl.sqrt(tl.sum(row * row, 1)), SMALLEST)
    tl.store(norms + pair * (tl.num_programs(0) * C) + start + rows, inverse)


@jit
def _invert(
    k,
    beta,
    inverse,
    norms,
    length,
    heads,
    k_b,
    k_h,
    k_t,
    beta_b,
    beta_h,
    beta_t,
    K: tl.constexpr,
    BK: tl.constexpr,
    C: tl.constexpr,
    PRECISION: tl.constexpr,
):
    # One chunk: M by blocks of 16, joined as the halves of each are. The geometric series of the nilpotent
    # part would be shorter, but where keys repeat its powers cancel from 10¹⁷ and more; here no block's
    # entries grow beyond those of the inverse.
    n = tl.program_id(0).to(tl.int64)
    pair = tl.program_id(1).to(tl.int64)
    b, h = pair // heads, pair % heads
    start = n * C
    k_at = k + b * k_b + h * k_h
    beta_at = beta + b * beta_b + h * beta_h
    k0 = _block(k_at, start, length, k_t, K, BK)
    k1 = _block(k_at, start + 16, length, k_t, K, BK)
    k2 = _block(k_at, start + 32, length, k_t, K, BK)
    k3 = _block(k_at, start + 48, length, k_t, K, BK)
    b0 = _rates(beta_at, start, length, beta_t)
    b1 = _rates(beta_at, start + 16, length, beta_t)
    b2 = _rates(beta_at, start + 32, length, beta_t)
    b3 = _rates(beta_at, start + 48, length, beta_t)
    a00 = _products(k0, k0)
    a11 = _products(k1, k1)
    a22 = _products(k2, k2)
    a33 = _products(k3, k3)
    a10 = _products(k1, k0)
    a20 = _products(k2, k0)
    a21 = _products(k2, k1)
    a30 = _products(k3, k0)
    a31 = _products(k3, k1)
    a32 = _products(k3, k2)
    if norms is not None:
        # Every key of length 1: row i and column j of K Kᵀ over their norms.
        count = tl.num_programs(0) * C
        of_k = norms + (tl.num_programs(1) + pair) * count + start + tl.arange(0, 16)
        r0 = tl.load(of_k)
        r1 = tl.load(of_k + 16)
        r2 = tl.load(of_k + 32)
        r3 = tl.load(of_k + 48)
        a00 *= r0[:, None] * r0[None, :]
        a11 *= r1[:, None] * r1[None, :]
        a22 *= r2[:, None] * r2[None, :]
        a33 *= r3[:, None] * r3[None, :]
        a10 *= r1[:, None] * r0[None, :]
        a20 *= r2[:, None] * r0[None, :]
        a21 *= r2[:, None] * r1[None, :]
        a30 *= r3[:, None] * r0[None, :]
        a31 *= r3[:, None] * r1[None, :]
        a32 *= r3[:, None] * r2[None, :]

    # T = (I + L)⁻¹, block by block: what multiplies T_jj from the left in row i is −T_ii Σ_m L_im T_mj.
    t00 = _inverse_of_block(a00, b0, PRECISION)
    t11 = _inverse_of_block(a11, b1, PRECISION)
    t22 = _inverse_of_block(a22, b2, PRECISION)
    t33 = _inverse_of_block(a33, b3, PRECISION)
    a10 *= b1[:, None]
    a20 *= b2[:, None]
    a21 *= b2[:, None]
    a30 *= b3[:, None]
    a31 *= b3[:, None]
    a32 *= b3[:, None]
    t10 = -_times(t11, _times(a10, t00, PRECISION), PRECISION)
    t21 = -_times(t22, _times(a21, t11, PRECISION), PRECISION)
    t32 = -_times(t33, _times(a32, t22, PRECISION), PRECISION)
    t20 = -_times(t22, _times(a20, t00, PRECISION) + _times(a21, t10, PRECISION), PRECISION)
    t31 = -_times(t33, _times(a31, t11, PRECISION) + _times(a32, t21, PRECISION), PRECISION)
    t30 = -_times(
        t33, _times(a30, t00, PRECISION) + _times(a31, t10, PRECISION) + _times(a32, t20, PRECISION), PRECISION
    )

    # M = T diag(β); above the diagonal nothing is written, nor read.
    at = inverse + (pair * tl.num_programs(0) + n) * (C * C)
    _store(at, t00 * b0[None, :], 0, 0, C)
    _store(at, t10 * b0[None, :], 16, 0, C)
    _store(at, t11 * b1[None, :], 16, 16, C)
    _store(at, t20 * b0[None, :], 32, 0, C)
    _store(at, t21 * b1[None, :], 32, 16, C)
    _store(at, t22 * b2[None, :], 32, 32, C)
    _store(at, t30 * b0[None, :], 48, 0, C)
    _store(at, t31 * b1[None, :], 48, 16, C)
    _store(at, t32 * b2[None, :], 48, 32, C)
    _store(at, t33 * b3[None, :], 48, 48, C)


@jit
def _block(x, start, length, x_t, K: tl.constexpr, BK: tl.constexpr):
    rows = start + tl.arange(0, 16).to(tl.int64)
    keys = tl.arange(0, BK)
    inside = (rows < length)[:, None] & (keys < K)[None, :]
    return tl.load(x + rows[:, None] * x_t + keys[None, :], mask=inside, other=0.0)


@jit
def _rates(beta, start, length, beta_t):
    rows = start + tl.arange(0, 16).to(tl.int64)
    return tl.load(beta + rows * beta_t, mask=rows < length, other=0.0).to(tl.float32)


@jit
def _products(a, b):
    return tl.dot(a, tl.trans(b), input_precision="tf32x3")


@jit
def _times(a, b, PRECISION: tl.constexpr):
    return tl.dot(a, b, input_precision=PRECISION)


@jit
def _inverse_of_block(products, rates, PRECISION: tl.constexpr):
    # (I + L)⁻¹ with L = tril(diag(β) K Kᵀ, −1) of 16 positions, from blocks of 2 to blocks of 4, 8 and 16: of
    # two neighbours with inverses T₁ and T₂ what stands below is −T₂ L₂₁ T₁.
    rows = tl.arange(0, 16)
    row, column = rows[:, None], rows[None, :]
    lower = tl.where(row > column, products * rates[:, None], 0.0)
    inverse = tl.where(row == column, 1.0, 0.0) - tl.where(row // 2 == column // 2, lower, 0.0)
    inverse = _joined(inverse, lower, row, column, 2, PRECISION)
    inverse = _joined(inverse, lower, row, column, 4, PRECISION)
    return _joined(inverse, lower, row, column, 8, PRECISION)


@jit
def _joined(inverse, lower, row, column, SIZE: tl.constexpr, PRECISION: tl.constexpr):
    below = tl.where((row // (2 * SIZE) == column // (2 * SIZE)) & (row // SIZE > column // SIZE), lower, 0.0)
    return inverse - _times(inverse, _times(below, inverse, PRECISION), PRECISION)


@jit
def _store(at, block, row, column, C: tl.constexpr):
    rows = tl.arange(0, 16)
    tl.store(at + (row + rows[:, None]) * C + column + rows[None, :], block.to(at.dtype.element_ty))


@jit
def _scan(
    q,
    k,
    v,
    inverse,
    norms,
    y,
    before,
    after,
    length,
    heads,
    q_b,
    q_h,
    q_t,
    k_b,
    k_h,
    k_t,
    v_b,
    v_h,
    v_t,
    y_b,
    y_h,
    y_t,
    K: tl.constexpr,
    V: tl.constexpr,
    BK: tl.constexpr,
    C: tl.constexpr,
    BV: tl.constexpr,
):
    # One head of one sequence, columns BV of V. S is held as its transpose [BV, BK]: each product then takes
    # the last one's result as its left operand, straight from registers, and what was loaded as its right.
    PARTS: tl.constexpr = (V + BV - 1) // BV
    pair = (tl.program_id(0) // PARTS).to(tl.int64)
    b, h = pair // heads, pair % heads
    rows = tl.arange(0, C)
    keys = tl.arange(0, BK)
    values = (tl.program_id(0) % PARTS) * BV + tl.arange(0, BV)
    # Offsets from the first chunk may pass 2³¹: a chunk's own are from its first position.
    q += b * q_b + h * q_h
    k += b * k_b + h * k_h
    v += b * v_b + h * v_h
    y += b * y_b + h * y_h
    of_q_c = rows[:, None] * q_t + keys[None, :]
    of_k_c = rows[:, None] * k_t + keys[None, :]
    of_v_c = rows[:, None] * v_t + values[None, :]
    of_y_c = rows[:, None] * y_t + values[None, :]
    chunks = tl.cdiv(length, C)
    inverse += pair * chunks * (C * C)
    of_m_c = rows[:, None] * C + rows[None, :]
    written = (rows[:, None] // 16) >= (rows[None, :] // 16)
    in_key, in_value = keys < K, values < V
    kind = q.dtype.element_ty
    if norms is not None:
        of_q = norms + pair * (chunks * C) + rows
        of_k = of_q + (tl.num_programs(0) // PARTS).to(tl.int64) * (chunks * C)

    s_at = pair * (K * V) + keys[None, :] * V + values[:, None]
    in_state = in_value[:, None] & in_key[None, :]
    s = tl.zeros([BV, BK], dtype=tl.float32)
    if before is not None:
        s = tl.load(before + s_at, mask=in_state, other=0.0)

    for start in range(0, length, C):
        there = (rows < length - start)[:, None]
        q_c = tl.load(q + of_q_c, mask=there & in_key[None, :], other=0.0)
        k_c = tl.load(k + of_k_c, mask=there & in_key[None, :], other=0.0)
        v_c = tl.load(v + of_v_c, mask=there & in_value[None, :], other=0.0)
        m_c = tl.load(inverse + of_m_c, mask=written, other=0.0)
        held = s.to(kind)
        # 1. What the state lacks of the chunk's values, and what is added for it.
        found = tl.dot(held, tl.trans(k_c), input_precision="tf32x3")
        if norms is not None:
            of_key = tl.load(of_k)
            found *= of_key[None, :]
        lacking = tl.trans(v_c).to(tl.float32) - found
        added = tl.dot(lacking.to(kind), tl.trans(m_c), input_precision="tf32x3")
        # 2. The queries read the state before the chunk, and what positions up to their own added.
        scores = tl.dot(k_c, tl.trans(q_c), input_precision="tf32x3")
        scores = tl.where(rows[:, None] <= rows[None, :], scores, 0.0)
        if norms is not None:
            added *= of_key[None, :]
        result = tl.dot(held, tl.trans(q_c), input_precision="tf32x3")
        result = tl.dot(added.to(kind), scores.to(kind), result, input_precision="tf32x3")
        if norms is not None:
            result *= tl.load(of_q)[None, :]
            of_q += C
            of_k += C
        tl.store(y + of_y_c, tl.trans(result).to(y.dtype.element_ty), mask=there & in_value[None, :])
        # 3. The state after the chunk.
        s = tl.dot(added.to(kind), k_c, s, input_precision="tf32x3")
        q += C * q_t
        k += C * k_t
        v += C * v_t
        y += C * y_t
        inverse += C * C

    tl.store(after + s_at, s, mask=in_state)
