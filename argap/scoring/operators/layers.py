"""Norms, gates, gated MLPs and experts of any family by fused kernels, where a layer's own outputs confirm the form.

Families write these layers out in several passes over memory, each under a class of its own. A layer is run once on
random rows, and the first of the known forms that agrees with it replaces its class on the model.

Legend: N rows, D width, H heads of V values.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from argap.checkpoints.rebinding import FAMILIES, bind
from argap.kernels.fused.gated_norm import gated_norm
from argap.kernels.fused.gated_product import gated_product
from argap.kernels.fused.residual_norm import residual_norm
from argap.kernels.fused.step_decay import step_decay
from argap.scoring.operators.experts import grouped_experts, takes_experts

Form = Callable[..., Any]
"""Takes the layer's own forward method, the layer and the input."""
Given = Callable[[torch.Generator, torch.Tensor], tuple[torch.Tensor, ...]]
"""Draws a layer's inputs like one of its parameters."""
ROWS = 3
LAYER_TOLERANCE = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
"""Largest ‖form − layer‖ / ‖layer‖; other forms differ by a tenth and more."""
GATED_MLPS = (
    ("gate_proj", "up_proj", "down_proj"),
    ("w1", "w3", "w2"),
    ("proj_up_gate", "proj_up", "proj_down"),
)
"""Names of the projections to gate, value and output."""


def fused_layers(model: nn.Module) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the class of each layer that has a known form, and the patch that gives it to all such layers."""
    first: dict[str, nn.Module] = {}
    for module in model.modules():
        if type(module).__module__.startswith(FAMILIES):
            first.setdefault(type(module).__name__, module)
    for owner, module in first.items():
        for given, form in _forms(module):
            if _agrees(module, form, given):
                yield owner, partial(bind, model, owner, "forward", form)
                break


def _forms(module: Any) -> Iterator[tuple[Given, Form]]:
    """Yield the forms that a layer may have, and what draws its inputs."""
    owner, weight = type(module).__name__, getattr(module, "weight", None)
    if "RMSNorm" in owner and isinstance(weight, nn.Parameter) and weight.dim() == 1:
        yield from _norm_forms(len(weight), gated="Gated" in owner)
    if "MultiHeadLayerNorm" in owner and isinstance(weight, nn.Parameter):
        yield _rows(module.num_heads, module.head_dim), _norm_of_heads
    for names in GATED_MLPS:
        if _has_linear(module, names):
            yield _rows(getattr(module, names[0]).in_features), partial(_gated_mlp, names)
    if _has_linear(module, ("input_linear", "output_linear")):
        yield _rows(module.input_linear.in_features), _joint_mlp
    if _has_linear(module, ("f_a_proj", "f_b_proj")) and owner.endswith("ForgetGate"):
        yield _rows(module.f_a_proj.in_features), _forget_gate
    if takes_experts(module):
        yield partial(_tokens_of_experts, module), grouped_experts


def _norm_forms(width: int, *, gated: bool) -> Iterator[tuple[Given, Form]]:
    if gated:
        for activation in ("silu", "sigmoid"):
            for gate_first in (True, False):
                yield _rows(width, inputs=2), partial(_gated_norm, activation, gate_first)
    else:
        for offset in (0.0, 1.0):
            yield _rows(width), partial(_norm, offset)


def _rows(*width: int, inputs: int = 1) -> Given:
    def draw(random: torch.Generator, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
        shape = (1, ROWS, *width)
        return tuple(torch.randn(shape, generator=random, device=like.device).to(like.dtype) for _ in range(inputs))

    return draw


def _tokens_of_experts(module: Any, random: torch.Generator, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Draw rows, two experts of each and their weights."""
    width = module.gate_up_proj.shape[1 if module.is_transposed else 2]
    x = torch.randn(ROWS, width, generator=random, device=like.device)
    scores = torch.rand(ROWS, module.num_experts, generator=random, device=like.device)
    chosen = scores.topk(min(2, module.num_experts))
    return x.to(like.dtype), chosen.indices, chosen.values.to(like.dtype)


def _has_linear(module: nn.Module, names: Iterable[str]) -> bool:
    return all(isinstance(getattr(module, name, None), nn.Linear) for name in names)


def _agrees(module: nn.Module, form: Form, draw: Given) -> bool:
    like = next(module.parameters())
    given = draw(torch.Generator(like.device).manual_seed(0), like)
    try:
        own, found = module(*given), form(module.forward, module, *given)
    except Exception:  # the layer takes other inputs, or has another form
        return False
    if not isinstance(own, torch.Tensor) or (own.shape, own.dtype) != (found.shape, found.dtype):
        return False
    return bool((found - own).float().norm() <= LAYER_TOLERANCE.get(like.dtype, 0.0) * own.float().norm())


def _epsilon(module: Any) -> float:
    return module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps


def _norm(offset: float, plain: Form, module: Any, x: torch.Tensor) -> torch.Tensor:
    """Norm ``x [..., D]`` with the weights plus ``offset``, which is 1 in Gemma's norms."""
    weight = module.weight
    if x.dtype != weight.dtype:
        return plain(x)
    return residual_norm(x, weight.float() + offset if offset else weight, _epsilon(module))[0]


def _gated_norm(
    activation: Any, gate_first: bool, plain: Form, module: Any, x: torch.Tensor, gate: torch.Tensor | None = None
) -> torch.Tensor:
    """Norm and gate ``x [..., D]`` by ``gate [..., D]``, in one group or as many as the layer says."""
    if gate is None or gate.dtype != x.dtype:
        return plain(x, gate)
    groups = getattr(module, "n_groups", 1)
    if hasattr(module, "group_size"):
        groups = x.shape[-1] // module.group_size
    options = {"dtype": x.dtype, "activation": activation, "gate_first": gate_first}
    return gated_norm(x.unflatten(-1, (groups, -1)), gate, module.weight, _epsilon(module), **options)


def _norm_of_heads(plain: Form, module: Any, x: torch.Tensor) -> torch.Tensor:
    """Norm each head of ``x [B, T, H, V]`` around its mean, then multiply by the weights ``[H·V]``."""
    if module.bias is not None or x.dtype != module.weight.dtype:
        return plain(x)
    return F.layer_norm(x, x.shape[-1:], eps=module.eps).flatten(-2) * module.weight


def _forget_gate(plain: Form, module: Any, x: torch.Tensor) -> torch.Tensor:
    """Compute Kimi's log decay −e^A ⊙ softplus(W x + b), ``[B, T, H, K]`` in float32."""
    logits = module.f_b_proj(module.f_a_proj(x))
    return step_decay(logits, module.dt_bias.flatten(), module.A_log.flatten()).unflatten(-1, (-1, module.head_dim))


def _gated_mlp(names: tuple[str, str, str], plain: Form, module: Any, x: torch.Tensor) -> torch.Tensor:
    """Gate the projected ``x [..., D]``; Falcon-H1 also scales the gate before SiLU and the output."""
    gate, value, output = (getattr(module, name) for name in names)
    before, after = (getattr(module, name, 1.0) for name in ("gate_multiplier", "down_multiplier"))
    gated = gate(x) if before == 1 else gate(x) * before
    y = output(gated_product(gated, value(x), "silu"))
    return y if after == 1 else y * after


def _joint_mlp(plain: Form, module: Any, x: torch.Tensor) -> torch.Tensor:
    gate, value = module.input_linear(x).chunk(2, dim=-1)
    return module.output_linear(gated_product(gate, value, "silu"))
