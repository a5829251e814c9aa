"""Loading a checkpoint, by argap's own code or by transformers, once nothing speaks against it.

Native argap checkpoints, those of the families that `argap.models.hub` reads into the native model, and anything else
that `AutoModelForCausalLM` loads, quantised ones and GGUF files among them.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

from argap.checkpoints.find import Checkpoint, read_config
from argap.errors import ArgapError, extra, within
from argap.runtime.progress import say
from argap.runtime.trust import is_trusted

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from argap.models.hub.family import Family

Backend = Literal["auto", "native", "hf"]
"""Which code runs a checkpoint: argap's mixers and kernels, the implementation that transformers finds, or
the first where the family is known, else the second."""
MODULES = re.compile("(layers?|blocks|experts)$")
"""Keys that give a number of modules."""
MOST_MODULES = 10_000


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
    backend: Backend = "auto",
    device_map: bool = False,
) -> "PreTrainedModel":
    """The model in evaluation mode, on ``device``, or with ``device_map`` over all GPUs and then the CPU's memory,
    as accelerate places it. Raises `ArgapError` where weights are missing or of another shape, where an
    option has no native form (see `argap.models.hub`), where a mixer is not causal, and where code is not
    trusted (`argap.runtime.trust`). The native form of a hub family refuses leftover weights; transformers skips them,
    and one line says so."""
    from argap.models import ArgapForCausalLM
    from argap.models.causality import check_causal
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
        model = _load_by_transformers(checkpoint, config, family, dtype, placed)
    model = model.eval() if getattr(model, "hf_device_map", None) else model.eval().to(device)
    if isinstance(model, ArgapForCausalLM):
        with within(checkpoint.name):
            check_causal(model)
    return model


def check_loadable(
    checkpoint: Checkpoint,
    backend: Backend = "auto",
    *,
    device: str = "cpu",
    device_map: bool = False,
) -> None:
    """Raise `ArgapError` where `load_model` would refuse the checkpoint for what its ``config.json`` says."""
    from argap.models.causality import check_says_causal
    from argap.models.configuration import read_native
    from argap.models.hub.registry import needs_gpu
    from argap.models.registry import resolve

    native = runs_native(checkpoint, backend)
    _check_trusted(checkpoint)
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
        with within(checkpoint.name):
            for name in dict.fromkeys(spec["name"] for spec in read_native(checkpoint.folder).mixers):
                check_says_causal(resolve(name))


def _load_by_transformers(
    checkpoint: Checkpoint,
    config: Mapping[str, Any],
    family: "Family | None",
    dtype: "torch.dtype",
    placed: str | dict[str, str] | None,
) -> "PreTrainedModel":
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    import argap.models  # noqa: F401  (registers the native model type)
    from argap.models.hub.registry import FLA_TYPES, original_class, register_fla

    _check_trusted(checkpoint)
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
            trust_remote_code=is_trusted(),
            output_loading_info=True,
            **unscaled,
            **({} if placed is None else {"device_map": placed}),
            **({} if checkpoint.gguf is None else {"gguf_file": checkpoint.gguf.name}),
        )
    except (ArgapError, MemoryError):
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


def _check_trusted(checkpoint: Checkpoint) -> None:
    if is_trusted():
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


def quantization(config: Mapping[str, Any]) -> str | None:
    """The method of a checkpoint whose ``config.json`` has a ``quantization_config``, such as ``gptq``; None for one
    that is not quantised."""
    given = (config.get("text_config") or config).get("quantization_config") or config.get("quantization_config")
    if not isinstance(given, Mapping):
        return None
    return str(given.get("quant_method") or "bitsandbytes")  # which alone once wrote none


def check_quantization(name: str, config: Mapping[str, Any], device: str) -> None:
    """Raise `ArgapError` where transformers cannot run the quantised checkpoint ``name`` here: for a method that it
    does not know, a missing package, or a missing GPU."""
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
