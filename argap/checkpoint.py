"""A checkpoint: found, refused where it is unsafe or broken, and loaded.

Native argap checkpoints, those of the families that `argap.models.hub` reads into the native model, and
anything else that `AutoModelForCausalLM` loads, quantised ones and GGUF files among them. Weights come from
safetensors or GGUF only: a pickle can run code when it is opened.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from argap.atomic import read_json
from argap.errors import ArgapError, FormatError, extra, first_line
from argap.gguf_file import check_gguf, gguf_config, is_gguf
from argap.progress import say
from argap.quantized import check_quantization, quantization
from argap.trust import is_trusted, trusting

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from argap.live import LiveModel
    from argap.models.hub.family import Family

PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
TRAINER_FILES = ("training_args", "optimizer", "scheduler", "scaler", "rng_state")
"""How the names of pickles begin that hold no weights."""
Backend = Literal["auto", "native", "hf"]
"""Which code runs a checkpoint: argap's mixers and kernels, the implementation that transformers finds, or
the first where the family is known, else the second."""

LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length")
"""Keys of a ``config.json`` that give the longest window."""
MODULES = re.compile("(layers?|blocks|experts)$")
"""Keys that give a number of modules."""
MOST_MODULES = 10_000
ADAPTER = "adapter_config.json"
"""With this file beside a model, transformers adds an adapter to it without being asked."""
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
        raise ArgapError(
            f"{folder}: no config.json there; expected a checkpoint folder as `save_pretrained` writes it, or a hub id"
        )
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


def runs_native(checkpoint: Checkpoint, backend: Backend = "auto") -> bool:
    """Whether argap's own code runs the checkpoint, under that backend.

    Raises `ArgapError` for an unknown backend, and where ``native`` is asked for and the family is not
    known, naming those that are.
    """
    from argap.models.hub.registry import FAMILIES, find_family

    if backend not in get_args(Backend):
        raise ArgapError(f"`backend` {backend}: expected {', '.join(get_args(Backend))}")
    config = read_config(checkpoint)
    if config.get("model_type") == "argap":
        return True
    if checkpoint.gguf is not None or quantization(config) is not None:
        if backend == "native":
            raise ArgapError(
                f"{checkpoint.name}: transformers runs GGUF files and quantised checkpoints; use `backend=hf`"
            )
        return False
    known = find_family(config) is not None
    if backend == "native" and not known:
        raise ArgapError(
            f"{checkpoint.name}: no native form of model type {config.get('model_type')!r}; "
            f"known are {', '.join(sorted(FAMILIES))}; `backend=hf` runs it through transformers"
        )
    return known and backend != "hf"


def load_model(
    checkpoint: Checkpoint,
    *,
    dtype: "torch.dtype",
    device: str,
    trust_remote_code: bool = False,
    backend: Backend = "auto",
    device_map: bool = False,
) -> "PreTrainedModel":
    """The model in evaluation mode, on ``device``, or with ``device_map`` over all GPUs and then the CPU's memory,
    as accelerate places it. Raises `ArgapError` where weights are missing or of another shape, where an
    option has no native form (see `argap.models.hub`), where a mixer is not causal, and where code is not
    trusted. The native form of a hub family refuses leftover weights; transformers skips them, and one line says
    so."""
    from argap.models.hub.load import load_native
    from argap.models.hub.registry import find_family

    config = read_config(checkpoint)
    family = find_family(config)
    native = runs_native(checkpoint, backend)
    model: Any
    if native and family is not None:
        model = load_native(checkpoint.folder, checkpoint.name, family, config, dtype=dtype)
    else:
        # Weights of quantised layers cannot be moved afterwards.
        placed = "auto" if device_map else {"": device} if quantization(config) else None
        trust = trust_remote_code or is_trusted()
        model = _load_by_transformers(checkpoint, config, family, dtype, trust, placed)
    _check_causal(map(type, model.modules()), checkpoint.name)
    return model.eval() if getattr(model, "hf_device_map", None) else model.eval().to(device)


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


def _check_trusted(checkpoint: Checkpoint, trust_remote_code: bool) -> None:
    if trust_remote_code:
        return
    config = read_config(checkpoint)
    code = "code of its own" if "auto_map" in config else _kernel_of_hub(config)
    if code is not None:
        raise ArgapError(f"{checkpoint.name}: the checkpoint runs {code}; allow it with `trust_remote_code=True`")


def _kernel_of_hub(config: Mapping[str, Any]) -> str | None:
    """The first repository that a configuration, or one inside it, names as its implementation of attention or
    experts: transformers fetches such a kernel and runs it."""
    waiting: list[tuple[Any, bool]] = [(config, False)]
    while waiting:
        value, named = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(item, named or str(key).endswith("_implementation")) for key, item in value.items()]
        elif named and isinstance(value, str) and "/" in value:
            return f"the kernel {value!r} of the hub"
    return None


def _check_counts(checkpoint: Checkpoint, config: Mapping[str, Any]) -> None:
    """Raise `ArgapError` for a number of layers or experts beyond that of any model: transformers makes a module for
    each before it looks at the weights."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            _check_counts(checkpoint, value)
        elif MODULES.search(str(key)) and isinstance(value, int) and value > MOST_MODULES:
            raise ArgapError(
                f"{checkpoint.name}: config.json: {key}: expected at most {MOST_MODULES:,}, found {str(value)[:40]}"
            )


def _load_by_transformers(
    checkpoint: Checkpoint,
    config: Mapping[str, Any],
    family: "Family | None",
    dtype: "torch.dtype",
    trust_remote_code: bool,
    placed: str | dict[str, str] | None,
) -> "PreTrainedModel":
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    import argap.models  # noqa: F401  (registers the native model type)
    from argap.models.hub.registry import FLA_TYPES, original_class, register_fla

    _check_trusted(checkpoint, trust_remote_code)
    _check_counts(checkpoint, config)
    if config.get("model_type") in FLA_TYPES:
        register_fla(checkpoint.name)
    model_class: Any = AutoModelForCausalLM if family is None else original_class(checkpoint.name, family)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # An option of initialisation alone, which transformers 5.23 also applies to the weights of Mamba, Mamba-2, Falcon
    # Mamba and Nemotron-H that it has just loaded: out_proj would be divided by √layers.
    unscaled = {"rescale_prenorm_residual": False} if config.get("rescale_prenorm_residual") else {}
    try:
        loaded: Any = model_class.from_pretrained(
            checkpoint.folder,
            dtype=dtype,
            use_safetensors=True,
            ignore_mismatched_sizes=True,  # reported below, by name
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            **unscaled,
            **({} if placed is None else {"device_map": placed}),
            **({} if checkpoint.gguf is None else {"gguf_file": checkpoint.gguf.name}),
        )
    except ArgapError:
        raise
    except MemoryError:
        raise
    except Exception as error:  # what a configuration makes a model's code raise has no common type
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ArgapError(f"{checkpoint.name}: transformers cannot load it ({reason})") from error
    model, report = loaded
    missing = sorted(report["missing_keys"])
    if missing:
        raise ArgapError(
            f"{checkpoint.name}: {len(missing)} weights are missing from its safetensors, the first is {missing[0]}"
        )
    if mismatched := sorted(report["mismatched_keys"]):
        name, found, expected = mismatched[0]
        raise ArgapError(
            f"{checkpoint.name}: {name} has shape {list(found)}, its config.json says {list(expected)}"
            + (f", and {len(mismatched) - 1} weights more differ" if mismatched[1:] else "")
        )
    if left := sorted(report["unexpected_keys"]):
        say(f"{checkpoint.name}: {len(left)} weights are not part of the model; skipped, the first is {left[0]}")
    return model


def _check_causal(mixers: Iterable[type[Any]], name: str) -> None:
    """A mixer that sees later tokens gives no log-prob of the next one."""
    from argap.models.mixer import Mixer

    for mixer in mixers:
        if issubclass(mixer, Mixer) and not mixer.causal:
            raise ArgapError(
                f"{name}: its mixer {mixer.__name__} is not causal; such models serve synthetic tasks only"
            )


def max_positions(config: Mapping[str, Any]) -> int | None:
    """The longest window of a model with this ``config.json``; None where any length goes."""
    config = config.get("text_config") or config
    values = [config.get(key) for key in LENGTHS]
    return next((value for value in values if isinstance(value, int) and value > 0), None)


def check_length(model: "Checkpoint | LiveModel", *, longest: int, bos: bool = False) -> None:
    """Raise `ArgapError` where the model cannot take windows of ``longest`` tokens; ``bos``: and a BOS before them."""
    limit = model.longest
    if limit is not None and longest + bos > limit:
        raise ArgapError(
            f"{model.name}: takes at most {limit} tokens, the windows have {longest}{' and a BOS' if bos else ''}; "
            f"use `seq_len={limit - bos}`"
        )


def check_loadable(
    checkpoint: Checkpoint,
    backend: Backend = "auto",
    *,
    trust_remote_code: bool = False,
    device: str = "cpu",
    device_map: bool = False,
) -> None:
    """Raise `ArgapError` where `load_model` would refuse the checkpoint for what its ``config.json`` says."""
    from argap.models.configuration import read_native
    from argap.models.hub.registry import needs_gpu
    from argap.models.registry import resolve

    native = runs_native(checkpoint, backend)
    _check_trusted(checkpoint, trust_remote_code)
    config = read_config(checkpoint)
    if not native:
        _check_counts(checkpoint, config)
    if device == "cpu" and not native and needs_gpu(config):
        raise ArgapError(
            f"{checkpoint.name}: flash-linear-attention runs model type {config['model_type']}, and only on a GPU; "
            "`device` is cpu"
        )
    if quantization(config) is not None:
        check_quantization(checkpoint.name, config, device)
    if device_map and native:
        raise ArgapError(f"{checkpoint.name}: argap's own code runs it on one device; `device_map` needs `backend=hf`")
    if device_map or quantization(config) is not None:
        with extra("large"):
            import accelerate  # noqa: F401
    if native and config.get("model_type") == "argap":
        with trusting(trust_remote_code):
            names = [spec["name"] for spec in read_native(checkpoint.folder).mixers]
            _check_causal(map(resolve, dict.fromkeys(names)), checkpoint.name)


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
        digest.update(path.name.encode() + b"\0")
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
