"""Families by model type, imported on first use, and the original implementation of each."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from argap.errors import ArgapError
from argap.models.hub.family import Family

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FAMILIES: dict[str, str] = {
    "based": "argap.models.hub.based:BASED",
    "delta_net": "argap.models.hub.delta_net:DELTA_NET",
    "gla": "argap.models.hub.gla:GLA",
    "linear_attn": "argap.models.hub.linear_attn:LINEAR_ATTN",
    "mamba": "argap.models.hub.mamba:MAMBA",
    "retnet": "argap.models.hub.retnet:RETNET",
    "rwkv": "argap.models.hub.rwkv:RWKV",
}
TAKEN_OVER = {"bitnet": "BitNetConfig", "mamba": "MambaConfig", "mamba2": "Mamba2Config"}
"""The model types that flash-linear-attention takes over from transformers when it is imported."""


def find_family(config: Mapping[str, Any]) -> Family | None:
    """The family of a ``config.json``, or None.

    Identified by ``model_type``; Based, whose configurations predate it, by the two mixers that it alternates.
    """
    model_type = "based" if "alt_mixer" in config and "alt_mixer_2" in config else config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        return None
    module, _, name = FAMILIES[model_type].partition(":")
    return getattr(importlib.import_module(module), name)


def original_class(checkpoint: str, family: Family) -> "type[PreTrainedModel]":
    """The authors' own class, whatever else is registered under the model type.

    Raises `ArgapError` if there is none, or its package is not installed.
    """
    import transformers

    if family.original is None:
        raise ArgapError(f"{checkpoint}: {family.source} has no implementation to run here; use `backend=native`")
    module, _, name = family.original.partition(":")
    try:
        original = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ArgapError(
            f"{checkpoint}: `backend=hf` needs {family.source} ({error}); pip install 'argap[fla]'"
        ) from error
    if not module.startswith("transformers"):
        for model_type, config in TAKEN_OVER.items():  # other checkpoints of this process still load with transformers
            transformers.AutoConfig.register(model_type, getattr(transformers, config), exist_ok=True)
    return original
