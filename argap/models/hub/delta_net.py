"""DeltaNet (model type ``delta_net``) of flash-linear-attention.

There queries are scaled by 1/√K before the output is normed, here they are not: the norm makes it the same,
with K times the epsilon.
"""

from typing import Any

from argap.models.hub.family import Options, WeightMap, renamed
from argap.models.hub.fla import NORM_EPS, fla_family, projections

KEY_NORMS = {"l2": "l2", "sum": "l1"}


def _mixer(options: Options) -> dict[str, Any]:
    heads, key_norm = options.size("num_heads", 16), options.get("qk_norm", "l2")
    options.fixed(expand_k=1.0, expand_v=1.0, use_beta=True, use_output_norm=True)
    options.fixed(use_gate=False, allow_neg_eigval=False, share_conv_kernel=False, use_elu=False)
    options.only("qk_norm", *KEY_NORMS)
    options.only("qk_activation", "silu", "relu", "elu", "identity")
    return {
        "name": "delta_net",
        "heads": heads,
        "activation": options.get("qk_activation", "silu"),
        "key_norm": KEY_NORMS[key_norm],
        "conv_size": options.size("conv_size", 4) if options.get("use_short_conv", True) else None,
        "norm_eps": options.get("norm_eps", NORM_EPS) * (options.size("hidden_size", 2048) // heads),
    }


def _weights(options: Options, ours: str, theirs: str) -> WeightMap:
    names = {"beta.weight": "b_proj.weight", "norm.weight": "o_norm.weight", "out.weight": "o_proj.weight"}
    return {f"{ours}.qkv.weight": projections(theirs), **renamed(ours, theirs, names)}


DELTA_NET = fla_family("delta_net", "DeltaNetForCausalLM", _mixer, _weights)
