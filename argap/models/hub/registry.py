"""Families by model type, imported on first use, and the original implementation of each."""

import importlib
import re
import warnings
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from argap.errors import ArgapError
from argap.models.hub.family import Family

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILIES: dict[str, str] = {
    "based": "argap.models.hub.based:BASED",
    "delta_net": "argap.models.hub.fla:DELTA_NET",
    "flash_gpt": "argap.models.hub.flash_gpt:FLASH_GPT",
    "gated_deltanet": "argap.models.hub.fla:GATED_DELTA_NET",
    "gla": "argap.models.hub.fla:GLA",
    "linear_attn": "argap.models.hub.fla:LINEAR_ATTN",
    "mamba": "argap.models.hub.mamba:MAMBA",
    "mamba_ssm": "argap.models.hub.mamba:MAMBA_SSM",
    "retnet": "argap.models.hub.fla:RETNET",
    "rwkv": "argap.models.hub.rwkv:RWKV",
    "transformer": "argap.models.hub.fla:TRANSFORMER",
}
MODEL_TYPE = re.compile(r"^\s+model_type\s*=\s*['\"](\w+)['\"]", re.MULTILINE)
"""A configuration class's declaration of its model type."""


@cache
def fla_models() -> frozenset[str]:
    """Return the model types of the installed flash-linear-attention; none if it is not installed.

    Read from its sources: to import its models takes seconds, and fails without Triton.
    """
    package = find_spec("fla")
    folders = (package and package.submodule_search_locations) or ()
    files = (path for folder in folders for path in Path(folder).glob("models/*/configuration_*.py"))
    return frozenset(found[1] for path in files for found in MODEL_TYPE.finditer(path.read_text("utf-8")))


def taken_over() -> dict[str, str]:
    """Return the model types that flash-linear-attention takes over from transformers, with transformers' classes."""
    from transformers.models.auto import configuration_auto

    known: dict[str, str] = configuration_auto.CONFIG_MAPPING_NAMES  # pyright: ignore[reportPrivateImportUsage]
    return {model_type: known[model_type] for model_type in fla_models() & known.keys()}


def runs_by_fla(model_type: object) -> bool:
    """Return whether only flash-linear-attention, as it is installed, knows a model type without a native form."""
    return model_type in fla_models() and model_type not in FAMILIES and model_type not in taken_over()


def find_family(config: Mapping[str, Any]) -> Family | None:
    """Find the family of a ``config.json``, or None.

    Identified by ``model_type``, or, for layouts without one, by keys that only they write (`_published`).
    """
    model_type = _published(config) or config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        return None
    return resolve_name(FAMILIES[model_type])


def _published(config: Mapping[str, Any]) -> str | None:
    """Find the family of a layout without a model type of its own: HazyResearch's and mamba_ssm's.

    HazyResearch's attention model is a ``GPT2Config``, which may have been saved with GPT-2's model type; GPT-2 itself
    has no gated MLP.
    """
    if "alt_mixer" in config and "alt_mixer_2" in config:
        return "based"
    if config.get("model_type") in (None, "gpt2") and config.get("activation_function") == "swiglu":
        return "flash_gpt"
    mamba = {"n_layer", "rms_norm"} <= config.keys() and ("d_model" in config or "ssm_cfg" in config)
    if mamba and "model_type" not in config:
        return "mamba_ssm"
    return None


def original_class(checkpoint: str, family: Family) -> "type[PreTrainedModel]":
    """Return the authors' own class, whatever else is registered under the model type.

    Raises `ArgapError` if there is none, or its package is not installed.
    """
    if family.original is None:
        raise ArgapError(f"{checkpoint}: {family.source} has no implementation to run here; use `backend=native`")
    try:
        original = resolve_name(family.original)
    except ImportError as error:
        raise ArgapError(
            f"{checkpoint}: `backend=hf` needs {family.source} ({error}); pip install 'argap[fla]'"
        ) from error
    if not family.original.startswith("transformers"):
        give_back()
    return original


def needs_gpu(config: Mapping[str, Any]) -> bool:
    """Return whether ``backend=hf`` would run flash-linear-attention's Triton kernels for this ``config.json``."""
    family = find_family(config)
    original = None if family is None else family.original
    return runs_by_fla(config.get("model_type")) or (original is not None and original.startswith("fla."))


def register_fla(checkpoint: str) -> None:
    """Make the model types of flash-linear-attention known to transformers.

    Raises `ArgapError` if it is not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns if there is no GPU
        try:
            importlib.import_module("fla.models")
        except ImportError as error:
            raise ArgapError(
                f"{checkpoint}: needs flash-linear-attention ({error}); run `pip install 'argap[fla]'`"
            ) from None
    give_back()


def give_back() -> None:
    """Return to transformers what flash-linear-attention took over: other checkpoints of this process need it.

    transformers itself imports flash-linear-attention with some of its families, Qwen3-Next for one.
    """
    import transformers

    for model_type, config in taken_over().items():
        transformers.AutoConfig.register(model_type, getattr(transformers, config), exist_ok=True)
