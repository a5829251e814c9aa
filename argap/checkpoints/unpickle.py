"""Read one pickle of weights and write its tensors as safetensors: ``python -m argap.checkpoints.unpickle``.

The arguments are the parent and limits of `argap.runtime.child`, PICKLE and OUT; PICKLE may also be the folder of a
distributed checkpoint (`argap.checkpoints.distributed`).

A pickle can name any function for the reader to call, and a few hundred bytes can keep a reader busy for ever. So
`argap.checkpoints.convert` runs this module in a process of its own, with limits, and the pickle is read with
``torch.load(weights_only=True)``, which builds only tensors and plain containers and raises before it imports any other
name. A refusal is one line on stderr and exit code 1.
"""

import pickle
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from argap.checkpoints.distributed import COPIES, read_distributed
from argap.errors import ArgapError, FormatError, first_line
from argap.files.atomic import replacing
from argap.runtime.child import confine, end_with_parent

if TYPE_CHECKING:
    import torch

UNSAFE = re.compile(r"GLOBAL (\S+)|global (\S+)|class (\S+)")
"""Finds the refused name in a message of torch's restricted unpickler."""
CAUSE = re.compile(r"WeightsUnpickler error: (.*)")
"""Finds the reason in such a message."""
LONGEST_NAME = 1000
"""Characters of a tensor's name."""
OTHER = 2**26
"""Most bytes of a file beside twice those of its tensors: names, padding and the versions of modules."""


def read_tensors(path: Path) -> "dict[str, torch.Tensor]":
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
        why = first_line(error)
        if match := CAUSE.search(str(error)):  # behind advice to read the file without a check
            why = match[1]
        raise FormatError(f"{path}: not a pickle of tensors{f' ({why})' if why else ''}") from None
    except Exception as error:  # the reader raises whatever the bytes lead to
        why = first_line(error).partition(". ")[0]  # behind it may be the same advice
        raise FormatError(f"{path}: not a whole pickle ({why}); fetch it again") from None
    if not isinstance(loaded, dict) or not loaded:
        raise ArgapError(f"{path}: holds a {type(loaded).__name__}; expected a state dict of tensors")
    for name, value in loaded.items():
        if why := _refused(name, value):
            raise ArgapError(f"{path}: {why}")
    size, stored = sum(value.nbytes for value in loaded.values()), path.stat().st_size
    if size > COPIES * stored:
        raise ArgapError(f"{path}: its tensors would take {size:,} bytes, of {stored:,}; expected each to be stored")
    held = sum(value.untyped_storage().nbytes() for value in loaded.values())
    if stored > 2 * held + OTHER:
        raise FormatError(f"{path}: {stored:,} bytes, of which its tensors take {held:,}; save or fetch it again")
    return loaded


def _refused(name: object, value: Any) -> str | None:
    """Return why an entry of a state dict is not converted. A key may be anything, with a text that has no end."""
    import torch

    if not isinstance(name, str):
        return f"a key is a {type(name).__name__}; expected names of tensors, a bare state dict"
    if len(name) > LONGEST_NAME:
        return f"a name of {len(name):,} characters; expected at most {LONGEST_NAME:,}"
    if not isinstance(value, torch.Tensor):
        return f"{name!r} is a {type(value).__name__}; expected tensors only, a bare state dict"
    if value.layout != torch.strided or value.is_quantized:
        return f"{name} is sparse or quantised; expected a dense tensor"
    if value.is_meta:
        return f"{name} is on the meta device, without values; expected a tensor with its values"
    if value.nbytes > (held := value.untyped_storage().nbytes()):
        return f"{name} repeats {held:,} stored bytes to {value.nbytes:,}; expected each value to be stored"
    return None


def main(source: str, target: str) -> None:
    """Write the tensors of ``source``, a file or a folder, to ``target``.

    Tied tensors become copies, since safetensors shares none.
    """
    from safetensors.torch import save_file

    path = Path(source)
    tensors = read_distributed(path) if path.is_dir() else read_tensors(path)
    copies = {name: value.detach().clone().contiguous() for name, value in tensors.items()}
    with replacing(Path(target)) as temporary:
        save_file(copies, temporary, {"format": "pt"})


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    import safetensors.torch  # noqa: F401 (so that the limits are of the reading alone)

    confine(*map(int, sys.argv[2:5]))
    try:
        main(*sys.argv[5:])
    except ArgapError as refused:
        sys.exit(str(refused))
