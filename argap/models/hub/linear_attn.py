"""Linear attention (model type ``linear_attn``) of flash-linear-attention, its output normed, not divided.

There queries are scaled by 1/√K before that norm, here they are not: it makes it the same, with K times the
epsilon.
"""

from typing import Any

from argap.models.hub.family import Options, WeightMap, renamed
from argap.models.hub.fla import NORM_EPS, fla_family, no_groups, projections

FEATURE_MAPS = ("elu", "relu", "identity")


def _mixer(options: Options) -> dict[str, Any]:
    heads = options.size("num_heads", 4)
    no_groups(options, heads)
    feature_map = options.get("feature_map", "elementwise_product")
    if feature_map not in FEATURE_MAPS:
        options.refuse("feature_map", feature_map, " or ".join(FEATURE_MAPS))
    options.fixed(expand_v=1.0, norm_q=False, norm_k=False, norm_feature_map=False, elementwise_affine=True)
    key_size = round(options.size("hidden_size", 2048) * options.get("expand_k", 1.0)) // heads
    return {
        "name": "linear_attention",
        "heads": heads,
        "feature_map": feature_map,
        "feature_dim": key_size,
        "normalization": "rms",
        "norm_eps": options.get("norm_eps", NORM_EPS) * key_size,
    }


def _weights(options: Options, ours: str, theirs: str) -> WeightMap:
    sources = {f"{ours}.qk.weight": projections(theirs, "qk"), f"{ours}.v.weight": projections(theirs, "v")}
    return sources | renamed(ours, theirs, {"norm.weight": "norm.weight", "out.weight": "o_proj.weight"})


LINEAR_ATTN = fla_family("linear_attn", "LinearAttentionForCausalLM", _mixer, _weights)
