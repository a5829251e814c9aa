"""What flash-linear-attention's families share: the backbone, and attention in some of the layers.

Their classes differ in the layer's own mixer alone, which each family's file adds: what it is, and which of
the tensors below ``model.layers.N.attn`` it is made of.

Two older layouts are still on the hub, and are recognised by their tensors: until early 2025 ``mlp.gate_proj`` held the
gate and, below it, the map up (fla/models/*/modeling_*.py of that time, ``gate, y = y.chunk(2, -1)``), and with
``norm_first`` the norms before mixer and MLP were theirs, ``attn.norm`` and ``mlp.norm``.
"""

from collections.abc import Callable, Mapping
from typing import Any

from argap.models.configuration import ArgapConfig
from argap.models.hub.family import Family, Options, Tensors, WeightMap, first_half, padded, second_half, taps

SOURCE = "flash-linear-attention 0.6"
NORM_EPS = 1e-6

Mixer = Callable[[Options], dict[str, Any]]
"""The native mixer that a layer's options mean; raises `ArgapError` for those without a native form."""
MixerWeights = Callable[[Options, str, str], WeightMap]
"""Its weights but those of short convolutions, from the prefixes of the native names and of the checkpoint's."""


def fla_family(name: str, original: str, mixer: Mixer, weights: MixerWeights, *, hidden_ratio: int = 4) -> Family:
    """A family of that model type, and its class there; ``hidden_ratio`` is its default of the MLP's width."""

    def configure(options: Options) -> ArgapConfig:
        width, layers = options.size("hidden_size", 2048), options.layers("num_hidden_layers", 24)
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


def _norm(options: Options, prefix: str, part: str) -> str:
    """The norm before the mixer or the MLP, under its name today or with ``norm_first``."""
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
    """The MLP's width: as given, else ⅔ of ``ratio`` times ``width``, up to the next multiple of 256."""
    if options.get("intermediate_size") is not None:
        return options.size("intermediate_size")
    return padded(int(width * options.get("hidden_ratio", ratio) * 2 / 3), 256)


def attention_layers(options: Options) -> dict[int, dict[str, Any]]:
    """The layers, from 0, that the option ``attn`` gives to attention, and the native mixer of each."""
    by_layer: dict[int, dict[str, Any]] = {}
    given = options.get("attn", [])
    for spec in [given] if isinstance(given, dict) else given:
        heads = spec.get("num_heads")
        if "layers" not in spec or heads is None:
            options.refuse("attn", given, "layers and num_heads")
        if spec.get("qk_norm"):
            options.refuse("attn", given, "no qk_norm")
        by_layer |= dict.fromkeys(spec["layers"], attention_mixer(spec))
    return by_layer


def attention_mixer(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The native mixer of their ``Attention`` (fla/layers/attn.py) with these arguments."""
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
    """The maps to queries, keys and values, or some of them, one below the other."""
    return Tensors(*(f"{theirs}.{part}_proj.weight" for part in parts))


def gated_norm(options: Options) -> dict[str, str]:
    """Our names and theirs for the output of a mixer that is normed and gated."""
    norm = "g_norm_swish_gate" if options.get("fuse_norm", True) else "g_norm"
    return {"gate.weight": "g_proj.weight", "norm.weight": f"{norm}.weight", "out.weight": "o_proj.weight"}


def no_groups(options: Options, heads: int) -> None:
    """Refuse keys and values that several heads share."""
    options.only("num_kv_heads", None, heads)
