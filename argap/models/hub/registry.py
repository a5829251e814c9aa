"""Families by model type. A type stands for ``"module:NAME"``, imported when it is first used."""

import importlib
from collections.abc import Mapping
from typing import Any

from argap.models.hub.family import Family

FAMILIES: dict[str, str] = {
    "based": "argap.models.hub.based:BASED",
    "delta_net": "argap.models.hub.delta_net:DELTA_NET",
    "gla": "argap.models.hub.gla:GLA",
    "linear_attn": "argap.models.hub.linear_attn:LINEAR_ATTN",
    "mamba": "argap.models.hub.mamba:MAMBA",
    "retnet": "argap.models.hub.retnet:RETNET",
    "rwkv": "argap.models.hub.rwkv:RWKV",
}


def find_family(config: Mapping[str, Any]) -> Family | None:
    """The family of a ``config.json``, None where there is none.

    By its ``model_type``; Based's, written before such types, by the two mixers that it alternates.
    """
    kind = "based" if "alt_mixer" in config and "alt_mixer_2" in config else config.get("model_type")
    if kind not in FAMILIES:
        return None
    module, _, name = FAMILIES[kind].partition(":")
    return getattr(importlib.import_module(module), name)
