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
from argap.kernels.delta_rule_inverse import SMALLEST_NORM, C, chunk_inverses, inverse_norms
from argap.kernels.language import jit, runs_kernels, tl, triton
from argap.kernels.launch import Launch, LaunchTable
from argap.kernels.layout import empty_heads_inside, key_class, padded, with_rows

LARGEST_KEY_BYTES = 512
"""Of a key that the kernels take: K 256 in float16 and bfloat16, 128 in float32."""

# By the key size, rounded up to a power of 2; float32 doubles the tiles.
LAUNCHES = LaunchTable(
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
    after = q.new_empty(batch, heads, key, value, dtype=torch.float32)
    before = None if state is None else state.float().contiguous()
    shape_class = key_class(key) if kind.itemsize == 2 else f"float32 {key_class(key)}"
    norms = inverse_norms(q, k) if normalize else None
    inverse = chunk_inverses(k, beta, norms, shape_class)
    launch = LAUNCHES.at(q.device, shape_class)
    _scan[(triton.cdiv(value, launch.blocks["BV"]) * batch * heads,)](
        *(q, k, v, inverse, norms, y, before, after, length, heads),
        *(*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *y.stride()[:3]),
        K=key,
        V=value,
        BK=padded(key),
        C=C,
        **launch.arguments(),
    )
    return y, after


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
