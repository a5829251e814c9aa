"""Read torch's distributed checkpoints, ``.metadata`` beside ``*.distcp``, of torchtitan, accelerate and others.

Such a checkpoint has tensors in pieces, their names and nothing of the architecture. `read_distributed` joins the
pieces with torch's own reader; `argap.checkpoints.weight_names` finds the weights of a ``config.json`` among them.
"""

import pickle
import re
import warnings
from math import prod
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from argap.errors import ArgapError, FormatError, first_line

if TYPE_CHECKING:
    import torch

METADATA = ".metadata"
COPIES = 16
"""Most bytes written for each byte of the files: tied tensors share storage there, and become copies."""
TRAINER = re.compile(r"(optim\w*|lr_scheduler\w*|scheduler|dataloader|train_state|rng\w*|ema)\.")
"""Names of a trainer's own tensors."""
SAFE = {
    "torch": ("Size",),
    "torch.serialization": ("_get_layout",),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.distributed.checkpoint.metadata": (
        *("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata", "BytesStorageMetadata"),
        *("ChunkStorageMetadata", "TensorProperties", "_MEM_FORMAT_ENCODING"),
    ),
    "pathlib": ("PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"),
    "collections": ("OrderedDict",),
}
"""What ``.metadata`` may import, and torch's dtypes; torch's reader would import anything."""


def distributed_in(folder: Path) -> Path | None:
    """Return ``folder``, or the one folder in it, that is a distributed checkpoint; None beside other weights.

    accelerate saves the optimizer in a folder of its own (``optimizer_0`` beside ``pytorch_model_fsdp_0``).
    """
    if (folder / METADATA).is_file():
        return folder
    found = [path.parent for path in folder.glob(f"*/{METADATA}") if not path.parent.name.startswith("optim")]
    other = any(folder.glob("*.safetensors")) or any(folder.glob("*.bin"))
    return found[0] if len(found) == 1 and not other else None


def read_distributed(folder: Path) -> "dict[str, torch.Tensor]":
    """Read the tensors of a distributed checkpoint by name, without those of the trainer.

    Raises `ArgapError` for metadata that would import anything but torch's own records, and for files elsewhere;
    `FormatError` for files that are missing or broken.
    """
    import torch
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
    from torch.distributed.checkpoint.state_dict_loader import load

    class Reader(FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
            return metadata

    metadata = _read_metadata(folder / METADATA)
    if not isinstance(metadata, Metadata):
        raise FormatError(f"{folder / METADATA}: holds a {type(metadata).__name__}, expected torch's metadata")
    for place in dict.fromkeys(each.relative_path for each in metadata.storage_data.values()):
        if Path(place).name != place or not (folder / place).is_file():
            raise FormatError(f"{folder / METADATA}: names {str(place)[:200]!r}, expected a file beside it")
    described = [each for each in metadata.state_dict_metadata.values() if isinstance(each, TensorStorageMetadata)]
    size = sum(prod(each.size) * each.properties.dtype.itemsize for each in described)
    stored = sum(path.stat().st_size for path in folder.glob("*.distcp"))
    if size > COPIES * stored:
        raise ArgapError(
            f"{folder}: its tensors would take {size:,} bytes, from {stored:,}; expected each to be stored"
        )
    # Only tensors: torch would unpickle the other entries without a check.
    tensors = {
        name: torch.empty(about.size, dtype=about.properties.dtype)
        for name, about in metadata.state_dict_metadata.items()
        if isinstance(about, TensorStorageMetadata) and not TRAINER.match(name)
    }
    if not tensors:
        raise ArgapError(f"{folder}: no tensors of a model there, only a trainer's; expected a checkpoint with weights")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is one process
            load(tensors, storage_reader=Reader(folder), no_dist=True)
    except CheckpointException as error:  # a BaseException, around what was raised
        reason, _ = next(iter(error.failures.values()))
        raise FormatError(f"{folder}: not a whole distributed checkpoint ({first_line(reason)[:200]})") from None
    return tensors


class _MetadataUnpickler(pickle.Unpickler):
    """Unpickle ``.metadata``, importing nothing but what is `SAFE`."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        import torch

        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_dtype and name not in SAFE.get(module, ()):
            raise ArgapError(
                f"{self._path}: the pickle imports {module}.{name}; expected torch's metadata, so nothing in it was run"
            )
        return super().find_class(module, name)


def _read_metadata(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return _MetadataUnpickler(path, file).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, TypeError, ValueError) as error:
        raise FormatError(f"{path}: not the metadata of a distributed checkpoint ({first_line(error)})") from None
