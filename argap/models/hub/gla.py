"""Gated linear attention (model type ``gla``) of flash-linear-attention."""

from typing import Any

from argap.models.hub.family import ZEROS, Options, WeightMap, renamed
from argap.models.hub.fla import NORM_EPS, fla_family, gated_norm, no_groups, projections


def _mixer(options: Options) -> dict[str, Any]:
    heads = options.size("num_heads", 4)
    no_groups(options, heads)
    options.fixed(expand_v=1.0, feature_map=None, clamp_min=None)
    options.fixed(use_gk=True, use_gv=False, use_output_gate=True, elementwise_affine=True)
    return {
        "name": "gla",
        "heads": heads,
        "key_expansion": options.get("expand_k", 0.5),
        "conv_size": options.size("conv_size", 4) if options.get("use_short_conv", False) else None,
        "norm_eps": options.get("norm_eps", NORM_EPS),
    }


def _weights(options: Options, ours: str, theirs: str) -> WeightMap:
    names = {
        "decay_down.weight": "gk_proj.0.weight",
        "decay_up.weight": "gk_proj.1.weight",
        "decay_up.bias": "gk_proj.1.bias",
        **gated_norm(options),
    }
    sources = {f"{ours}.qkv.weight": projections(theirs), f"{ours}.gate.bias": ZEROS}
    return sources | renamed(ours, theirs, names)


GLA = fla_family("gla", "GLAForCausalLM", _mixer, _weights)
