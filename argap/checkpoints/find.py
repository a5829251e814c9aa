"""Find a checkpoint, and refuse it if unsafe or broken. `argap.checkpoints.load` loads it.

Weights come from safetensors or GGUF only: a pickle can run code when it is opened.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from math import prod
from pathlib import Path
from typing import Any

from argap.checkpoints.distributed import distributed_in
from argap.checkpoints.gguf.header import check_gguf, is_gguf, read_header
from argap.checkpoints.gguf.weights import gguf_config
from argap.checkpoints.lengths import max_positions
from argap.errors import ArgapError, FormatError, first_line
from argap.files.atomic import read_json
from argap.files.checksums import Versions, sha256_of, versions_of
from argap.files.hub import listed, snapshot
from argap.files.regular import is_local, is_there
from argap.files.weight_files import INDEX, weight_files

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
TRAINER_FILES = ("training_args", "optimizer", "scheduler", "scaler", "rng_state")
"""Prefixes of pickles that are not weights."""
NATIVE = "argap"
"""Model type of native checkpoints."""
CONVERSION = "conversion.json"
"""The record that `argap convert` leaves in its output."""
ADAPTER = "adapter_config.json"
"""With this file beside a model, transformers loads an adapter without being asked."""
OTHER = {
    "gap.json": "a result; the folder of a model in it is a run, which serves as `reference`",
    "run.json": "a run; `argap compare` takes runs",
    "train.json": "a training that has not finished; repeat its `argap train`, or take a folder in its checkpoints/",
    "zero_to_fp32.py": "shards of DeepSpeed; run the zero_to_fp32.py in it, with --safe_serialization",
}
"""Descriptions of folders without ``config.json``, by a file in them."""
DOWNLOADED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.py")


@dataclass(frozen=True)
class Checkpoint:
    """A folder with ``config.json`` and safetensors, with its name and fingerprint."""

    name: str
    """As the user wrote it."""
    folder: Path
    fingerprint: str
    """SHA-256 (hex) over ``config.json``, the weight files that are read and their index: names and contents."""
    gguf: Path | None = None
    """The GGUF file with configuration and weights, instead of a folder's."""
    versions: Versions = field(default_factory=dict, compare=False)
    """Those of the files of which `fingerprint` is; to be checked once the model is loaded."""

    @property
    def longest(self) -> int | None:
        """Return the tokens of the longest window that the model takes; None if there is no limit."""
        return max_positions(read_config(self))

    @property
    def without_bos(self) -> bool:
        """Return whether it was trained on windows without a BOS, whatever its tokenizer does: native checkpoints.

        Those that `argap convert` wrote follow their tokenizer, as their sources do.
        """
        return read_config(self).get("model_type") == NATIVE and not is_there(self.folder / CONVERSION)

    @property
    def weights(self) -> int:
        """Return about how many weights it has, as if those of a folder took four bytes each."""
        if self.gguf is not None:
            return sum(prod(tensor.shape) for tensor in read_header(self.gguf).tensors)
        return sum(path.stat().st_size for path in weight_files(self.folder, read_config(self))) // 4

    @property
    def trained_on(self) -> int | None:
        """Return the tokens per window in training by `argap train`; None if it was trained otherwise."""
        if not is_there(path := self.folder / "train.json"):
            return None
        config = read_json(path).get("config")
        length = config.get("seq_len") if isinstance(config, dict) else None
        return length if isinstance(length, int) else None


def find_checkpoint(source: str | Path) -> Checkpoint:
    """Find the checkpoint of a local folder, a GGUF file or a hub id (downloaded without pickles).

    ``ID@REVISION`` is a revision on the hub, ``ID/NAME.gguf`` a file. Raises `ArgapError` if there is no checkpoint,
    only a pickle, or an adapter beside it; `FormatError` for a broken file, and for an index that names files elsewhere
    or of another kind.
    """
    local = is_local(source)
    if is_gguf(str(source) if local else str(source).partition("@")[0]):
        return _find_gguf(source)
    folder = Path(source) if local else download(str(source))
    check_no_adapter(folder, str(source))
    if (shards := distributed_in(folder)) is not None:
        raise ArgapError(
            f"{shards}: a distributed checkpoint of torch; `argap convert {shards} OUT --config FILE` joins it, with "
            "the config.json of its architecture, then use OUT"
        )
    if not (folder / "config.json").is_file():
        found = next((what for name, what in OTHER.items() if (folder / name).is_file()), "no config.json there")
        raise ArgapError(f"{folder}: {found}; expected a checkpoint folder as `save_pretrained` writes it, or a hub id")
    if not any(folder.glob("*.safetensors")) and not (folder / INDEX).is_file():
        pickles = pickles_of([path.name for path in folder.iterdir()] if local else _hub_files(str(source)))
        if pickles:
            raise ArgapError(
                f"{folder if local else source}: only pickled weights ({pickles[0]}), which can run code when they "
                f"are opened; convert them once with `argap convert {source} OUT` and use OUT"
            )
    files = weight_files(folder, read_json(folder / "config.json"))
    for path in files:
        if path.suffix != ".json":
            check_whole(path)
    return _found(source, folder, [folder / "config.json", *files])


def check_no_adapter(folder: Path, name: str) -> None:
    """Raise `ArgapError` for a folder with an adapter, alone or beside a model, and say how to merge it."""
    if not folder.is_dir() or not is_there(folder / ADAPTER):
        return
    about = read_json(folder / ADAPTER)
    method, base = (about.get(key) for key in ("peft_type", "base_model_name_or_path"))
    if (folder / "config.json").is_file():
        raise ArgapError(
            f"{folder}: {ADAPTER} would change the weights where peft is installed, and only there; merge the adapter "
            "into the model and save that, or remove the file"
        )
    raise ArgapError(
        f"{folder}: an adapter ({method or 'of peft'}) of {base or 'another model'}, not a model; merge them once in "
        f"Python with peft, AutoPeftModelForCausalLM.from_pretrained({name!r}).merge_and_unload()"
        f".save_pretrained('OUT'), and use OUT with `tokenizer={base or 'BASE'}`"
    )


def _find_gguf(source: str | Path) -> Checkpoint:
    path = Path(source)
    if not is_local(path):
        name, _, revision = str(source).partition("@")
        repository, _, file = name.rpartition("/")
        if repository.count("/") != 1:
            raise ArgapError(f"{source}: no such file; expected one, or OWNER/REPOSITORY/NAME.gguf on the hub")
        patterns = [file, "tokenizer.json", "tokenizer_config.json"]
        path = download(f"{repository}@{revision}" if revision else repository, patterns) / file
        if not path.is_file():
            raise ArgapError(f"{source}: the hub's {repository} has no {file}")
    check_gguf(path)
    return _found(source, path.parent, [path], path)


def read_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Read the checkpoint's ``config.json``. Raises `FormatError` for a model type or text part of another type."""
    if checkpoint.gguf is not None:
        return gguf_config(checkpoint.gguf)
    path = checkpoint.folder / "config.json"
    config = read_json(path)
    if not isinstance(part := config.get("text_config"), dict | None):
        raise FormatError(f"{path}: text_config: expected an object, found {str(part)[:40]}")
    for each in (config, part or {}):
        if not isinstance(model_type := each.get("model_type"), str | None):
            raise FormatError(f"{path}: model_type: expected text, found {str(model_type)[:40]}")
    return config


def pickles_of(names: Iterable[str]) -> list[str]:
    """Return the names of pickled weights, sorted, without a trainer's own files."""
    return sorted(
        name
        for name in names
        if any(fnmatch(name, pattern) for pattern in PICKLES) and not name.startswith(TRAINER_FILES)
    )


def _hub_files(name: str) -> list[str]:
    """Return the files of a hub repository; none if the hub cannot be reached."""
    name, _, revision = name.partition("@")
    try:
        return listed(name, revision or None)
    except Exception:  # many types, as in `download`
        return []


def download(name: str, patterns: Sequence[str] = DOWNLOADED) -> Path:
    """Download the files that match ``patterns`` from a hub repository, or a revision ``ID@REVISION``, to the cache.

    Raises `ArgapError`.
    """
    repository, _, revision = name.partition("@")
    try:
        return snapshot(repository, revision or None, patterns)
    except Exception as error:  # the library raises many types, all caused by the user, the network or the hub
        raise ArgapError(
            f"{name}: no such folder or reference, and the hub does not have it ({first_line(error)})"
        ) from error


def check_whole(path: Path) -> None:
    """Raise `FormatError` for a safetensors file whose size is not the one that its header gives."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise FormatError(f"{path}: not a whole safetensors file ({error}); fetch or save it again") from error


def _found(source: str | Path, folder: Path, files: Sequence[Path], gguf: Path | None = None) -> Checkpoint:
    versions = versions_of(files)
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + bytes.fromhex(sha256_of(path)))
    return Checkpoint(str(source), folder, digest.hexdigest(), gguf, versions)
