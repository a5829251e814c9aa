"""What tests of several mixers share."""

from typing import TypeVar

import torch

Module = TypeVar("Module", bound=torch.nn.Module)


def redraw(module: Module, std: float = 1.0) -> Module:
    """Draw every parameter from a normal distribution, so that none stays where it starts (biases 0, norms 1)."""
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=std)
    return module


def assert_all_learn(module: torch.nn.Module) -> None:
    """Every parameter has a finite gradient that is not zero everywhere."""
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name
