"""Report an error in a model's own code in one line with its class and the setting: the bug is not in argap."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from argap.errors import ArgapError
from argap.runtime.guard import TOO_LARGE

if TYPE_CHECKING:
    from torch import nn

NOT_OF_A_FAMILY = ("argap", "torch")
"""Packages whose modules are no family's code."""


@contextmanager
def family_code(name: str, model: "nn.Module", length: int, remedy: str | None = None) -> Iterator[None]:
    """Raise `ArgapError` for an error inside the block that passed through the code of a model's family.

    ``name``: of the model; ``length``: tokens of its longest input; ``remedy``: what to do if the input is the likely
    cause, whose code may then also be argap's. Errors of other code and a lack of memory are raised as they are.
    """
    try:
        yield
    except (ArgapError, MemoryError):
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        if TOO_LARGE.search(str(error)) or type(error).__name__ == "OutOfMemoryError":
            raise
        known = remedy is not None and isinstance(error, IndexError | RuntimeError | ValueError)
        code = _code_of(model)
        if not known and not any(Path(frame.filename).is_relative_to(each) for frame in frames for each in code):
            raise
        parameter = next(model.parameters(), None)
        where = "" if parameter is None else f" in {str(parameter.dtype).removeprefix('torch.')} on {parameter.device}"
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ArgapError(
            f"{name}: {type(model).__name__} of {_package(model)} fails on {length:,} tokens{where} ({reason}); "
            + (remedy or "try another `dtype`, `device` or `seq_len`; ARGAP_TRACEBACK=1 shows the traceback")
        ) from error


def _code_of(model: "nn.Module") -> set[Path]:
    """Return the files of the classes of the model's modules and the folders of their packages, not argap's or torch's.

    Whole packages, because a class's decorators, which read options of its configuration, are in other files of them.
    """
    modules = {type(module).__module__ for module in model.modules()}
    names = {
        each
        for name in modules
        if (package := name.partition(".")[0]) not in NOT_OF_A_FAMILY
        for each in (name, package)
    }
    files = [Path(file) for name in names if (file := getattr(sys.modules.get(name), "__file__", None))]
    return {file.parent if file.name == "__init__.py" else file for file in files}


def _package(model: "nn.Module") -> str:
    """Return the package of the model's class, with its version if it is installed."""
    package = type(model).__module__.partition(".")[0]
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return package
