"""Small tensors that follow from sizes alone, such as tables of angles, computed once for all layers of a model."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")
CALLS = 4
_of_block: ContextVar[dict[Any, Any] | None] = ContextVar("of_block", default=None)


def shared(make: Callable[P, R]) -> Callable[P, R]:
    """Keep the results of ``make`` for its last `CALLS` arguments; callers must not write to them.

    Nothing is kept where a gradient is taken, because a graph cannot save a tensor of inference mode, nor in a compiled
    graph, which must not depend on earlier calls. Tensors as arguments are compared by identity, and their results are
    kept only in a block of `shared_within`, where they do not change.
    """
    kept = lru_cache(maxsize=CALLS)(make)

    @wraps(make)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if torch.is_grad_enabled() or torch.compiler.is_compiling():
            return make(*args, **kwargs)
        results = _of_block.get()
        if results is not None:
            key = (make, *args, *sorted(kwargs.items()))
            if key not in results:
                results[key] = make(*args, **kwargs)
            return results[key]
        of_tensor = any(isinstance(argument, torch.Tensor) for argument in (*args, *kwargs.values()))
        return (make if of_tensor else kept)(*args, **kwargs)  # pyright: ignore[reportArgumentType]

    return call


@contextmanager
def shared_within() -> Iterator[None]:
    """Keep results of `shared` until the end of the block, and use none from before it.

    For a step recorded by a CUDA graph: it computes its shared tensors once for all layers, and keeps no address of a
    tensor that may be freed before a replay.
    """
    token = _of_block.set({})
    try:
        yield
    finally:
        _of_block.reset(token)
