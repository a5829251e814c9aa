"""A checkpoint: found, refused where it is unsafe or broken, and loaded.

Anything that `AutoModelForCausalLM` loads, and native argap checkpoints. Weights come from safetensors
only: a pickle can run code when it is opened.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from argap.atomic import read_json
from argap.errors import ArgapError, FormatError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
DOWNLOADED = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.py")


@dataclass(frozen=True)
class Checkpoint:
    """A folder with ``config.json`` and safetensors, and what identifies it."""

    name: str
    """As the user wrote it."""
    folder: Path
    fingerprint: str
    """SHA-256 (hex) over ``config.json`` and the weight files, names and contents."""


def find_checkpoint(source: str | Path) -> Checkpoint:
    """The checkpoint of a local folder or a hub id (downloaded without any pickle).

    Raises `ArgapError` where there is none or only a pickle, `FormatError` for a broken safetensors file.
    """
    folder = Path(source) if Path(source).exists() else _download(str(source))
    if not (folder / "config.json").is_file():
        raise ArgapError(
            f"{folder}: no config.json there; expected a checkpoint folder as `save_pretrained` writes it, or a hub id"
        )
    weights = sorted(folder.glob("*.safetensors"))
    if not weights:
        pickles = sorted(p.name for pattern in PICKLES for p in folder.glob(pattern))
        if pickles:
            raise ArgapError(
                f"{folder}: only pickled weights ({pickles[0]}), which can run code when they are opened; "
                "convert them once with `AutoModelForCausalLM.from_pretrained(...).save_pretrained(FOLDER)`"
            )
        raise ArgapError(f"{folder}: no weights there; expected model.safetensors")
    for path in weights:
        _check_whole(path)
    return Checkpoint(str(source), folder, _fingerprint([folder / "config.json", *weights]))


def load_model(
    checkpoint: Checkpoint, *, dtype: "torch.dtype", device: str, trust_remote_code: bool = False
) -> "PreTrainedModel":
    """The model in evaluation mode. Raises `ArgapError` where weights are missing or code is not trusted."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    import argap.models  # noqa: F401  (registers the native model type)

    config = read_json(checkpoint.folder / "config.json")
    if "auto_map" in config and not trust_remote_code:
        raise ArgapError(f"{checkpoint.name}: the checkpoint runs code of its own; allow it with --trust-remote-code")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            checkpoint.folder,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
        )
    except ArgapError:
        raise
    except (ValueError, OSError, KeyError, RuntimeError, ImportError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArgapError(f"{checkpoint.name}: transformers cannot load it ({reason})") from error
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:
        raise ArgapError(
            f"{checkpoint.name}: {len(missing)} weights are missing from its safetensors, the first is {missing[0]}"
        )
    return model.eval().to(device)


def max_positions(model: "PreTrainedModel") -> int | None:
    """The longest window that the model was made for; None where any length goes."""
    config = model.config.get_text_config()
    for key in ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length"):
        value = getattr(config, key, None)
        if isinstance(value, int) and value > 0:
            return value
    return None


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        return Path(snapshot_download(name, allow_patterns=list(DOWNLOADED)))
    except (OSError, ValueError, HFValidationError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArgapError(f"{name}: no such folder or reference, and the hub does not give it ({reason})") from error


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
        digest.update(path.name.encode() + b"\0")
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
