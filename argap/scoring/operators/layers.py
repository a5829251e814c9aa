"""RMS norms, gated norms and gated MLPs of any family as one kernel each, where a layer's own outputs confirm the form.

Families write these layers out in several passes over memory, each under a class of its own. A layer is run once on
random rows, and the first of the known forms that agrees with it replaces its class on the model.

Legend: N rows, D width, H heads of V values.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from argap.checkpoints.rebinding import FAMILIES, bind
from argap.kernels.fused.gated_norm import gated_norm
from argap.kernels.fused.gated_product import gated_product
from argap.kernels.fused.residual_norm import residual_norm

Form = Callable[..., Any]
"""Takes the layer's own forward method, the layer and the input."""
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
        for inputs, form in _forms(module):
            if _agrees(module, form, inputs):
                yield owner, partial(bind, model, owner, "forward", form)
                break


def _forms(module: Any) -> Iterator[tuple[int, Form]]:
    """Yield the forms that a layer may have, and how many inputs it takes."""
    weight = getattr(module, "weight", None)
    if "RMSNorm" in type(module).__name__ and isinstance(weight, nn.Parameter) and weight.dim() == 1:
        if "Gated" in type(module).__name__:
            for activation in ("silu", "sigmoid"):
                for gate_first in (True, False):
                    yield 2, partial(_gated_norm, activation, gate_first)
        else:
            yield 1, partial(_norm, 0.0)
            yield 1, partial(_norm, 1.0)
    for names in GATED_MLPS:
        if all(isinstance(getattr(module, name, None), nn.Linear) for name in names):
            yield 1, partial(_gated_mlp, names)
    if all(isinstance(getattr(module, name, None), nn.Linear) for name in ("input_linear", "output_linear")):
        yield 1, _joint_mlp


def _agrees(module: nn.Module, form: Form, inputs: int) -> bool:
    parameter = next(module.parameters())
    random = torch.Generator(parameter.device).manual_seed(0)
    given = [
        torch.randn(1, ROWS, parameter.shape[-1], generator=random, device=parameter.device).to(parameter.dtype)
        for _ in range(inputs)
    ]
    try:
        own, found = module(*given), form(module.forward, module, *given)
    except Exception:  # the layer takes other inputs, or has another form
        return False
    if not isinstance(own, torch.Tensor) or own.shape != found.shape:
        return False
    error = float((found - own).float().norm() / own.float().norm())
    return error <= LAYER_TOLERANCE.get(parameter.dtype, 0.0)


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


def _gated_mlp(names: tuple[str, str, str], plain: Form, module: Any, x: torch.Tensor) -> torch.Tensor:
    gate, value, output = (getattr(module, name) for name in names)
    return output(gated_product(gate(x), value(x), "silu"))


def _joint_mlp(plain: Form, module: Any, x: torch.Tensor) -> torch.Tensor:
    gate, value = module.input_linear(x).chunk(2, dim=-1)
    return module.output_linear(gated_product(gate, value, "silu"))
