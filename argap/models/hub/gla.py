"""Gated linear attention (model type ``gla``) of flash-linear-attention."""

from typing import Any

from argap.models.hub.family import ZEROS, Options, WeightMap, tensors
from argap.models.hub.fla import NORM_EPS, convolutions, fla_family, no_groups, projections


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
    norm = "g_norm_swish_gate" if options.get("fuse_norm", True) else "g_norm"
    sources = {
        f"{ours}.qkv.weight": projections(theirs),
        f"{ours}.decay_down.weight": tensors(f"{theirs}.gk_proj.0.weight"),
        f"{ours}.decay_up.weight": tensors(f"{theirs}.gk_proj.1.weight"),
        f"{ours}.decay_up.bias": tensors(f"{theirs}.gk_proj.1.bias"),
        f"{ours}.gate.weight": tensors(f"{theirs}.g_proj.weight"),
        f"{ours}.gate.bias": ZEROS,
        f"{ours}.norm.weight": tensors(f"{theirs}.{norm}.weight"),
        f"{ours}.out.weight": tensors(f"{theirs}.o_proj.weight"),
    }
    if options.get("use_short_conv", False):
        sources[f"{ours}.conv.weight"] = convolutions(theirs)
    return sources


GLA = fla_family("gla", "GLAForCausalLM", _mixer, _weights)
