"""Small tensors that follow from sizes alone, such as tables of angles, made once for all layers of a model."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
CALLS = 4


def shared(make: Callable[P, R]) -> Callable[P, R]:
    """``make``, whose results of the last `CALLS` arguments are kept and must not be written to.

    They are not where a gradient is taken, because a graph cannot save a tensor of inference mode, nor in a compiled
    graph, which must not depend on earlier calls.
    """
    kept = lru_cache(maxsize=CALLS)(make)

    @wraps(make)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        keeps = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
        return (kept if keeps else make)(*args, **kwargs)  # pyright: ignore[reportArgumentType]

    return call
