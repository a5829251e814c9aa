"""Read one pickle of weights and write its tensors as safetensors: ``python -m argap.checkpoints.unpickle PICKLE OUT``.

PICKLE may also be the folder of a distributed checkpoint (`argap.checkpoints.distributed`).

A pickle can name any function for the reader to call. So `argap.checkpoints.convert` runs this module in a separate
process, and the pickle is read with ``torch.load(weights_only=True)``, which builds only tensors and plain containers
and raises before it imports any other name. A refusal is one line on stderr and exit code 1.
"""

import pickle
import re
import sys
from pathlib import Path
from typing import Any

from argap.checkpoints.distributed import read_distributed
from argap.errors import ArgapError, FormatError, first_line

UNSAFE = re.compile(r"GLOBAL (\S+)|global (\S+)|class (\S+)")
"""Finds the refused name in a message of torch's restricted unpickler."""


def read_tensors(path: Path) -> dict[str, Any]:
    """Read the tensors of a pickled state dict, by name.

    Raises `ArgapError` for a pickle that names anything but tensors, and for an entry that is not a tensor;
    `FormatError` for an incomplete file.
    """
    import torch

    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if match := UNSAFE.search(str(error)):
            name = next(filter(None, match.groups())).strip("'\"`.")
            raise ArgapError(
                f"{path}: the pickle imports {name}; expected tensors only, so nothing in it was run"
            ) from None
        raise FormatError(f"{path}: not a pickle of tensors ({first_line(error)})") from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise FormatError(f"{path}: not a whole pickle ({first_line(error)}); fetch it again") from None
    if not isinstance(loaded, dict) or not loaded:
        raise ArgapError(f"{path}: holds a {type(loaded).__name__}; expected a state dict of tensors")
    for name, value in loaded.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise ArgapError(f"{path}: {name!r} is a {type(value).__name__}; expected tensors only, a bare state dict")
        if value.layout != torch.strided or value.is_quantized:
            raise ArgapError(f"{path}: {name} is sparse or quantised; expected a dense tensor")
    return loaded


def main(source: str, target: str) -> None:
    """Write the tensors of ``source``, a file or a folder, to ``target``.

    Tied tensors become copies, since safetensors shares none.
    """
    from safetensors.torch import save_file

    path = Path(source)
    tensors = read_distributed(path) if path.is_dir() else read_tensors(path)
    save_file({name: value.detach().clone().contiguous() for name, value in tensors.items()}, target, {"format": "pt"})


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except ArgapError as refused:
        sys.exit(str(refused))
