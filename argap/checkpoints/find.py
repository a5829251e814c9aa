"""A checkpoint: found, and refused where it is unsafe or broken. `argap.checkpoints.load` loads it.

Weights come from safetensors or GGUF only: a pickle can run code when it is opened.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from argap.checkpoints.gguf import check_gguf, gguf_config, is_gguf
from argap.errors import ArgapError, FormatError, first_line
from argap.files.atomic import read_json
from argap.files.checksums import sha256_of

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
TRAINER_FILES = ("training_args", "optimizer", "scheduler", "scaler", "rng_state")
"""How the names of pickles begin that hold no weights."""
LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
"""Keys of a ``config.json`` that give the longest window."""
ADAPTER = "adapter_config.json"
"""With this file beside a model, transformers adds an adapter to it without being asked."""
OTHER = {
    "gap.json": "a result; the folder of a model in it is a run, which serves as `reference`",
    "run.json": "a run; `argap compare` takes runs",
    "train.json": "a training that has not finished; repeat its `argap train`, or take a folder in its checkpoints/",
}
"""What a folder without ``config.json`` is, by a file in it."""
DOWNLOADED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.py")


@dataclass(frozen=True)
class Checkpoint:
    """A folder with ``config.json`` and safetensors, and what identifies it."""

    name: str
    """As the user wrote it."""
    folder: Path
    fingerprint: str
    """SHA-256 (hex) over ``config.json`` and the weight files, names and contents."""
    gguf: Path | None = None
    """The GGUF file that has configuration and weights, in place of a folder's."""

    @property
    def longest(self) -> int | None:
        """Tokens of the longest window that the model takes; None where any length goes."""
        return max_positions(read_config(self))

    @property
    def trained_on(self) -> int | None:
        """Tokens of the windows that `argap train` trained it on; None where it did not train it."""
        if not (path := self.folder / "train.json").is_file():
            return None
        config = read_json(path).get("config")
        length = config.get("seq_len") if isinstance(config, dict) else None
        return length if isinstance(length, int) else None


def find_checkpoint(source: str | Path) -> Checkpoint:
    """The checkpoint of a local folder or GGUF file, or a hub id, ``ID@REVISION`` for one of its revisions and
    ``ID/NAME.gguf`` for a file (downloaded without any pickle).

    Raises `ArgapError` where there is none or only a pickle, or an adapter beside it; `FormatError` for a broken file.
    """
    local = Path(source).exists()
    if is_gguf(str(source) if local else str(source).partition("@")[0]):
        return _find_gguf(source)
    folder = Path(source) if local else download(str(source))
    if not (folder / "config.json").is_file():
        found = next((what for name, what in OTHER.items() if (folder / name).is_file()), "no config.json there")
        raise ArgapError(f"{folder}: {found}; expected a checkpoint folder as `save_pretrained` writes it, or a hub id")
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        pickles = pickles_of([path.name for path in folder.iterdir()] if local else _hub_files(str(source)))
        if pickles:
            raise ArgapError(
                f"{folder if local else source}: only pickled weights ({pickles[0]}), which can run code when they "
                f"are opened; convert them once with `argap convert {source} OUT` and use OUT"
            )
        raise ArgapError(f"{folder}: no weights there; expected model.safetensors")
    if (folder / ADAPTER).is_file():
        raise ArgapError(
            f"{folder}: {ADAPTER} would change the weights where peft is installed, and only there; merge the adapter "
            "into the model and save that, or remove the file"
        )
    for path in weights:
        _check_whole(path)
    return Checkpoint(str(source), folder, _fingerprint([folder / "config.json", *weights]))


def _find_gguf(source: str | Path) -> Checkpoint:
    path = Path(source)
    if not path.exists():
        name, _, revision = str(source).partition("@")
        repository, _, file = name.rpartition("/")
        if repository.count("/") != 1:
            raise ArgapError(f"{source}: no such file; expected one, or OWNER/REPOSITORY/NAME.gguf on the hub")
        patterns = [file, "tokenizer.json", "tokenizer_config.json"]
        path = download(f"{repository}@{revision}" if revision else repository, patterns) / file
        if not path.is_file():
            raise ArgapError(f"{source}: the hub's {repository} has no {file}")
    check_gguf(path)
    return Checkpoint(str(source), path.parent, _fingerprint([path]), path)


def read_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """The checkpoint's ``config.json``. Raises `FormatError` where its model type is no text."""
    if checkpoint.gguf is not None:
        return gguf_config(checkpoint.gguf)
    config = read_json(checkpoint.folder / "config.json")
    if not isinstance(model_type := config.get("model_type"), str | None):
        raise FormatError(
            f"{checkpoint.folder / 'config.json'}: model_type: expected text, found {str(model_type)[:40]}"
        )
    return config


def max_positions(config: Mapping[str, Any]) -> int | None:
    """The longest window of a model with this ``config.json``; None where any length goes."""
    config = config.get("text_config") or config
    values = [config.get(key) for key in LENGTHS]
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def pickles_of(names: Iterable[str]) -> list[str]:
    """The names that are pickled weights, sorted; a trainer's own files are none."""
    return sorted(
        name
        for name in names
        if any(fnmatch(name, pattern) for pattern in PICKLES) and not name.startswith(TRAINER_FILES)
    )


def _hub_files(name: str) -> list[str]:
    """The files of a hub repository; none where the hub cannot be asked."""
    from huggingface_hub import list_repo_files

    name, _, revision = name.partition("@")
    try:
        return list_repo_files(name, revision=revision or None)
    except (OSError, ValueError):
        return []


def download(name: str, patterns: Sequence[str] = DOWNLOADED) -> Path:
    """The files of a hub repository, or of one revision, ``ID@REVISION``, that match ``patterns``, in the hub's cache.

    Raises `ArgapError`.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    repository, _, revision = name.partition("@")
    try:
        return Path(snapshot_download(repository, revision=revision or None, allow_patterns=list(patterns)))
    except (OSError, ValueError, HFValidationError) as error:
        raise ArgapError(
            f"{name}: no such folder or reference, and the hub does not give it ({first_line(error)})"
        ) from error


def _check_whole(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):
            pass
    except (SafetensorError, OSError) as error:
        raise FormatError(f"{path}: not a whole safetensors file ({error}); fetch or save it again") from error


def _fingerprint(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + bytes.fromhex(sha256_of(path)))
    return digest.hexdigest()
