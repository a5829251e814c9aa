"""Find the weight files of a checkpoint folder: plain safetensors files in it, and nothing that an index leads to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from argap.errors import ArgapError, FormatError
from argap.files.record import Record, read_record
from argap.files.regular import is_there

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
NAMED = "transformers_weights"
"""Key of a ``config.json`` that names another file than these two to transformers."""


class WeightIndex(Record, frozen=True):
    """The index of a checkpoint with several weight files."""

    weight_map: dict[str, str]
    """The file of each tensor."""


def weight_files(folder: Path, config: Mapping[str, Any]) -> list[Path]:
    """Return the files that a model of this ``config.json`` is read from: weights, after their index if there is one.

    Chosen as transformers does. Raises `ArgapError` if there are none, and as `indexed_files` for an index that names
    anything but safetensors files beside it.
    """
    named = config.get(NAMED)
    if named is not None:
        if not _is_beside(folder, named, (".safetensors", ".safetensors.index.json")):
            raise FormatError(
                f"{folder / 'config.json'}: {NAMED}: found {str(named)[:80]!r}, expected a safetensors file beside it"
            )
        chosen = str(named)
    else:
        chosen = next((name for name in (SINGLE, INDEX) if is_there(folder / name)), None)
        if chosen is None:
            others = sorted(path.name for path in folder.glob("*.safetensors"))
            found = f"only {others[0]}" if others else "no weights there"
            raise ArgapError(f"{folder}: {found}; expected {SINGLE}, or {INDEX} and the files that it names")
    path = folder / chosen
    return [path, *indexed_files(path)] if path.suffix == ".json" else [path]


def indexed_files(index: Path, suffix: str = ".safetensors") -> list[Path]:
    """Return the files named by an index of weights.

    Raises `FormatError` for a name that does not end in ``suffix``, or is no file beside the index: transformers would
    follow ``../x`` and absolute paths, and open a pickle.
    """
    names = sorted(set(read_record(index, WeightIndex).weight_map.values()))
    if not names:
        raise FormatError(f"{index}: names no file; expected the index of a sharded checkpoint")
    for name in names:
        if not _is_beside(index.parent, name, (suffix,)):
            raise FormatError(f"{index}: names {name[:200]}; expected {suffix.removeprefix('.')} files beside it")
    return [index.parent / name for name in names]


def _is_beside(folder: Path, name: Any, suffixes: tuple[str, ...]) -> bool:
    """Return whether ``name`` is a plain name of a file in ``folder`` with one of the suffixes."""
    plain = isinstance(name, str) and name.endswith(suffixes) and not {"/", "\\", "\0"} & set(name)
    return plain and (folder / name).is_file()
