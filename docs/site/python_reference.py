"""Generate the page of the Python API: the public names of the package, with their docstrings by mkdocstrings."""

import argap

HEAD = """# Python

```python
import argap
```

The public names of the package, in the order in which they are used. Everything that a command does is a function here;
everything that is not on this page may change. Importing `argap` imports no torch.
"""
ORDER = ("score", "open_result", "Result", "compare", "diff", "open_index", "EvaluationSpec", "ArgapError")

TYPES = """## Types in signatures

| name | stands for |
| --- | --- |
| `AnyPath` | a path as text or `os.PathLike` |
| `Model` | an `AnyPath`, a hub id, a recorded name or a server's address, or a transformers model in memory |
| `Slices` | the path of a YAML file, or a mapping from names to SQL conditions |
| `Threshold` | a number of exposures, or `"scaled"` |
| `Packing` | `"packed"` or `"document"` |
| `Mask` | a function from a `pyarrow.RecordBatch` of tokens to one boolean per token |
| `By` | `"slice"`, `"frequency"`, `"distance"`, `"position"`, `"domain"`, `"copy"` or `"induction"` |
"""


def python_reference() -> str:
    names = [name for name in argap.__all__ if not name.startswith("__")]
    ordered = sorted(names, key=lambda name: (*ORDER, name).index(name))
    return "\n".join([HEAD, *(f"::: argap.{name}" for name in ordered), "", TYPES])
