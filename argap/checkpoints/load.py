"""Check and load a checkpoint, with argap's own code or with transformers.

Own code loads native argap checkpoints and the families that `argap.models.hub` reads into the native model;
transformers loads whatever predicts the next token (`argap.checkpoints.classes`), including quantised checkpoints and
GGUF files.
"""

import re
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from argap.checkpoints.causality import check_says_causal, check_sees_no_future
from argap.checkpoints.classes import auto_class, is_known
from argap.checkpoints.find import NATIVE, Checkpoint, read_config
from argap.checkpoints.gguf.weights import reading
from argap.checkpoints.rebinding import use_torch_on_cpu
from argap.errors import ArgapError, extra, within
from argap.files.checksums import check_unchanged
from argap.runtime.progress import say
from argap.runtime.trust import is_trusted

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from argap.models.hub.family import Family

BACKENDS = ("auto", "native", "hf")
"""Which code runs a checkpoint: argap's mixers and kernels (``native``), the implementation of transformers (``hf``),
or the first if the family is known, else the second (``auto``)."""
MODULES = re.compile("(layers?|blocks|experts)$")
"""Keys whose value is a number of modules."""
MOST_MODULES = 10_000
RETURNED = {"return_dict": True, "output_hidden_states": False, "output_attentions": False}
"""What a model returns by its configuration; argap needs the logits, by name."""


def runs_native(checkpoint: Checkpoint, backend: str = "auto") -> bool:
    """Return whether argap's own code runs the checkpoint with this backend.

    Raises `ArgapError` for an unknown backend, and for ``native`` with an unknown family, listing the known ones.
    """
    from argap.models.hub.registry import FAMILIES, find_family

    if backend not in BACKENDS:
        raise ArgapError(f"`backend` {backend}: expected {', '.join(BACKENDS)}")
    config = read_config(checkpoint)
    if config.get("model_type") == NATIVE:
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
    backend: str = "auto",
    device_map: bool = False,
) -> "PreTrainedModel":
    """Load the model in evaluation mode on ``device``, or with ``device_map`` over all GPUs, then the CPU's memory.

    Raises `ArgapError` for weights that are missing or of another shape, an option without a native form (see
    `argap.models.hub`), a model that is not causal, and untrusted code (`argap.runtime.trust`). The native form of a
    hub family refuses leftover weights; transformers skips them, and one line says so. Raises `MismatchError` if the
    files were written again since the checkpoint was found.
    """
    from argap.models import ArgapForCausalLM
    from argap.models.causality import check_causal
    from argap.models.hub.load import load_native
    from argap.models.hub.registry import find_family
    from argap.runtime.device import say_if_slow

    say_if_slow(checkpoint.name, dtype, device)
    config = read_config(checkpoint)
    family = find_family(config)
    native = runs_native(checkpoint, backend)
    model: Any
    if native and family is not None:
        model = load_native(checkpoint.folder, checkpoint.name, family, config, dtype=dtype)
    else:
        # Weights of quantised layers cannot be moved afterwards.
        placed = "auto" if device_map else {"": device} if quantization(config) else None
        model = _load_by_transformers(checkpoint, config, family, dtype, placed)
        use_torch_on_cpu(model)
    model = model.eval() if getattr(model, "hf_device_map", None) else model.eval().to(device)
    if isinstance(model, ArgapForCausalLM):
        with within(checkpoint.name):
            check_causal(model)
    else:
        check_sees_no_future(checkpoint.name, model)
    check_unchanged(checkpoint.versions)
    return model


def check_loadable(
    checkpoint: Checkpoint,
    backend: str = "auto",
    *,
    device: str = "cpu",
    device_map: bool = False,
) -> None:
    """Raise `ArgapError` if `load_model` would refuse the checkpoint because of its ``config.json``."""
    from argap.models.causality import check_says_causal as check_mixer
    from argap.models.configuration import read_native
    from argap.models.hub.load import native_config
    from argap.models.hub.registry import find_family, needs_gpu
    from argap.models.registry import resolve

    native = runs_native(checkpoint, backend)
    check_trusted(checkpoint)
    config = read_config(checkpoint)
    family = find_family(config)
    if native and family is not None:
        native_config(checkpoint.name, family, config)
    if not native:
        _check_counts(checkpoint, config)
        check_says_causal(checkpoint.name, config)
        if family is None:
            auto_class(checkpoint.name, config)
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
    if native and config.get("model_type") == NATIVE:
        with within(checkpoint.name):
            for name in dict.fromkeys(spec["name"] for spec in read_native(checkpoint.folder).mixers):
                check_mixer(resolve(name))


def _load_by_transformers(
    checkpoint: Checkpoint,
    config: Mapping[str, Any],
    family: "Family | None",
    dtype: "torch.dtype",
    placed: str | dict[str, str] | None,
) -> "PreTrainedModel":
    from transformers import PreTrainedConfig
    from transformers.utils import logging

    import argap.models  # noqa: F401  (registers the native model type)
    from argap.models.hub.registry import give_back, original_class, register_fla, runs_by_fla

    check_trusted(checkpoint)
    _check_counts(checkpoint, config)
    give_back()
    if runs_by_fla(config.get("model_type")):
        register_fla(checkpoint.name)
    model_class: Any = (
        auto_class(checkpoint.name, config) if family is None else original_class(checkpoint.name, family)
    )
    known = is_known(config)
    if known and "auto_map" in config:
        say(f"{checkpoint.name}: not running its own code, as {config['model_type']} has a class in the library")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    # This option should affect initialisation only, but transformers 5.23 also applies it to loaded weights of Mamba,
    # Mamba-2, Falcon Mamba and Nemotron-H: out_proj would be divided by √layers.
    changed = {"rescale_prenorm_residual": False} if config.get("rescale_prenorm_residual") else {}
    changed |= {key: value for key, value in RETURNED.items() if config.get(key, value) is not value}
    try:
        with (
            warnings.catch_warnings(action="ignore"),  # of what is refused below
            nullcontext() if checkpoint.gguf is None else reading(checkpoint.gguf),
        ):
            loaded: Any = model_class.from_pretrained(
                checkpoint.folder,
                dtype=dtype,
                use_safetensors=True,
                ignore_mismatched_sizes=True,  # reported below, by name
                trust_remote_code=is_trusted() and not known,
                output_loading_info=True,
                **changed,
                **({} if placed is None else {"device_map": placed}),
                **({} if checkpoint.gguf is None else {"gguf_file": checkpoint.gguf.name}),
            )
    except (ArgapError, MemoryError):
        raise
    except Exception as error:  # a model's code may raise anything
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ArgapError(f"{checkpoint.name}: transformers cannot load it ({reason})") from error
    model, report = loaded
    if not isinstance(model.config.get_text_config(), PreTrainedConfig):
        raise ArgapError(f"{checkpoint.name}: its config.json has a part for text, which {type(model).__name__} lacks")
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


def check_trusted(checkpoint: Checkpoint) -> None:
    """Raise `ArgapError` for a checkpoint that runs code of its own, unless the caller trusts it."""
    if is_trusted():
        return
    config = read_config(checkpoint)
    code = "code of its own" if "auto_map" in config and not is_known(config) else _kernel_of_hub(config)
    if code is not None:
        raise ArgapError(f"{checkpoint.name}: the checkpoint runs {code}; allow it with `trust_remote_code=True`")


def _kernel_of_hub(config: Mapping[str, Any]) -> str | None:
    """Return the first hub repository that a configuration, or a nested one, names as its attention or experts.

    Transformers would download such a kernel and run it.
    """
    waiting: list[tuple[Any, bool]] = [(config, False)]
    while waiting:
        value, named = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(item, named or str(key).endswith("_implementation")) for key, item in value.items()]
        elif named and isinstance(value, str) and "/" in value:
            return f"the kernel {value!r} of the hub"
    return None


def _check_counts(checkpoint: Checkpoint, config: Mapping[str, Any]) -> None:
    """Raise `ArgapError` for an absurd number of layers or experts.

    Transformers creates a module for each before it looks at the weights.
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            _check_counts(checkpoint, value)
        elif MODULES.search(str(key)) and isinstance(value, int) and value > MOST_MODULES:
            raise ArgapError(
                f"{checkpoint.name}: config.json: {key}: expected at most {MOST_MODULES:,}, found {str(value)[:40]}"
            )


def quantization(config: Mapping[str, Any]) -> str | None:
    """Return the quantisation method in a ``config.json``, such as ``gptq``; None if not quantised."""
    given = (config.get("text_config") or config).get("quantization_config") or config.get("quantization_config")
    if not isinstance(given, Mapping):
        return None
    return str(given.get("quant_method") or "bitsandbytes")  # early versions of it wrote no method


def check_quantization(name: str, config: Mapping[str, Any], device: str) -> None:
    """Raise `ArgapError` if transformers cannot run the quantised checkpoint ``name`` here.

    The method may be unknown, a package or a GPU missing.
    """
    from transformers.quantizers.auto import AutoHfQuantizer

    method = quantization(config)
    if method is None:
        return
    try:
        quantizer = AutoHfQuantizer.from_config(dict(config["quantization_config"]), pre_quantized=True)
        quantizer.validate_environment(device_map={"": device})
    except ModuleNotFoundError as error:
        raise ArgapError(f"{name}: quantised by {method}; run `pip install {error.name}`") from None
    except (ImportError, ValueError, RuntimeError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ArgapError(f"{name}: quantised by {method}, which does not run here ({reason})") from None
