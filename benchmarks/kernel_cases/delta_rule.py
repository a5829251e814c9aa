"""The delta rule vs. flash-linear-attention, which takes ``[B, T, H, D]``.

The cases ``figure 1`` compare the chunkwise form with the recurrent one at equal tokens and for several head sizes
(arXiv 2406.06484, figure 1, forward pass). Decays of the gated delta rule and of Kimi delta attention are those of
their models' initial gates: A from 1 to 16 and steps of 0.001 to 0.1.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from kernel_case import SHAPES, Case, first_output, relative_error, turned

from argap.kernels.recurrent.delta_rule import delta_rule, delta_rule_reference
from argap.models.recurrence import delta_rule_step

TOKENS, WIDTH = 2**15, 2048
"""Of figure 1: batch × length, and heads × head size."""
FIGURE = [(2**power, WIDTH // size, size) for size in (64, 128, 256) for power in range(9, 15)]
STEPPED = 2048
"""Longest sequence that is timed position by position in PyTorch."""


def cases() -> Iterator[Case]:
    from fla.ops.delta_rule import chunk_delta_rule, fused_recurrent_delta_rule
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
    from fla.ops.kda import chunk_kda

    for shape in SHAPES:
        inputs = draw(*shape)
        for norm in (False, True):
            yield case(
                "delta rule, norms" if norm else "delta rule",
                inputs,
                {"FLA": first_output(chunk_delta_rule, *inputs, scale=1.0, use_qk_l2norm_in_kernel=norm)},
                normalize=norm,
            )
        batch, length, heads, size = shape
        rate = torch.exp(torch.empty(batch, length, heads, size, device="cuda").uniform_(math.log(1e-3), math.log(0.1)))
        decay = -(1 + 15 * torch.rand(heads, 1, device="cuda")) * rate
        options: dict[str, Any] = {"scale": 1.0, "use_qk_l2norm_in_kernel": True}
        for name, g, peer in (
            ("gated delta rule", decay[..., 0].contiguous(), chunk_gated_delta_rule),
            ("delta rule by channel", decay, chunk_kda),
        ):
            q, k, v, beta = inputs
            yield case(
                name,
                inputs,
                {"FLA": first_output(peer, q, k, v, g, beta=beta, **options)},
                g,
                normalize=True,
            )
    for length, heads, size in FIGURE:
        inputs = draw(TOKENS // length, length, heads, size)
        peers: dict[str, Callable[[], Any]] = {
            "FLA chunkwise": first_output(chunk_delta_rule, *inputs, scale=1.0),
            "FLA recurrent": first_output(fused_recurrent_delta_rule, *inputs, scale=1.0),
        }
        if length <= STEPPED:
            peers["recurrent, PyTorch"] = partial(recurrent, *inputs)
        yield case("delta rule, figure 1", inputs, peers)


def draw(batch: int, length: int, heads: int, size: int) -> tuple[torch.Tensor, ...]:
    """Draw q, k (of unit length, up to rounding), v and β."""
    q, k, v = (torch.randn(batch, length, heads, size, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    beta = torch.rand(batch, length, heads, device="cuda", dtype=torch.bfloat16)
    return F.normalize(q, dim=-1), F.normalize(k, dim=-1), v, beta


def case(
    op: str,
    inputs: tuple[torch.Tensor, ...],
    peers: dict[str, Callable[[], Any]],
    decay: torch.Tensor | None = None,
    **options: Any,
) -> Case:
    q = inputs[0]
    given = inputs if decay is None else (*inputs, decay)
    batch, length, heads, size = q.shape
    return Case(
        op,
        f"B {batch}, T {length}, H {heads}, D {size}",
        flops=8 * q.numel() * size,  # per position S is read twice and written once; valid for small chunks
        bytes=4 * q.nbytes + sum(x.nbytes for x in given[3:]),
        ours=partial(turned, partial(decayed, delta_rule), *given, **options),
        check=partial(error, given),
        peers=peers,
    )


def decayed(function: Callable[..., Any], q: Any, k: Any, v: Any, beta: Any, decay: Any = None, **options: Any) -> Any:
    """Run ``function`` with the decay as its option."""
    return function(q, k, v, beta, log_decay=decay, **options)


def error(given: tuple[torch.Tensor, ...], y: torch.Tensor) -> float:
    """Compute the error of the first sequence's first heads against the float64 reference."""
    few = (x[:1, :, :2].double() for x in given)
    return relative_error(y[:1, :, :2], turned(partial(decayed, delta_rule_reference), *few))


def recurrent(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor) -> torch.Tensor:
    """Run position by position in PyTorch, as in generation; all ``[B, T, H, D]`` but ``beta [B, T, H]``."""
    state = q.new_zeros(q.shape[0], q.shape[2], q.shape[3], v.shape[3], dtype=torch.float32)
    outputs = []
    for t in range(q.shape[1]):
        y, state = delta_rule_step(q[:, t], k[:, t], v[:, t], beta[:, t], state)
        outputs.append(y.to(v.dtype))
    return torch.stack(outputs, dim=1)
