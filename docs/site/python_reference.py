"""Generate the page of the Python API: the public names of the package, with their docstrings by mkdocstrings."""

import argap

HEAD = """# Python

```python
import argap
```

The public names of the package. Everything that a command does is a function here; everything that is not on this page
may change. Importing `argap` imports no torch.
"""


def python_reference() -> str:
    names = [name for name in argap.__all__ if not name.startswith("__")]
    return "\n".join(
        [HEAD, *(f"::: argap.{name}" for name in sorted(names, key=lambda name: (name[0].isupper(), name)))]
    )
