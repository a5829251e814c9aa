"""On a CPU, run the PyTorch form of the functions that transformers takes from packages for GPUs.

transformers' linear-attention families (Qwen3-Next, OLMo-Hybrid, Kimi-Linear, …) call Triton functions of
flash-linear-attention wherever it can be imported, and those end in an error on a CPU. Each such function of
transformers wraps its own PyTorch form.
"""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple

from argap.checkpoints.rebinding import called, rebind

if TYPE_CHECKING:
    from torch import nn


class Choice(NamedTuple):
    """What transformers' ``use_kernel_func_from_hub_with_fallback`` keeps of a function."""

    plain: Callable[..., Any]
    """Its PyTorch form."""
    chosen: Callable[..., Any]
    """The form in use."""
    package: str
    """Which has a faster form; its name for ``import``."""


def choice_of(function: Callable[..., Any]) -> Choice | None:
    """Return how transformers chose the form of a function; None for other functions."""
    while (plain := getattr(function, "__wrapped__", None)) is not None:
        cells = inspect.getclosurevars(function).nonlocals if inspect.isfunction(function) else {}
        if {"implementation", "package"} <= cells.keys():
            return Choice(plain, cells["implementation"], cells["package"])
        function = plain
    return None


def use_torch_on_cpu(model: "nn.Module") -> None:
    """Let the model's modules choose the form of such functions by the device of the tensors."""
    choices = {name: choice for name, function in called(model).items() if (choice := choice_of(function))}
    replaced = {name: choice.plain for name, choice in choices.items() if choice.chosen is not choice.plain}
    rebind(model, {name: lambda fast, plain=plain: _by_device(fast, plain) for name, plain in replaced.items()})


def _by_device(fast: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    known = inspect.signature(plain).parameters

    @wraps(fast)
    def choose(*given: Any, **named: Any) -> Any:
        first = next(value for value in (*given, *named.values()) if isinstance(value, torch.Tensor))
        if first.device.type != "cpu":
            return fast(*given, **named)
        return plain(*given, **{name: value for name, value in named.items() if name in known})

    return choose
