"""Multi-scale retention (model type ``retnet``) of flash-linear-attention, which norms its heads by RMSNorm."""

from typing import Any

from argap.models.hub.family import Options, WeightMap, renamed
from argap.models.hub.fla import NORM_EPS, fla_family, gated_norm, no_groups, projections


def _mixer(options: Options) -> dict[str, Any]:
    heads, expansion = options.size("num_heads", 8), options.get("expand_v", 2.0)
    no_groups(options, heads)
    options.fixed(expand_k=1.0, feature_map=None, use_short_conv=False)
    options.fixed(use_output_gate=True, elementwise_affine=True)
    if expansion != int(expansion):
        options.refuse("expand_v", expansion, "a whole number")
    return {
        "name": "retnet",
        "heads": heads,
        "value_expansion": int(expansion),
        "norm": "rms",
        "norm_eps": options.get("norm_eps", NORM_EPS),
    }


def _weights(options: Options, ours: str, theirs: str) -> WeightMap:
    sources = {f"{ours}.qk.weight": projections(theirs, "qk"), f"{ours}.v.weight": projections(theirs, "v")}
    return sources | renamed(ours, theirs, gated_norm(options))


RETNET = fla_family("retnet", "RetNetForCausalLM", _mixer, _weights, hidden_ratio=2)
