"""argap: on which tokens one language model is behind or ahead of another, by how much, and how sure that is.

>>> import argap
>>> argap.open_result("results/table1-7m/7m").reference
'attention'

The names listed here are the public surface; everything else may change. Importing the package is cheap: each name is
imported on first use, and torch only when a model is scored. ``import argap.models`` registers the
model type ``argap`` with transformers.

Data flows down this list; each step writes files that the next one reads:

1. `argap.corpus` and `argap.text`: turn text into tokens.
2. `argap.bigram_index`: count every bigram of the training corpus.
3. `argap.evaluation`: cut the windows to score, the same for every model.
4. `argap.checkpoints`, `argap.models`, `argap.kernels`: turn a name into a model that runs.
5. `argap.scoring`: compute the log-prob of every token, a run.
6. `argap.tokens`: label every token; read runs and labels as one table.
7. `argap.slices`: sum by condition, bin and document.
8. `argap.metric`: turn sums into gaps, shares and intervals.
9. `argap.results`: write ``gap.json`` and the other files of a result.
10. `argap.reports`, `argap.view`: build tables, figures and pages.

Imports go the other way, down the floors of docs/architecture.md.
"""

import importlib
import os

if not os.path.isdir(os.path.join(__path__[0], "kernels")):
    # A checkout without symbolic links, used in place: the three linked folders are next to this one.
    __path__.append(os.path.dirname(__path__[0]))

__version__ = "0.1.0"

TYPE_CHECKING = False
"""As typing's, whose import takes 10 ms, in which an interrupt would still print a traceback (`argap.__main__`)."""
if TYPE_CHECKING:
    from typing import Any

    from argap.api import compare, diff, open_index, score
    from argap.errors import ArgapError
    from argap.records import EvaluationSpec
    from argap.result import Result, open_result

__all__ = [
    "ArgapError",
    "EvaluationSpec",
    "Result",
    "__version__",
    "compare",
    "diff",
    "open_index",
    "open_result",
    "score",
]

MODULES = {
    "ArgapError": "argap.errors",
    "EvaluationSpec": "argap.records",
    "Result": "argap.result",
    "compare": "argap.api",
    "diff": "argap.api",
    "open_index": "argap.api",
    "open_result": "argap.result",
    "score": "argap.api",
}


def __getattr__(name: str) -> "Any":
    if name not in MODULES:
        raise AttributeError(f"module 'argap' has no attribute {name!r}")
    value = getattr(importlib.import_module(MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
