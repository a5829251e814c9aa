"""What flash-linear-attention's families share: the backbone, and attention in some of the layers.

Their classes differ in the layer's own mixer alone, which each family's file adds: what it is, and which of
the tensors below ``model.layers.N.attn`` it is made of.
"""

from collections.abc import Callable
from typing import Any

from argap.models.configuration import ArgapConfig
from argap.models.hub.family import Family, Options, Tensors, WeightMap, taps, tensors

SOURCE = "flash-linear-attention 0.6"
NORM_EPS = 1e-6
NAMES = ("q", "k", "v")

Mixer = Callable[[Options], dict[str, Any]]
"""The native mixer that a layer's options mean; raises `ArgapError` for those without a native form."""
MixerWeights = Callable[[Options, str, str], WeightMap]
"""Its weights, from the prefix of the native names and that of the checkpoint's."""


def fla_family(name: str, original: str, mixer: Mixer, weights: MixerWeights, *, hidden_ratio: int = 4) -> Family:
    """A family of that model type, and its class there; ``hidden_ratio`` is its default of the MLP's width."""

    def configure(options: Options) -> ArgapConfig:
        width, layers = options.size("hidden_size", 2048), options.size("num_hidden_layers", 24)
        options.only("hidden_act", "swish", "silu")
        options.only("attnres_block_size", None)
        attention = attention_layers(options)
        own = mixer(options) if len(attention) < layers else {}
        return ArgapConfig(
            vocab_size=options.size("vocab_size", 32000),
            hidden_size=width,
            intermediate_size=inner_width(options, width, hidden_ratio),
            num_hidden_layers=layers,
            mixers=[attention.get(layer, own) for layer in range(layers)],
            rms_norm_eps=options.get("norm_eps", NORM_EPS),
            **{"tie_word_embeddings": False, **options.shared()},
        )

    def all_weights(options: Options, config: ArgapConfig) -> WeightMap:
        sources = {
            "model.embed_tokens.weight": tensors("model.embeddings.weight"),
            "model.norm.weight": tensors("model.norm.weight"),
        }
        for layer, spec in enumerate(config.mixers):
            prefix = f"model.layers.{layer}"
            sources |= {
                f"{prefix}.mixer_norm.weight": tensors(f"{prefix}.attn_norm.weight"),
                f"{prefix}.mlp_norm.weight": tensors(f"{prefix}.mlp_norm.weight"),
            }
            for part in ("gate", "up", "down"):
                sources[f"{prefix}.mlp.{part}.weight"] = tensors(f"{prefix}.mlp.{part}_proj.weight")
            of_layer = attention_weights if spec["name"] == "attention" else weights
            sources |= of_layer(options, f"{prefix}.mixer", f"{prefix}.attn")
        return sources

    return Family(name, SOURCE, configure, all_weights, original=f"fla.models:{original}")


def inner_width(options: Options, width: int, ratio: int) -> int:
    """The MLP's width: as given, else ⅔ of so many times the width, up to the next multiple of 256."""
    given = options.get("intermediate_size")
    if given is not None:
        return options.size("intermediate_size")
    return -(-int(width * options.get("hidden_ratio", ratio) * 2 / 3) // 256) * 256


def attention_layers(options: Options) -> dict[int, dict[str, Any]]:
    """The layers, from 0, that the option ``attn`` gives to attention, and the native mixer of each."""
    by_layer: dict[int, dict[str, Any]] = {}
    given = options.get("attn", [])
    for spec in [given] if isinstance(given, dict) else given:
        heads = spec.get("num_heads")
        if "layers" not in spec or heads is None:
            options.refuse("attn", given, "layers and num_heads")
        if spec.get("num_kv_heads") not in (None, heads) or spec.get("qkv_bias"):
            options.refuse("attn", given, "as many key as query heads and no biases")
        mixer = {
            "name": "attention",
            "heads": heads,
            "rope_theta": float(spec.get("rope_theta") or 10_000.0),
            "window": spec.get("window_size"),
        }
        by_layer |= dict.fromkeys(spec["layers"], mixer)
    return by_layer


def attention_weights(options: Options, ours: str, theirs: str) -> WeightMap:
    return {f"{ours}.qkv.weight": projections(theirs), f"{ours}.out.weight": tensors(f"{theirs}.o_proj.weight")}


def projections(theirs: str) -> Tensors:
    """The maps to queries, keys and values, one below the other."""
    return tensors(*(f"{theirs}.{name}_proj.weight" for name in NAMES))


def convolutions(theirs: str) -> Tensors:
    """The short convolutions of queries, keys and values, side by side."""
    return tensors(*(f"{theirs}.{name}_conv1d.weight" for name in NAMES), change=taps)


def no_groups(options: Options, heads: int) -> None:
    """Refuse keys and values that several heads share."""
    options.only("num_kv_heads", None, heads)
