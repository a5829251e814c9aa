"""argap: which share of a language model's gap to attention is associative recall.

>>> import argap
>>> result = argap.open_result("runs/demo")                                    # doctest: +SKIP
>>> result.table()                                                             # doctest: +SKIP

The names listed here are the public surface; everything else may change. Importing the package costs nothing: each
name is imported when it is first used, and torch only when a model is scored. ``import argap.models`` registers the
model type ``argap`` with transformers.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

if not os.path.isdir(os.path.join(__path__[0], "kernels")):
    # A checkout without symbolic links, used in place: the three linked folders are beside this one.
    __path__.append(os.path.dirname(__path__[0]))

__version__ = "0.1.0"

if TYPE_CHECKING:
    from argap.api import compare, open_index, score
    from argap.errors import ArgapError
    from argap.records import EvaluationSpec
    from argap.result import Result, open_result

__all__ = ["ArgapError", "EvaluationSpec", "Result", "__version__", "compare", "open_index", "open_result", "score"]

MODULES = {
    "ArgapError": "argap.errors",
    "EvaluationSpec": "argap.records",
    "Result": "argap.result",
    "compare": "argap.api",
    "open_index": "argap.api",
    "open_result": "argap.result",
    "score": "argap.api",
}


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'argap' has no attribute {name!r}")
    value = getattr(importlib.import_module(MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
