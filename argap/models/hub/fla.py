"""Families of flash-linear-attention: one backbone, attention in some of the layers, and a mixer of their own.

Two older layouts are still on the hub and are recognised by their tensors. Until early 2025 ``mlp.gate_proj`` held the
gate with the up projection below it (fla/models/*/modeling_*.py of that time, ``gate, y = y.chunk(2, -1)``). With
``norm_first`` the norms before mixer and MLP were called ``attn.norm`` and ``mlp.norm``.

DeltaNet, Gated DeltaNet and linear attention scale queries by 1/√K before the output norm. The native mixers do not,
and multiply the norm's epsilon by K instead, which is equivalent.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from argap.models.configuration import ArgapConfig, Spec
from argap.models.hub.family import (
    ZEROS,
    Family,
    Options,
    Tensors,
    WeightMap,
    column,
    first_half,
    padded,
    renamed,
    second_half,
    taps,
)

SOURCE = "flash-linear-attention 0.6"
NORM_EPS = 1e-6
KEY_NORMS = {"l2": "l2", "sum": "l1"}
FEATURE_MAPS = ("elu", "relu", "identity")
INERT = (
    *("attn_mode", "initializer_range", "max_position_embeddings", "use_cache", "hidden_ratio"),
    *("fuse_norm", "fuse_swiglu", "fuse_cross_entropy", "fuse_linear_cross_entropy", "use_l2warp", "norm_first"),
    *("conv_size", "tie_feature_map_qk", "torch_dtype", "auto_map", "tokenizer_class", "sep_token_id"),
)
"""Options that change no output, or that the weights show (``norm_first``), or that others make unused."""
ATTENTION = ("layers", "num_heads", "num_kv_heads", "qkv_bias", "qk_norm", "window_size", "rope_theta")
"""Options of ``attn``, the attention in some of the layers."""

Mixer = Callable[[Options], Spec]
"""Returns the native mixer for a layer's options; raises `ArgapError` for options without a native form."""
MixerWeights = Callable[[Options, str, str], WeightMap]
"""Returns the mixer's weights except short convolutions, given the prefixes of native and checkpoint names."""


def fla_family(
    name: str, original: str, mixer: Mixer, weights: MixerWeights, *, hidden_ratio: int = 4, usual_layers: int = 24
) -> Family:
    """Build the family of a model type from its class there.

    ``hidden_ratio`` and ``usual_layers`` are its default ratio of MLP width and number of layers.
    """

    def configure(options: Options) -> ArgapConfig:
        width, layers = options.size("hidden_size", 2048), options.layers("num_hidden_layers", usual_layers)
        options.only("hidden_act", "swish", "silu")
        options.fixed(attnres_block_size=None, elementwise_affine=True)
        attention = attention_layers(options)
        own = mixer(options) if len(attention) < layers else {}
        config = ArgapConfig(
            vocab_size=options.size("vocab_size", 32000),
            hidden_size=width,
            intermediate_size=inner_width(options, width, hidden_ratio),
            num_hidden_layers=layers,
            mixers=[attention.get(layer, own) for layer in range(layers)],
            rms_norm_eps=options.get("norm_eps", NORM_EPS),
            **{"tie_word_embeddings": False, **options.shared()},
        )
        if own:
            options.no_others({*INERT, *of_any_model()})
        return config

    def all_weights(options: Options, config: ArgapConfig) -> WeightMap:
        sources = {
            "model.embed_tokens.weight": Tensors("model.embeddings.weight"),
            "model.norm.weight": Tensors("model.norm.weight"),
        }
        for layer, spec in enumerate(config.mixers):
            prefix = f"model.layers.{layer}"
            for ours, theirs in (("mixer", "attn"), ("mlp", "mlp")):
                sources[f"{prefix}.{ours}_norm.weight"] = Tensors(_norm(options, prefix, theirs))
            sources |= _mlp(options, f"{prefix}.mlp")
            of_layer = attention_weights if spec["name"] == "attention" else weights
            of_mixer = of_layer(options, f"{prefix}.mixer", f"{prefix}.attn")
            if spec.get("conv_size"):
                convolutions = (f"{prefix}.attn.{part}_conv1d.weight" for part in "qkv")
                of_mixer[f"{prefix}.mixer.conv.weight"] = Tensors(*convolutions, change=taps)
            if any(_norm(options, prefix, "attn") in source.names for source in of_mixer.values()):
                options.refuse("norm_first", True, "false: its norm has the name of the output's")
            sources |= of_mixer
        return sources

    return Family(name, SOURCE, configure, all_weights, original=f"fla.models:{original}")


@cache
def of_any_model() -> frozenset[str]:
    """Return the options that transformers writes for every model."""
    from transformers import GenerationConfig, PreTrainedConfig

    return frozenset(PreTrainedConfig().to_dict()) | frozenset(GenerationConfig().to_dict())


def _norm(options: Options, prefix: str, part: str) -> str:
    """Return the name of the norm before the mixer or the MLP, today's or that of ``norm_first``."""
    today, older = f"{prefix}.{part}_norm.weight", f"{prefix}.{part}.norm.weight"
    return older if today not in options.stored and older in options.stored else today


def _mlp(options: Options, prefix: str) -> WeightMap:
    gate, up = f"{prefix}.gate_proj.weight", f"{prefix}.up_proj.weight"
    fused = gate in options.stored and up not in options.stored
    return {
        f"{prefix}.gate.weight": Tensors(gate, change=first_half if fused else None),
        f"{prefix}.up.weight": Tensors(gate, change=second_half) if fused else Tensors(up),
        f"{prefix}.down.weight": Tensors(f"{prefix}.down_proj.weight"),
    }


def inner_width(options: Options, width: int, ratio: int) -> int:
    """Return the MLP's width: as given, else ⅔ of ``ratio`` times ``width``, up to the next multiple of 256."""
    if options.get("intermediate_size") is not None:
        return options.size("intermediate_size")
    return padded(int(width * options.get("hidden_ratio", ratio) * 2 / 3), 256)


def attention_layers(options: Options) -> dict[int, Spec]:
    """Return the attention mixer of each layer (from 0) that the option ``attn`` lists."""
    by_layer: dict[int, Spec] = {}
    given = options.get("attn", [])
    for spec in [given] if isinstance(given, dict) else given:
        heads = spec.get("num_heads")
        if "layers" not in spec or heads is None:
            options.refuse("attn", given, "layers and num_heads")
        if spec.get("qk_norm"):
            options.refuse("attn", given, "no qk_norm")
        if unknown := [name for name in spec if spec[name] and name not in ATTENTION]:
            options.refuse(f"attn.{unknown[0]}", spec[unknown[0]], "a known option")
        by_layer |= dict.fromkeys(spec["layers"], attention_mixer(spec))
    return by_layer


def attention_mixer(spec: Mapping[str, Any]) -> Spec:
    """Convert the arguments of their ``Attention`` (fla/layers/attn.py) to a native mixer."""
    return {
        "name": "attention",
        "heads": spec["num_heads"],
        "kv_heads": spec.get("num_kv_heads"),
        "qkv_bias": bool(spec.get("qkv_bias")),
        "rope_theta": float(spec.get("rope_theta") or 10_000.0),
        "window": spec.get("window_size"),
    }


def attention_weights(options: Options, ours: str, theirs: str) -> WeightMap:
    sources = {f"{ours}.qkv.weight": projections(theirs), f"{ours}.out.weight": Tensors(f"{theirs}.o_proj.weight")}
    if f"{theirs}.q_proj.bias" in options.stored:
        sources[f"{ours}.qkv.bias"] = Tensors(*(f"{theirs}.{part}_proj.bias" for part in "qkv"))
    return sources


def projections(theirs: str, parts: str = "qkv") -> Tensors:
    """Stack the projections to queries, keys and values, or some of them."""
    return Tensors(*(f"{theirs}.{part}_proj.weight" for part in parts))


def gated_norm(options: Options) -> dict[str, str]:
    """Map our names to theirs for the output of a mixer that is normed and gated."""
    norm = "g_norm_swish_gate" if options.get("fuse_norm", True) else "g_norm"
    return {"gate.weight": "g_proj.weight", "norm.weight": f"{norm}.weight", "out.weight": "o_proj.weight"}


def no_groups(options: Options, heads: int) -> None:
    """Refuse keys and values shared by several heads."""
    options.only("num_kv_heads", None, heads)


def _delta_net(options: Options) -> Spec:
    heads, key_norm = options.size("num_heads", 16), options.get("qk_norm", "l2")
    options.fixed(expand_k=1.0, expand_v=1.0, use_beta=True, use_output_norm=True)
    options.fixed(use_gate=False, conv_bias=False, share_conv_kernel=False, use_elu=False)
    options.only("qk_norm", *KEY_NORMS)
    options.only("qk_activation", "silu", "relu", "elu", "identity")
    return {
        "name": "delta_net",
        "heads": heads,
        "activation": options.get("qk_activation", "silu"),
        "key_norm": KEY_NORMS[key_norm],
        **negative_eigenvalues(options),
        "conv_size": options.size("conv_size", 4) if options.get("use_short_conv", True) else None,
        "norm_eps": options.get("norm_eps", NORM_EPS) * (options.size("hidden_size", 2048) // heads),
    }


def _delta_net_weights(options: Options, ours: str, theirs: str) -> WeightMap:
    names = {"beta.weight": "b_proj.weight", "norm.weight": "o_norm.weight", "out.weight": "o_proj.weight"}
    return {f"{ours}.qkv.weight": projections(theirs), **renamed(ours, theirs, names)}


def negative_eigenvalues(options: Options) -> Spec:
    """Double β where ``allow_neg_eigval`` is set; a mixer's β is below 1 by default."""
    options.only("allow_neg_eigval", None, False, True)
    return {"negative_eigenvalues": True} if options.get("allow_neg_eigval") else {}


def _gated_delta_net(options: Options) -> Spec:
    width, heads = options.size("hidden_size", 2048), options.size("num_heads", 6)
    size, expansion = options.size("head_dim", 256), options.get("expand_v", 2.0)
    options.only("num_v_heads", None, heads)
    options.only("output_gate_activation", "swish", "silu")
    options.fixed(use_gate=True, conv_bias=False)
    if size * expansion != int(size * expansion):
        options.refuse("expand_v", expansion, f"a whole number times 1/{size}, the size of a head")
    return {
        "name": "gated_delta_net",
        "heads": heads,
        "key_expansion": heads * size / width,
        "value_expansion": heads * size * expansion / width,
        **negative_eigenvalues(options),
        "conv_size": options.size("conv_size", 4) if options.get("use_short_conv", True) else None,
        "norm_eps": options.get("norm_eps", NORM_EPS) * size,
    }


def _gated_delta_net_weights(options: Options, ours: str, theirs: str) -> WeightMap:
    names = {"beta.weight": "b_proj.weight", "steps.weight": "a_proj.weight", "decay.log_rate": "A_log"}
    names |= {"gate.weight": "g_proj.weight", "norm.weight": "o_norm.weight", "out.weight": "o_proj.weight"}
    sources = {f"{ours}.qkv.weight": projections(theirs), **renamed(ours, theirs, names)}
    sources[f"{ours}.decay.bias"] = Tensors(f"{theirs}.dt_bias", change=column)
    return sources


def _gla(options: Options) -> Spec:
    heads = options.size("num_heads", 4)
    no_groups(options, heads)
    options.fixed(expand_v=1.0, feature_map=None, clamp_min=None)
    options.fixed(use_gk=True, use_gv=False, use_output_gate=True)
    return {
        "name": "gla",
        "heads": heads,
        "key_expansion": options.get("expand_k", 0.5),
        "conv_size": options.size("conv_size", 4) if options.get("use_short_conv", False) else None,
        "norm_eps": options.get("norm_eps", NORM_EPS),
    }


def _gla_weights(options: Options, ours: str, theirs: str) -> WeightMap:
    names = {
        "decay_down.weight": "gk_proj.0.weight",
        "decay_up.weight": "gk_proj.1.weight",
        "decay_up.bias": "gk_proj.1.bias",
        **gated_norm(options),
    }
    sources = {f"{ours}.qkv.weight": projections(theirs), f"{ours}.gate.bias": ZEROS}
    return sources | renamed(ours, theirs, names)


def _linear_attn(options: Options) -> Spec:
    heads = options.size("num_heads", 4)
    no_groups(options, heads)
    feature_map = options.get("feature_map", "elementwise_product")
    if feature_map not in FEATURE_MAPS:
        options.refuse("feature_map", feature_map, " or ".join(FEATURE_MAPS))
    options.fixed(expand_v=1.0, norm_q=False, norm_k=False, norm_feature_map=False)
    key_size = round(options.size("hidden_size", 2048) * options.get("expand_k", 1.0)) // heads
    return {
        "name": "linear_attention",
        "heads": heads,
        "feature_map": feature_map,
        "feature_dim": key_size,
        "normalization": "rms",
        "norm_eps": options.get("norm_eps", NORM_EPS) * key_size,
    }


def _linear_attn_weights(options: Options, ours: str, theirs: str) -> WeightMap:
    names = {"norm.weight": "norm.weight", "out.weight": "o_proj.weight"}
    return _qk_and_v(ours, theirs) | renamed(ours, theirs, names)


def _retnet(options: Options) -> Spec:
    heads, expansion = options.size("num_heads", 8), options.get("expand_v", 2.0)
    no_groups(options, heads)
    options.fixed(expand_k=1.0, feature_map=None, use_short_conv=False)
    options.fixed(use_output_gate=True)
    if expansion != int(expansion):
        options.refuse("expand_v", expansion, "a whole number")
    return {
        "name": "retnet",
        "heads": heads,
        "value_expansion": int(expansion),
        "norm": "rms",
        "norm_eps": options.get("norm_eps", NORM_EPS),
    }


def _retnet_weights(options: Options, ours: str, theirs: str) -> WeightMap:
    return _qk_and_v(ours, theirs) | renamed(ours, theirs, gated_norm(options))


def _qk_and_v(ours: str, theirs: str) -> WeightMap:
    return {f"{ours}.qk.weight": projections(theirs, "qk"), f"{ours}.v.weight": projections(theirs, "v")}


def _transformer(options: Options) -> Spec:
    options.fixed(qk_norm=False)
    names = ("num_kv_heads", "qkv_bias", "rope_theta", "window_size")
    return attention_mixer({"num_heads": options.size("num_heads", 32), **{name: options.get(name) for name in names}})


DELTA_NET = fla_family("delta_net", "DeltaNetForCausalLM", _delta_net, _delta_net_weights)
GATED_DELTA_NET = fla_family(
    "gated_deltanet", "GatedDeltaNetForCausalLM", _gated_delta_net, _gated_delta_net_weights, usual_layers=21
)
GLA = fla_family("gla", "GLAForCausalLM", _gla, _gla_weights)
LINEAR_ATTN = fla_family("linear_attn", "LinearAttentionForCausalLM", _linear_attn, _linear_attn_weights)
RETNET = fla_family("retnet", "RetNetForCausalLM", _retnet, _retnet_weights, hidden_ratio=2)
TRANSFORMER = fla_family("transformer", "TransformerForCausalLM", _transformer, attention_weights)
