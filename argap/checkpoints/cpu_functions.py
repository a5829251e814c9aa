"""On a CPU, run the PyTorch form of the functions that transformers takes from packages for GPUs.

transformers' linear-attention families (Qwen3-Next, OLMo-Hybrid, Kimi-Linear, …) call Triton functions of
flash-linear-attention wherever it can be imported, and those end in an error on a CPU. Each such function of
transformers wraps its own PyTorch form.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import wraps
from types import CellType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

IMPLEMENTATION = "implementation"
"""What the function that transformers' ``use_kernel_func_from_hub_with_fallback`` makes calls its choice."""


def use_torch_on_cpu(model: "nn.Module") -> None:
    """Let the functions of the model's family choose by the device of their tensors, for the rest of the process."""
    families = {sys.modules.get(type(module).__module__) for module in model.modules()}
    for family in families - {None}:
        for plain, choice in _choices(family):
            if choice.cell_contents is not plain and not hasattr(choice.cell_contents, "on_cpu"):
                choice.cell_contents = _by_device(choice.cell_contents, plain)


def _choices(family: ModuleType | None) -> Iterator[tuple[Callable[..., Any], CellType]]:
    """Yield the PyTorch form of each function of a family that has another, and the cell with the one in use."""
    for function in vars(family).values():
        plain = getattr(function, "__wrapped__", None)
        if isinstance(function, FunctionType) and plain is not None:
            cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
            if IMPLEMENTATION in cells:
                yield plain, cells[IMPLEMENTATION]


def _by_device(fast: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    import torch

    known = inspect.signature(plain).parameters

    @wraps(fast)
    def choose(*given: Any, **named: Any) -> Any:
        first = next(value for value in (*given, *named.values()) if isinstance(value, torch.Tensor))
        if first.device.type != "cpu":
            return fast(*given, **named)
        return plain(*given, **{name: value for name, value in named.items() if name in known})

    choose.on_cpu = plain  # pyright: ignore[reportAttributeAccessIssue]
    return choose
