"""Short causal depthwise convolution with all that follows it: bias, SiLU and gate, in one pass.

A kernel's time here is the time to read x and to write y. Each program has a tile of positions and
channels; the tap of s positions back reads the tile moved up by s rows, which lies in the L1 cache by then.

Legend: B batch, T positions, D width, N taps, P ≤ N − 1 positions before the first.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from argap.kernels.language import jit, runs_kernels, tl, triton
from argap.kernels.launch import Launch, LaunchTable
from argap.kernels.layout import with_rows

# By the taps: each is a load for every output.
LAUNCHES = LaunchTable(
    "short_convolution",
    {
        "any": {
            "few": Launch({"BT": 32, "BD": 128}, warps=4),
            "many": Launch({"BT": 64, "BD": 64}, warps=4),
        },
    },
)
FEW = 8
"""Up to so many taps are unrolled."""


def short_convolution(
    x: torch.Tensor,
    taps: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    silu: bool = False,
    gate: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """y_t = act(Σ_s h_s ⊙ x_{t−s} + b) ⊙ g_t, s from 0 to N − 1, with a filter h a channel.

    ``x [B, T, D]``, ``taps [N, D]``, ``bias [D]`` (None: 0), ``gate [B, T, D]`` (None: 1); act is SiLU with
    ``silu``, else nothing. ``state [B, P, D]`` holds the inputs before the first, P ≤ N − 1 (None: zeros).
    Gives y ``[B, T, D]`` in the type of ``x``, rounded once, and the last inputs ``[B, ≤ N − 1, D]``, the
    state of a sequence that goes on.

    On a GPU, where no gradient is asked for, one kernel that sums in float32; else the reference.
    """
    if runs_kernels(x, taps, bias, gate, state) and x.dtype != torch.float64:
        y = _by_kernel(x, taps, bias, silu, gate, state)
    else:
        y = short_convolution_reference(x, taps, bias, silu=silu, gate=gate, state=state)
    reach = len(taps) - 1
    seen = x if state is None or x.shape[1] >= reach else torch.cat([state.to(x.dtype), x], dim=1)
    return y, seen[:, max(0, seen.shape[1] - reach) :]


def short_convolution_reference(
    x: torch.Tensor,
    taps: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    silu: bool = False,
    gate: torch.Tensor | None = None,
    state: torch.Tensor | None = None,
) -> torch.Tensor:
    """y of `short_convolution`, tap by tap, in float32 or wider; differentiable."""
    kind = torch.promote_types(x.dtype, torch.float32)
    length, reach = x.shape[1], len(taps) - 1
    known = 0 if state is None else state.shape[1]
    padded = x if state is None else torch.cat([state.to(x.dtype), x], dim=1)
    padded = F.pad(padded, (0, 0, reach - known, 0)).to(kind)
    y = padded[:, reach:] * taps[0].to(kind)
    for back, tap in enumerate(taps[1:].to(kind).unbind(0), start=1):
        y = y + padded[:, reach - back : reach - back + length] * tap
    if bias is not None:
        y = y + bias.to(kind)
    if silu:
        y = F.silu(y)
    if gate is not None:
        y = y * gate.to(kind)
    return y.to(x.dtype)


def _by_kernel(
    x: torch.Tensor,
    taps: torch.Tensor,
    bias: torch.Tensor | None,
    silu: bool,
    gate: torch.Tensor | None,
    state: torch.Tensor | None,
) -> torch.Tensor:
    batch, length, width = x.shape
    y = x.new_empty(batch, length, width)
    x, taps = with_rows(x), with_rows(taps)
    gate = None if gate is None else with_rows(gate)
    state = None if state is None or state.shape[1] == 0 else with_rows(state)
    bias = None if bias is None else with_rows(bias)
    launch = LAUNCHES.at(x.device, "few" if len(taps) <= FEW else "many")
    tiles = triton.cdiv(width, launch.blocks["BD"]) * triton.cdiv(length, launch.blocks["BT"])
    _convolve[(tiles * batch,)](
        *(x, taps, bias, gate, state, y, length, 0 if state is None else state.shape[1], len(taps)),
        *x.stride()[:2],
        *((0, 0) if gate is None else gate.stride()[:2]),
        *((0, 0) if state is None else state.stride()[:2]),
        taps.stride(0),
        D=width,
        UNROLLED=len(taps) if len(taps) <= FEW else 0,
        SILU=silu,
        **launch.arguments(),
    )
    return y


@jit
def _convolve(
    x,
    taps,
    bias,
    gate,
    state,
    y,
    length,
    known,
    count,
    x_b,
    x_t,
    gate_b,
    gate_t,
    state_b,
    state_t,
    taps_s,
    D: tl.constexpr,
    UNROLLED: tl.constexpr,
    SILU: tl.constexpr,
    BT: tl.constexpr,
    BD: tl.constexpr,
):
    # One tile of BT positions and BD channels; neighbours in the grid are neighbours in the width.
    WIDE: tl.constexpr = (D + BD - 1) // BD
    steps = tl.cdiv(length, BT)
    tile = tl.program_id(0) // WIDE
    b = (tile // steps).to(tl.int64)
    start = (tile % steps) * BT
    t = start + tl.arange(0, BT)
    d = (tl.program_id(0) % WIDE) * BD + tl.arange(0, BD)
    in_width = d < D
    total = tl.zeros([BT, BD], dtype=tl.float32)
    x_at = x + b * x_b + d[None, :]
    state_at = None if state is None else state + b * state_b + d[None, :]
    if UNROLLED:
        for back in tl.static_range(UNROLLED):
            rows = _inputs(x_at, state_at, start, t, back, in_width, length, known, x_t, state_t)
            total += rows * tl.load(taps + back * taps_s + d, mask=in_width, other=0.0).to(tl.float32)[None, :]
    else:
        for back in range(count):
            rows = _inputs(x_at, state_at, start, t, back, in_width, length, known, x_t, state_t)
            total += rows * tl.load(taps + back * taps_s + d, mask=in_width, other=0.0).to(tl.float32)[None, :]
    if bias is not None:
        total += tl.load(bias + d, mask=in_width, other=0.0).to(tl.float32)[None, :]
    if SILU:
        total = total / (1 + tl.exp2(-1.4426950408889634 * total))  # log₂ e
    inside = (t < length)[:, None] & in_width[None, :]
    far = t.to(tl.int64)[:, None]  # offsets may pass 2³¹
    if gate is not None:
        total *= tl.load(gate + b * gate_b + far * gate_t + d[None, :], mask=inside, other=0.0).to(tl.float32)
    tl.store(y + (b * length + far) * D + d[None, :], total.to(y.dtype.element_ty), mask=inside)


@jit
def _inputs(x_at, state_at, start, t, back, in_width, length, known, x_t, state_t):
    # x at the positions ``back`` before t, of which those before the first are in the state.
    t = t - back
    far = t.to(tl.int64)[:, None]
    rows = tl.load(x_at + far * x_t, mask=((t >= 0) & (t < length))[:, None] & in_width[None, :], other=0.0)
    rows = rows.to(tl.float32)
    if state_at is not None:  # noqa: SIM102  (the outer condition is known when the kernel is compiled)
        if start < back:
            before = ((t < 0) & (t >= -known))[:, None] & in_width[None, :]
            rows += tl.load(state_at + (far + known) * state_t, mask=before, other=0.0).to(tl.float32)
    return rows
