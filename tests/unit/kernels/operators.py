"""The operators of `argap.kernels` with inputs drawn for any size, and the sizes at which their laws are tested."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F

from argap.kernels.attention.sliding_attention import sliding_attention
from argap.kernels.convolution.long_convolution import filter_spectrum, long_convolution_reference, packed_convolution
from argap.kernels.convolution.one_kernel_convolution import (
    one_kernel_convolution,
    one_kernel_size,
    one_kernel_spectrum,
)
from argap.kernels.convolution.short_convolution import short_convolution, short_convolution_reference
from argap.kernels.fused.gated_norm import gated_norm, gated_norm_reference
from argap.kernels.fused.gated_product import ACTIVATIONS, gated_product, gated_product_reference
from argap.kernels.fused.residual_norm import residual_norm, residual_norm_reference
from argap.kernels.fused.step_decay import step_and_decay, step_and_decay_reference, step_decay, step_decay_reference
from argap.kernels.fused.token_shift import token_shift, token_shift_reference
from argap.kernels.fused.weighted_rows import weighted_rows, weighted_rows_reference
from argap.kernels.launch import Launch
from argap.kernels.recurrent import wkv as wkv_module
from argap.kernels.recurrent.delta_rule import delta_rule, delta_rule_reference
from argap.kernels.recurrent.generalized_delta_rule import generalized_delta_rule, generalized_delta_rule_reference
from argap.kernels.recurrent.gla import gla, gla_reference
from argap.kernels.recurrent.linear_attention import linear_attention, linear_attention_reference
from argap.kernels.recurrent.taylor_attention import taylor_attention, taylor_attention_reference
from argap.kernels.recurrent.taylor_sums import SEGMENT
from argap.kernels.recurrent.wkv import wkv, wkv_reference
from argap.kernels.scan.diagonal_scan import diagonal_scan, diagonal_scan_reference
from argap.kernels.scan.selective_scan import selective_scan, selective_scan_reference
from tests.unit.kernels.conftest import TOLERANCE

Given = dict[str, Any]
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
DECAYS = ("none", "of a head", "of a position")
OF_INPUT = ("of a position", "of a channel")
# Over a chunk of 64 positions a channel decays to about e^−3; e^−50, below float16's range; e^−6000.
STRENGTHS = (0.25, 4.0, 500.0)


class Draw:
    """Tensors of a seed, a dtype and a device."""

    def __init__(self, seed: int, dtype: torch.dtype, device: torch.device) -> None:
        self.generator, self.dtype, self.device = torch.Generator().manual_seed(seed), dtype, device

    def normal(self, *size: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.randn(size, generator=self.generator).to(self.device, dtype or self.dtype)

    def uniform(self, *size: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        return torch.rand(size, generator=self.generator).to(self.device, dtype or self.dtype)

    def part(self, *size: int) -> torch.Tensor:
        """A part of wider rows, as a projection gives them."""
        return self.normal(*size[:-1], 3 * size[-1])[..., size[-1] : 2 * size[-1]]

    def state(self, *size: int) -> torch.Tensor:
        return self.normal(*size, dtype=torch.float32)


def of_delta_rule(
    draw: Draw,
    length: int,
    key: int,
    value: int,
    *,
    normalize: bool = False,
    decay: str = "none",
    strength: float = 1,
    groups: int = 2,
    **options: Any,
) -> Given:
    """Queries and keys of unit length and β from 0 to 2; ``normalize``: of lengths from 0 to 30 instead."""
    q, k = (draw.normal(2, length, groups, key).transpose(1, 2) for _ in range(2))
    v = draw.normal(2, length, 2, value).transpose(1, 2)
    lengths = torch.linspace(0, 30, length, device=draw.device)[:, None].to(draw.dtype) if normalize else 1
    q, k = (F.normalize(x, dim=-1) * lengths for x in (q, k))
    beta = 2 * draw.uniform(2, length, 2).transpose(1, 2)
    given = {"q": q, "k": k, "v": v, "beta": beta, "normalize": normalize, "state": draw.state(2, 2, key, value)}
    given |= options
    if decay == "none":
        return given
    rates = -strength * draw.uniform(2, length, 2, key, dtype=torch.float32).transpose(1, 2) ** 4
    return given | {"log_decay": rates if decay == "of a channel" else rates[..., 0], "scale": 0.5}


def of_generalized_delta_rule(
    draw: Draw, length: int, key: int, value: int, *, dtype: torch.dtype | None = None
) -> Given:
    """RWKV-7's: the removed key has unit length, and is written back at a rate; decays down to e^−0.6."""
    draw.dtype = dtype or draw.dtype
    q, k, removed = (draw.normal(2, length, 2, key).transpose(1, 2) for _ in range(3))
    removed, rate = F.normalize(removed, dim=-1), draw.uniform(2, 2, length, key)
    decay = -0.6 * draw.uniform(2, length, 2, key, dtype=torch.float32).transpose(1, 2)
    given = {"q": q, "k": k / key**0.5, "v": draw.normal(2, 2, length, value), "a": -removed, "b": removed * rate}
    return given | {"log_decay": decay, "least_log_decay": -0.6, "state": draw.state(2, 2, key, value)}


def of_gla(draw: Draw, length: int, key: int, value: int, *, strength: float = 0.25, state: bool = True) -> Given:
    """Decays in float32, near 1 at most positions."""
    q, k, v = (draw.normal(2, 3, length, size) for size in (key, key, value))
    decay = -strength * draw.uniform(2, 3, length, key, dtype=torch.float32) ** 4
    return {"q": q, "k": k, "v": v, "log_decay": decay, "state": draw.state(2, 3, key, value) if state else None}


def of_linear_attention(
    draw: Draw,
    length: int,
    key: int,
    value: int,
    *,
    decay: str = "none",
    normalize: bool = False,
    state: bool = True,
    ssd: bool = False,
) -> Given:
    """Positive q and k, so that their sums are far from 0; decays down to e^−50, whose quotients overflow.

    ``ssd``: one query and key for all heads, with step and skip.
    """
    q, k = (draw.uniform(2, 1 if ssd else 3, length, key) for _ in range(2))
    rates = {
        "none": None,
        "of a head": torch.tensor([0.0, -0.02, -50.0], device=draw.device),
        "of a position": -50 * draw.uniform(2, 3, length, dtype=torch.float32) ** 8,
    }[decay]
    before = draw.uniform(2, 3, key, value + normalize, dtype=torch.float32) if state else None
    options = {"log_decay": rates, "normalize": normalize, "state": before}
    if ssd:
        options |= {"step": draw.uniform(2, length, 3).transpose(1, 2), "skip": draw.normal(3)}
    return {"q": q, "k": k, "v": draw.normal(2, 3, length, value), **options}


def of_taylor_attention(draw: Draw, length: int, key: int, value: int, *, normalize: bool = True, heads: int = 2):
    q, k, v = (draw.normal(2, heads, length, size) for size in (key, key, value))
    _, before = taylor_attention_reference(*(x[:, :, :3].float() for x in (k, q, v)), normalize=normalize)
    return {"q": q, "k": k, "v": v, "normalize": normalize, "state": before if heads == 2 else None}


def of_wkv(draw: Draw, length: int, width: int, segment: int = 64) -> Given:
    """k, v and r as parts of a wider row; decays from e^−5 to e^3 a step; boni."""
    k, v, r = (3 * draw.normal(2, length, 3 * width)).chunk(3, dim=-1)
    decay = torch.linspace(-5, 3, width, device=draw.device).exp()
    sums = draw.state(2, width), draw.uniform(2, width, dtype=torch.float32) + 1, 3 * draw.state(2, width)
    given = {"k": k, "v": v, "receptance": r, "decay": decay, "bonus": draw.state(width), "state": sums}
    return given | {"segment": segment}


def wkv_in_segments(*, segment: int, **given: Any) -> Any:
    with mock.patch.object(wkv_module, "SEGMENT", segment):
        return wkv(**given)


def of_selective_scan(draw: Draw, length: int, width: int, states: int, *, extras: bool = True) -> Given:
    """Steps from 10⁻⁶ to 30, B and C as parts of a wider row."""
    step = 17 * draw.uniform(2, length, width, dtype=torch.float32) - 14
    step[:, ::7, 0] = 30
    B, C = draw.normal(2, length, 3 + 2 * states)[..., 3:].chunk(2, dim=-1)
    decay = -5 * draw.uniform(width, states, dtype=torch.float32)
    given = {"u": draw.normal(2, length, width), "step": step.to(draw.dtype), "A": decay, "B": B, "C": C}
    if not extras:
        return given
    return given | {
        "skip": draw.state(width),
        "gate": draw.normal(2, length, width),
        "state": draw.state(2, width, states),
    }


def of_diagonal_scan(draw: Draw, length: int, width: int) -> Given:
    """Decays from 0 to 1, some at exactly 0, and a start within the second sequence."""
    decay, starts = draw.uniform(2, length, width), torch.zeros(2, length, dtype=torch.bool, device=draw.device)
    decay[:, ::5, 0], starts[1, length // 2] = 0, True
    given = {"decay": decay, "value": draw.part(2, length, width), "starts": starts}
    return given | {"state": draw.state(2, width)}


def of_short_convolution(draw: Draw, length: int, taps: int, *, extras: bool = False) -> Given:
    x, gate = draw.part(2, length, 40), draw.part(2, length, 40)  # 40: no multiple of a block
    given = {"x": x, "taps": draw.normal(taps, 40)}
    if not extras:
        return given
    return given | {"bias": draw.normal(40), "silu": True, "gate": gate, "state": draw.normal(2, max(0, taps - 2), 40)}


def short_convolution_and_state(
    x: torch.Tensor, taps: torch.Tensor, state: torch.Tensor | None = None, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    seen = x if state is None else torch.cat([state, x], dim=1)
    last = seen[:, max(0, seen.shape[1] - len(taps) + 1) :]
    return short_convolution_reference(x, taps, state=state, **options), last


def of_long_convolution(draw: Draw, batch: int, length: int, taps: int, width: int = 40) -> Given:
    return {"x": draw.part(batch, length, width), "taps": draw.state(taps, width)}


def of_one_kernel_convolution(
    draw: Draw, batch: int, length: int, taps: int, P: int = 16, Q: int = 16, *, extras: str = ""
) -> Given:
    """D = 6 is not a multiple of C."""
    launch = Launch({"P": P, "Q": Q, "C": 4}, warps=one_kernel_size(length) // P * 4 // 32)
    given = of_long_convolution(draw, batch, length, taps, 6)
    gate, skip = draw.part(batch, length, 6), draw.normal(6)
    return (
        given | {"launch": launch} | ({"gate": gate} if extras else {}) | ({"skip": skip} if "skip" in extras else {})
    )


def gated_sum(x: Any, taps: Any, gate: Any = 1, skip: Any = 0, launch: object = None) -> torch.Tensor:
    return gate * (long_convolution_reference(x, taps) + skip * x)


def of_residual_norm(draw: Draw, rows: int, width: int, *, centered: bool, residual: bool) -> Given:
    given = {"x": 1 + 3 * draw.normal(rows, width), "weight": draw.normal(width), "eps": 1e-5, "centered": centered}
    if residual:
        given["residual"] = 1 + 3 * draw.normal(rows, width)
    return given | ({"bias": draw.normal(width)} if centered else {})


def of_token_shift(draw: Draw, length: int, width: int) -> Given:
    return {"x": draw.normal(2, length, width), "weights": tuple(draw.normal(width) for _ in range(3))}


def of_weighted_rows(draw: Draw, rows: int, tokens: int, experts: int, width: int) -> Given:
    """Rows that several tokens choose, and rows that none does."""
    index = (torch.arange(tokens * experts, device=draw.device) * 7 % rows).view(tokens, experts)
    return {"rows": draw.part(rows, width), "index": index, "weights": draw.uniform(tokens, experts)}


def of_step_decay(draw: Draw, rows: int, heads: int, size: int) -> Given:
    """Gates from −40 to 40, as part of a wider projection."""
    x = 40 * (2 * draw.uniform(rows, heads * size + 3)[:, 1:-2] - 1)
    return {"x": x, "bias": draw.normal(heads * size), "log_rate": draw.normal(heads)}


def of_step_and_decay(draw: Draw, rows: int, heads: int, size: int) -> Given:
    """Steps on both sides of their limits."""
    given = of_step_decay(draw, rows, heads, size)
    return {"rate": -given.pop("log_rate").exp(), **given, "least": 0.5, "most": 30.0}


def of_gated_product(draw: Draw, rows: int, width: int, *, activation: str, extras: bool) -> Given:
    given: Given = {"gate": draw.part(2, rows, width), "value": draw.part(2, rows, width), "activation": activation}
    if extras:
        given |= {name: draw.normal(width) for name in ("gate_bias", "skip", "value_bias")}
        given["skipped"] = draw.part(2, rows, width)
    return given


def of_gated_norm(draw: Draw, rows: int, heads: int, size: int, *, weights: int = 0, **options: Any) -> Given:
    """``weights``: 0, 1 for all heads, 2 for each head. The gate is part of a wider projection."""
    weight = None if weights == 0 else draw.normal(size if weights == 1 else heads * size)
    values, gate = draw.normal(rows, heads, size), draw.normal(rows, heads * size + 3)[:, 1:-2]
    return {"values": values, "gate": gate, "weight": weight, "eps": 1e-3, "dtype": draw.dtype, **options}


def of_sliding_attention(draw: Draw, length: int, window: int, key: int = 16, groups: int = 3, **options: Any) -> Given:
    q, k, v = (draw.normal(2, length, heads, key).transpose(1, 2) for heads in (3, groups, groups))
    return {"q": q, "k": k, "v": v, "window": window, **options}


def masked_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, window: int, scale: float | None = None
) -> torch.Tensor:
    """Position i sees i − w + 1 to i."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    at = torch.arange(q.shape[2], device=q.device)
    back = at[:, None] - at
    scores = (scale * q @ k.mT).masked_fill((back < 0) | (back >= window), -torch.inf)
    return scores.softmax(dim=-1) @ v


@dataclass(frozen=True)
class Operator:
    """What runs kernels, what it should give in float64, and inputs of any size."""

    call: Callable[..., Any]
    reference: Callable[..., Any]
    draw: Callable[..., Given]
    state_error: float | None = None
    """The tolerance of the states in float32 after the first output, where it is not that of the first."""
    recurrent: bool = False


OPERATORS = {
    "delta_rule": Operator(delta_rule, delta_rule_reference, of_delta_rule, recurrent=True),
    "generalized_delta_rule": Operator(
        generalized_delta_rule, generalized_delta_rule_reference, of_generalized_delta_rule, recurrent=True
    ),
    "gla": Operator(gla, gla_reference, of_gla, recurrent=True),
    "linear_attention": Operator(linear_attention, linear_attention_reference, of_linear_attention, recurrent=True),
    "taylor_attention": Operator(taylor_attention, taylor_attention_reference, of_taylor_attention, recurrent=True),
    "wkv": Operator(
        wkv_in_segments,
        lambda segment, **given: wkv_reference(**given),
        of_wkv,
        4 * TOLERANCE[torch.float32],
        recurrent=True,
    ),
    "selective_scan": Operator(
        selective_scan, selective_scan_reference, of_selective_scan, TOLERANCE[torch.float32], recurrent=True
    ),
    "diagonal_scan": Operator(
        diagonal_scan, diagonal_scan_reference, of_diagonal_scan, TOLERANCE[torch.float32], recurrent=True
    ),
    "short_convolution": Operator(short_convolution, short_convolution_and_state, of_short_convolution),
    "long_convolution": Operator(
        lambda x, taps: packed_convolution(x, filter_spectrum(taps, x.shape[1])),
        long_convolution_reference,
        of_long_convolution,
    ),
    "one_kernel_convolution": Operator(
        lambda x, taps, launch, **given: one_kernel_convolution(
            x, one_kernel_spectrum(taps, x.shape[1], launch), launch, **given
        ),
        gated_sum,
        of_one_kernel_convolution,
    ),
    "residual_norm": Operator(residual_norm, residual_norm_reference, of_residual_norm),
    "token_shift": Operator(token_shift, token_shift_reference, of_token_shift),
    "step_decay": Operator(
        lambda **given: step_decay(**given).to(given["x"].dtype), step_decay_reference, of_step_decay
    ),
    "step_and_decay": Operator(
        lambda x, **given: tuple(part.to(x.dtype) for part in step_and_decay(x, **given)),
        step_and_decay_reference,
        of_step_and_decay,
    ),
    "weighted_rows": Operator(weighted_rows, weighted_rows_reference, of_weighted_rows),
    "gated_product": Operator(gated_product, gated_product_reference, of_gated_product),
    "gated_norm": Operator(
        gated_norm,
        lambda dtype, **given: gated_norm_reference(**given, dtype=torch.float64),
        of_gated_norm,
    ),
    "sliding_attention": Operator(sliding_attention, masked_attention, of_sliding_attention),
}

PAIRS = (True, False)
FORWARD: list[tuple[str, list[tuple[int, ...]], tuple[torch.dtype, ...], list[Given]]] = [
    ("delta_rule", [(1, 16, 16), (2, 8, 5), (63, 20, 40), (64, 32, 32), (65, 64, 70), (130, 16, 8)], FLOATS, [{}]),
    ("delta_rule", [(70, 24, 16)], (torch.float32, torch.bfloat16), [{"normalize": True}]),
    ("delta_rule", [(1, 16, 16), (70, 24, 40)], FLOATS,
     [{"decay": decay, "normalize": normalize} for decay in OF_INPUT for normalize in PAIRS]),
    ("delta_rule", [(70, 24, 40), (70, 130, 20)], FLOATS,
     [{"groups": 1, "decay": decay, "normalize": True, "norm_eps": 0.5} for decay in ("none", *OF_INPUT)]),
    ("delta_rule", [(130, 20, 16), (70, 130, 20)], FLOATS[1:], [{"decay": each} for each in OF_INPUT]),
    ("delta_rule", [(65, 20, 16)], FLOATS[::2],
     [{"decay": decay, "strength": strength, "normalize": True} for decay in OF_INPUT for strength in STRENGTHS[1:]]),
    ("generalized_delta_rule", [(1, 16, 16), (63, 20, 40), (130, 64, 70), (70, 100, 24)], FLOATS, [{}]),
    ("gla", [(1, 16, 16), (65, 20, 40)], FLOATS, [{"strength": each} for each in STRENGTHS]),
    ("gla", [(2, 16, 70), (63, 7, 5), (64, 128, 33), (65, 256, 40), (130, 64, 16)], (torch.float32,),
     [{"state": False}]),
    ("gla", [(70, 128, 16), (70, 130, 16), (70, 256, 16)], FLOATS, [{}]),  # more than one block of a key
    ("linear_attention", [(1, 16, 16), (65, 20, 40)], FLOATS,
     [{"decay": decay, "normalize": normalize} for decay in DECAYS for normalize in PAIRS]),
    ("linear_attention", [(1, 16, 16), (65, 20, 40)], FLOATS,
     [{"ssd": True, "decay": decay, "normalize": normalize} for decay in DECAYS for normalize in PAIRS]),
    ("linear_attention", [(2, 16, 70), (63, 7, 5), (64, 128, 33), (130, 64, 16), (40, 200, 20), (40, 300, 20)],
     (torch.float32,), [{"decay": "of a head", "state": False}]),
    ("taylor_attention", [(1, 16, 64), (65, 5, 40), (127, 16, 20)], FLOATS, [{"normalize": each} for each in PAIRS]),
    ("taylor_attention", [(2, 8, 70), (63, 3, 5), (64, 24, 16), (200, 4, 8), (SEGMENT + 30, 4, 8)], (torch.float32,),
     [{"heads": 1}]),
    ("wkv", [(1, 5, 64), (2, 32, 64), (17, 40, 64), (64, 3, 64), (31, 33, 64), (33, 8, 16), (70, 4, 32)],
     FLOATS, [{}]),
    ("selective_scan", [(1, 5, 3), (2, 32, 16), (17, 64, 16), (65, 8, 2), (31, 33, 5)],
     FLOATS, [{}]),
    ("diagonal_scan", [(1, 5), (64, 3), (130, 40)], FLOATS, [{}]),
    ("short_convolution", [(1, 4), (2, 3), (63, 1), (64, 9), (65, 4), (127, 2), (70, 4)], FLOATS,
     [{"extras": each} for each in PAIRS]),
    ("long_convolution", [(1, 1, 1), (2, 2, 2), (3, 63, 63), (2, 64, 40), (5, 65, 65), (1, 127, 1), (2, 500, 500)],
     FLOATS, [{}]),
    # Of sizes M 256, 512 (from 500) and 1024 (700), with one factor and with two.
    ("one_kernel_convolution", [(1, 1, 1, 16, 16), (3, 2, 2, 16, 8), (1, 63, 63, 16, 8), (2, 64, 40, 16, 16),
     (1, 65, 65, 16, 8), (1, 127, 1, 16, 16), (2, 256, 256, 16, 8), (1, 500, 500, 32, 16), (1, 512, 512, 16, 16),
     (1, 700, 700, 16, 8)], FLOATS, [{}]),
    ("one_kernel_convolution", [(2, 200, 200)], (torch.float32,), [{"extras": "gate"}, {"extras": "gate, skip"}]),
    ("residual_norm", [(1, 1), (3, 63), (65, 40), (7, 960), (2, 2049)], FLOATS,
     [{"centered": centered, "residual": residual} for centered in PAIRS for residual in PAIRS]),
    ("token_shift", [(1, 5), (9, 40), (63, 300)], FLOATS, [{}]),
    ("step_decay", [(1, 1, 1), (9, 40, 1), (17, 3, 100)], FLOATS, [{}]),
    ("step_and_decay", [(1, 1, 1), (70, 24, 1), (17, 3, 100)], FLOATS, [{}]),
    ("weighted_rows", [(1, 1, 1, 1), (9, 5, 3, 40), (70, 33, 8, 1100)], FLOATS, [{}]),
    ("gated_product", [(1, 5), (9, 40), (63, 300), (17, 960)], FLOATS,
     [{"activation": name, "extras": extras} for name in ACTIVATIONS for extras in PAIRS]),
    ("gated_norm", [(1, 1, 2), (5, 3, 40), (33, 4, 240), (3, 2, 3000)], FLOATS, [{"centered": True}, {"weights": 1},
      {"weights": 2, "gate_first": True}, {"weights": 1, "activation": "sigmoid"}]),
    ("sliding_attention", [(1, 1), (1, 1000), (2, 2), (63, 64), (64, 1), (65, 64), (65, 1000), (127, 2), (500, 64)],
     (torch.float32, torch.bfloat16), [{}]),
    ("sliding_attention", [(65, 64), (127, 2)], (torch.float64,), [{}]),
    ("sliding_attention", [(200, 100), (130, 70)], FLOATS, [{"key": 40, "groups": 1, "scale": 0.3}]),
    ("sliding_attention", [(70, 65), (260, 129)], FLOATS, [{"key": 136}]),
]  # fmt: skip
"""Operators, the sizes and dtypes of their inputs, and further options."""


def forward_cases() -> Iterator[Any]:
    """Yield every operator, size, options and dtype: float16 at the last size, bfloat16 where there is a GPU, except of
    the operator that has kernels for bfloat16 alone."""
    for name, sizes, dtypes, options in FORWARD:
        for size in sizes:
            for option in options:
                for dtype in dtypes:
                    if dtype == torch.float16 and size != sizes[-1]:
                        continue
                    said = [name, *map(str, size), *(f"{key}={value}" for key, value in option.items())]
                    marks = pytest.mark.gpu if dtype == torch.bfloat16 and name != "generalized_delta_rule" else ()
                    yield pytest.param(name, size, option, dtype, marks=marks, id=f"{'-'.join(said)}-{dtype}"[:120])
