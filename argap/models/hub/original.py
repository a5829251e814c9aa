"""A family's own implementation, for those who ask for it."""

import importlib

import transformers
from transformers import AutoConfig, PreTrainedModel

from argap.errors import ArgapError
from argap.models.hub.family import Family

TAKEN_OVER = {"bitnet": "BitNetConfig", "mamba": "MambaConfig", "mamba2": "Mamba2Config"}
"""The model types that flash-linear-attention takes from transformers when it is imported."""


def original_class(checkpoint: str, family: Family) -> type[PreTrainedModel]:
    """The class that its authors wrote, whatever else is registered under its model type.

    Raises `ArgapError` where there is none to run, or its package is not installed.
    """
    if family.original is None:
        raise ArgapError(f"{checkpoint}: {family.source} has no implementation to run here; use --backend native")
    module, _, name = family.original.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise ArgapError(
            f"{checkpoint}: --backend hf needs {family.source} ({error}); pip install 'argap[fla]'"
        ) from error
    if not module.startswith("transformers"):
        for kind, config in TAKEN_OVER.items():  # other checkpoints of the same command are still transformers'
            AutoConfig.register(kind, getattr(transformers, config), exist_ok=True)
    return found
