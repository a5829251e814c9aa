"""RWKV-4's WKV: an average of the values with exponential weights, each sequence in segments side by side.

wkv_t is the mean of v_t with weight e^{u + k_t} and of the earlier v_i with weights e^{k_i − (t−1−i) w}
(arXiv 2305.13048, section 3.1, WKV operator). Its two sums are kept relative to their largest exponent, as
in that paper's appendix, so that no exponential overflows; nothing is divided but the result.

A recurrence over T positions of a channel leaves most of a GPU idle. The kernels cut each sequence at
every `SEGMENT` positions: the first gives the sums of each segment alone, the second starts each segment
from what those before it leave. Where the cuts are does not depend on T, so that a longer sequence has the
same beginning, bit for bit.

Legend: B batch, T positions, D width, U positions of a tile.
"""

from __future__ import annotations

import torch

from argap.kernels.language import jit, runs_kernels, tl, triton
from argap.kernels.launch import Launch, LaunchTable
from argap.kernels.layout import with_rows
from argap.kernels.linear_scan import linear_scan

Sums = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""The sum of weighted values, the sum of weights, and the largest exponent that both are relative to."""

SEGMENT = 128
# A thread has one channel; BD is 32 a warp.
LAUNCHES = LaunchTable("wkv", {"any": {"any": Launch({"BD": 32, "U": 16}, warps=1, stages=1)}})


def wkv(
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    bonus: torch.Tensor,
    *,
    receptance: torch.Tensor | None = None,
    state: Sums | None = None,
) -> tuple[torch.Tensor, Sums]:
    """``k``, ``v`` ``[B, T, D]``, ``decay`` w > 0 and ``bonus`` u ``[D]`` to σ(r) ⊙ wkv ``[B, T, D]`` in the type of
    ``v``, with ``receptance`` r ``[B, T, D]`` (None: no gate), and the sums after the last position, each
    ``[B, D]`` in float32 or wider. ``state`` are the sums before the first; None: nothing.

    On a GPU, where no gradient is asked for, two kernels, in float32; else the reference.
    """
    given = (k, v, decay, bonus, receptance, *(state or ()))
    if runs_kernels(*given) and k.dtype != torch.float64:
        return _by_kernels(k, v, decay, bonus, receptance, state)
    return wkv_reference(k, v, decay, bonus, receptance=receptance, state=state)


def wkv_reference(
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    bonus: torch.Tensor,
    *,
    receptance: torch.Tensor | None = None,
    state: Sums | None = None,
) -> tuple[torch.Tensor, Sums]:
    """`wkv` in PyTorch, differentiable, in float32 or wider."""
    answer = v.dtype
    kind = torch.promote_types(k.dtype, torch.float32)
    k, v, decay = k.to(kind), v.to(kind), decay.to(kind)
    first = torch.full_like(k[:, :1], -torch.inf) if state is None else state[2].to(kind)[:, None]
    # The largest exponent among k_i − (t − i)·w is the running maximum of k_i + i·w, less t·w. It only
    # sets the scale of the sums: they come out the same for any other, and so do all gradients.
    ramp = torch.arange(1, k.shape[1] + 1, device=k.device, dtype=kind)[:, None] * decay
    top = torch.maximum(torch.maximum((k + ramp).cummax(dim=1).values, first) - ramp, k).detach()
    before = torch.cat([first, top[:, :-1]], dim=1)
    weight = torch.exp(k - top)
    added = torch.stack([weight * v, weight], dim=-1)
    initial = None if state is None else torch.stack([state[0], state[1]], dim=-1).to(kind)
    sums = linear_scan(torch.exp(before - decay - top)[..., None], added, initial)
    start = torch.zeros_like(sums[:, :1]) if initial is None else initial[:, None]
    past = torch.cat([start, sums[:, :-1]], dim=1)  # what the token itself finds
    y = wkv_average(k, v, bonus, (past[..., 0], past[..., 1], before))
    if receptance is not None:
        y = torch.sigmoid(receptance.to(kind)) * y
    return y.to(answer), (sums[:, -1, :, 0], sums[:, -1, :, 1], top[:, -1])


def wkv_average(k: torch.Tensor, v: torch.Tensor, bonus: torch.Tensor, sums: Sums) -> torch.Tensor:
    """wkv from the sums over the past, relative to the larger of their exponent and the token's own."""
    values, weights, before = sums
    own = k + bonus.to(k.dtype)
    top = torch.maximum(before, own).detach()
    past, now = torch.exp(before - top), torch.exp(own - top)
    return (past * values + now * v) / (past * weights + now)


def _by_kernels(
    k: torch.Tensor,
    v: torch.Tensor,
    decay: torch.Tensor,
    bonus: torch.Tensor,
    receptance: torch.Tensor | None,
    state: Sums | None,
) -> tuple[torch.Tensor, Sums]:
    batch, length, width = v.shape
    segments = triton.cdiv(length, SEGMENT)
    y = v.new_empty(batch, length, width)
    ends = v.new_empty(3, batch, segments, width, dtype=torch.float32)
    before = None if state is None else torch.stack([part.float() for part in state])
    k, v = with_rows(k), with_rows(v)
    receptance = None if receptance is None else with_rows(receptance)
    decay, bonus = decay.float().contiguous(), bonus.float().contiguous()
    launch = LAUNCHES.at(v.device, "any")
    blocks = triton.cdiv(width, launch.blocks["BD"])
    sizes = {"D": width, "SEGMENT": SEGMENT, **launch.arguments()}
    strides = (*k.stride()[:2], *v.stride()[:2])
    if segments > 1:
        _sum_segments[(blocks * batch, segments - 1, 1)](k, v, decay, ends, segments, ends.stride(0), *strides, **sizes)
    after = v.new_empty(3, batch, width, dtype=torch.float32)
    _average[(blocks * batch, segments, 1)](
        *(k, v, decay, bonus, receptance, ends, before, y, after, length, ends.stride(0), after.stride(0)),
        *strides,
        *((0, 0) if receptance is None else receptance.stride()[:2]),
        **sizes,
    )
    return y, (after[0], after[1], after[2])


@jit
def _sum_segments(
    k,
    v,
    decay,
    ends,
    segments,
    part,
    k_b,
    k_t,
    v_b,
    v_t,
    D: tl.constexpr,
    SEGMENT: tl.constexpr,
    BD: tl.constexpr,
    U: tl.constexpr,
):
    # The sums of one whole segment, as if nothing were before it.
    BLOCKS: tl.constexpr = (D + BD - 1) // BD
    b = (tl.program_id(0) // BLOCKS).to(tl.int64)
    segment = tl.program_id(1).to(tl.int64)
    nowhere = tl.num_programs(2) - 1  # 0, as in `argap.kernels.selective_scan`: a channel to a thread
    d = (tl.program_id(0) % BLOCKS) * BD + tl.arange(0, BD)
    in_width = d < D
    rows = tl.arange(0, U)
    far, at = (segment * SEGMENT + rows)[:, None], (d + nowhere)[None, :]
    k_at = k + b * k_b + far * k_t + at
    v_at = v + b * v_b + far * v_t + at
    w = tl.load(decay + d + nowhere, mask=in_width, other=0.0)
    values = tl.zeros([BD], dtype=tl.float32)
    weights = tl.zeros([BD], dtype=tl.float32)
    top = tl.full([BD], float("-inf"), dtype=tl.float32)
    for _ in range(0, SEGMENT, U):
        k_c = tl.load(k_at, mask=in_width[None, :], other=0.0).to(tl.float32)
        v_c = tl.load(v_at, mask=in_width[None, :], other=0.0).to(tl.float32)
        for i in tl.static_range(U):
            mine = (rows == i)[:, None]
            k_t1 = tl.sum(tl.where(mine, k_c, -0.0), 0)  # x + −0 is x: nothing is left of the sum
            v_t1 = tl.sum(tl.where(mine, v_c, -0.0), 0)
            values, weights, top = _merge(values, weights, top - w, v_t1, 1.0, k_t1)
        k_at += U * k_t
        v_at += U * v_t
    end = ends + (b * segments + segment) * D + d + nowhere
    tl.store(end, values, mask=in_width)
    tl.store(end + part, weights, mask=in_width)
    tl.store(end + 2 * part, top, mask=in_width)


@jit
def _average(
    k,
    v,
    decay,
    bonus,
    receptance,
    ends,
    before,
    y,
    after,
    length,
    part,
    whole,
    k_b,
    k_t,
    v_b,
    v_t,
    r_b,
    r_t,
    D: tl.constexpr,
    SEGMENT: tl.constexpr,
    BD: tl.constexpr,
    U: tl.constexpr,
):
    BLOCKS: tl.constexpr = (D + BD - 1) // BD
    b = (tl.program_id(0) // BLOCKS).to(tl.int64)
    segment = tl.program_id(1).to(tl.int64)
    segments = tl.num_programs(1)
    nowhere = tl.num_programs(2) - 1
    d = (tl.program_id(0) % BLOCKS) * BD + tl.arange(0, BD)
    in_width = d < D
    rows = tl.arange(0, U)
    w = tl.load(decay + d + nowhere, mask=in_width, other=0.0)
    u = tl.load(bonus + d + nowhere, mask=in_width, other=0.0)
    values = tl.zeros([BD], dtype=tl.float32)
    weights = tl.zeros([BD], dtype=tl.float32)
    top = tl.full([BD], float("-inf"), dtype=tl.float32)
    outer = b * D + d + nowhere
    if before is not None:
        values = tl.load(before + outer, mask=in_width, other=0.0)
        weights = tl.load(before + whole + outer, mask=in_width, other=0.0)
        top = tl.load(before + 2 * whole + outer, mask=in_width, other=0.0)

    # 1. What the segments before leave.
    end = ends + b * segments * D + d + nowhere
    for _ in range(segment):
        of_values = tl.load(end, mask=in_width, other=0.0)
        of_weights = tl.load(end + part, mask=in_width, other=0.0)
        of_top = tl.load(end + 2 * part, mask=in_width, other=0.0)
        values, weights, top = _merge(values, weights, top - SEGMENT * w, of_values, of_weights, of_top)
        end += D

    # 2. The segment, position by position.
    first = segment * SEGMENT
    count = tl.minimum(length - first, SEGMENT)
    far, at = (first + rows)[:, None], (d + nowhere)[None, :]
    k_at = k + b * k_b + far * k_t + at
    v_at = v + b * v_b + far * v_t + at
    y_at = y + (b * length + far) * D + at
    if receptance is not None:
        r_at = receptance + b * r_b + far * r_t + at
    for start in range(0, count, U):
        inside = (rows < count - start)[:, None] & in_width[None, :]
        k_c = tl.load(k_at, mask=inside, other=0.0).to(tl.float32)
        v_c = tl.load(v_at, mask=inside, other=0.0).to(tl.float32)
        result = tl.zeros([U, BD], dtype=tl.float32)
        for i in tl.static_range(U):
            mine = (rows == i)[:, None]
            k_t1 = tl.sum(tl.where(mine, k_c, -0.0), 0)
            v_t1 = tl.sum(tl.where(mine, v_c, -0.0), 0)
            upper, lower, _top = _merge(values, weights, top, v_t1, 1.0, k_t1 + u)
            result = tl.where(mine, (upper / lower)[None, :], result)
            more_values, more_weights, more_top = _merge(values, weights, top - w, v_t1, 1.0, k_t1)
            there = start + i < count  # past the end the sums stay
            values = tl.where(there, more_values, values)
            weights = tl.where(there, more_weights, weights)
            top = tl.where(there, more_top, top)
        if receptance is not None:
            result /= 1 + tl.exp(-tl.load(r_at, mask=inside, other=0.0).to(tl.float32))
            r_at += U * r_t
        tl.store(y_at, result.to(y.dtype.element_ty), mask=inside)
        k_at += U * k_t
        v_at += U * v_t
        y_at += U * D

    if segment == segments - 1:
        tl.store(after + outer, values, mask=in_width)
        tl.store(after + whole + outer, weights, mask=in_width)
        tl.store(after + 2 * whole + outer, top, mask=in_width)


@jit
def _merge(values, weights, top, more_values, more_weights, more_top):
    # Two pairs of sums under one exponent, the larger: the other pair is weighed by e^{−|difference|}.
    difference = top - more_top
    factor = tl.exp(-tl.abs(difference))
    old = tl.where(difference > 0, 1.0, factor)
    new = tl.where(difference > 0, factor, 1.0)
    return old * values + new * more_values, old * weights + new * more_weights, tl.maximum(top, more_top)
