"""Give tensors the names that transformers has for the weights of an architecture, and check that all are there."""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from argap.checkpoints.classes import auto_class
from argap.errors import ArgapError
from argap.models.hub.family import Family, Options
from argap.models.hub.registry import find_family, register_fla, runs_by_fla

if TYPE_CHECKING:
    import torch

WRAPPERS = re.compile(r"(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\.")
"""Parts of a name that come from torch.compile, FSDP and activation checkpointing."""
IN_LAYER = re.compile(r"(?:model\.(layers\.\d+\.))?(.*)\.weight", re.DOTALL)
TITAN = {
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    **{f"self_attn.{part}_proj": f"attention.w{part}" for part in "qkvo"},
    **{f"self_attn.{part}_norm": f"attention.{part}_norm" for part in "qk"},
    **{f"mlp.{ours}_proj": f"feed_forward.{theirs}" for ours, theirs in (("gate", "w1"), ("up", "w3"), ("down", "w2"))},
}
"""transformers' names of a Llama's or Qwen3's modules, and those of torchtitan and of Meta's code."""
NEIGHBOURS = {"llama": True, "qwen3": False}
"""Model types that torchtitan has, and whether its code turns neighbouring components of a head by one angle."""


def as_architecture(
    name: str, tensors: "Mapping[str, torch.Tensor]", config: Mapping[str, Any]
) -> "dict[str, torch.Tensor]":
    """Return the tensors under the names that a model of ``config`` has, of ``name``, a checkpoint.

    They may have these names behind any prefix, or, for a Llama or Qwen3, those of torchtitan. Raises `ArgapError` for
    tensors that are missing or of another shape.
    """
    stored = {WRAPPERS.sub("", key): value for key, value in tensors.items()}
    shapes, tied = _expected(name, config, stored)
    first = next(iter(shapes))
    prefixes = [key.removesuffix(first) for key in stored if key == first or key.endswith(f".{first}")]
    found: dict[str, torch.Tensor] = {}
    if prefixes:
        prefix = min(prefixes, key=len)
        found = {key: stored[prefix + key] for key in shapes if prefix + key in stored}
    elif config.get("model_type") in NEIGHBOURS and any(key.endswith("tok_embeddings.weight") for key in stored):
        found = _of_titan(stored, shapes, config)
    missing = [key for key in shapes if key not in found and key not in tied]
    if missing:
        raise ArgapError(
            f"{name}: its {len(stored)} tensors, the first is {next(iter(stored))}, are not those of model type "
            f"{config.get('model_type')}: {len(missing)} are missing, the first is {missing[0]}; expected the "
            "config.json of this model"
        )
    for key, value in found.items():
        if (shape := shapes[key]) is not None and value.shape != shape:
            raise ArgapError(
                f"{name}: {key} has shape {list(value.shape)}, the config.json says {list(shape)}; expected the "
                "config.json of this model"
            )
    return found


def _expected(
    name: str, config: Mapping[str, Any], stored: Iterable[str]
) -> "tuple[dict[str, torch.Size | None], set[str]]":
    """Return the shape of each weight of a model of ``config``, and the names of those that are copies of others.

    Of families that only argap and flash-linear-attention know, the names alone, which may depend on those ``stored``.
    """
    import torch
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    import argap.models  # noqa: F401  (registers the native model type)

    family = find_family(config)
    if family is not None and config.get("model_type") not in CONFIG_MAPPING:
        return dict.fromkeys(_names_in(name, family, config, stored)), set()
    if runs_by_fla(config.get("model_type")):
        register_fla(name)
    auto = auto_class(name, config)
    try:
        with torch.device("meta"):
            model = auto.from_config(AutoConfig.for_model(**config))
    except Exception as error:  # of the family's own code
        reason = " ".join(str(error).split())[:200]
        raise ArgapError(
            f"{name}: no model can be made of its config.json ({reason}); expected one that transformers wrote"
        ) from None
    weights = {key: value.shape for key, value in model.state_dict().items()}
    shared = model.config.get_text_config().tie_word_embeddings
    return weights, set(model._tied_weights_keys or ()) if shared else set()


def _names_in(name: str, family: Family, config: Mapping[str, Any], stored: Iterable[str]) -> list[str]:
    """Return the names of a family's weights."""
    from argap.models.hub.load import native_config

    native = native_config(name, family, config)
    parts = (key.split(".") for key in stored)
    ends = {".".join(each[first:]) for each in parts for first in range(len(each))}  # behind any prefix
    sources = family.weights(Options(name, family.name, config, ends), native)
    names = [part for source in sources.values() for part in source.names]
    return names if native.tie_word_embeddings else [*names, family.head]


def _of_titan(
    stored: "Mapping[str, torch.Tensor]", shapes: Iterable[str], config: Mapping[str, Any]
) -> "dict[str, torch.Tensor]":
    """Return the tensors that torchtitan's names have for the names of transformers in ``shapes``.

    torchtitan's Llama turns neighbouring components of a head by one angle, as Meta's does, and transformers those half
    a head apart: rows of queries and keys are reordered (torchtitan/models/llama3/state_dict_adapter.py). Its Qwen3
    turns as transformers does.
    """
    prefix = next(key for key in stored if key.endswith("tok_embeddings.weight")).removesuffix("tok_embeddings.weight")
    heads = {"q": config.get("num_attention_heads", 1)}
    heads["k"] = config.get("num_key_value_heads") or heads["q"]
    found = {}
    for key in shapes:
        if (parts := IN_LAYER.fullmatch(key)) is None:
            continue
        layer, module = parts.groups("")
        theirs = TITAN.get(module, module)
        names = (theirs, theirs.replace("attention.w", "attention.qkv_linear.w"), module)  # of several versions
        value = next((stored[at] for each in names if (at := f"{prefix}{layer}{each}.weight") in stored), None)
        if value is None:
            continue
        turned = re.fullmatch(r"self_attn\.([qk])_proj", module)
        if turned and NEIGHBOURS[config["model_type"]]:
            value = value.unflatten(0, (heads[turned[1]], -1, 2)).transpose(1, 2).flatten(0, 2)
        found[key] = value
    return found
