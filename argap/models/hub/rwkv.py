"""RWKV-4 (model type ``rwkv``) in transformers' layout.

Each of its blocks is two layers here, time mixing and channel mixing, each with its LayerNorm. Two options are ignored.
With ``rescale_every`` n, transformers halves the residual stream every n blocks to keep float16 from overflowing; it
changes only the relative size of the norms' epsilon, and only in inference. ``context_length`` bounds the authors' CUDA
kernel, not the model.
"""

import torch

from argap.models.configuration import ArgapConfig, MixerSpec
from argap.models.hub.family import Family, Options, Tensors, WeightMap, renamed

LAST_NORM_EPSILON = 1e-5
"""Of the norm before the head, whatever ``layer_norm_epsilon`` the others have."""
MAPS = {f"{name}.weight": f"{name}.weight" for name in ("receptance", "key", "value")}
TIME = {"log_decay": "time_decay", "bonus": "time_first", "out.weight": "output.weight"}
"""Our names of the weights, and theirs: `MAPS` for both mixers, `TIME` for more weights of time mixing."""


def _configure(options: Options) -> ArgapConfig:
    width = options.size("hidden_size", 4096)
    inner = options.size("intermediate_size", 4 * width)
    options.only("attention_hidden_size", None, width)
    options.only("layer_norm_epsilon", LAST_NORM_EPSILON)
    if inner % width:
        options.refuse("intermediate_size", inner, f"a multiple of hidden_size {width}")
    mixers: list[MixerSpec] = [{"name": "rwkv4"}, {"name": "rwkv4_channel", "expand": inner // width}]
    layers = options.layers("num_hidden_layers", 32)
    return ArgapConfig(
        vocab_size=options.size("vocab_size", 50277),
        hidden_size=width,
        num_hidden_layers=2 * layers,
        mixers=mixers,
        mlp="none",
        norm="layer",
        rms_norm_eps=LAST_NORM_EPSILON,
        embedding_norm=True,
        **{"tie_word_embeddings": False, **options.shared()},
    )


def _weights(options: Options, config: ArgapConfig) -> WeightMap:
    sources = {
        "model.embed_tokens.weight": Tensors("rwkv.embeddings.weight"),
        **_norm("model.embed_norm", "rwkv.blocks.0.pre_ln"),
        **_norm("model.norm", "rwkv.ln_out"),
    }
    for block in range(config.num_hidden_layers // 2):
        theirs = f"rwkv.blocks.{block}"
        time, channel = f"model.layers.{2 * block}", f"model.layers.{2 * block + 1}"
        sources |= _norm(f"{time}.mixer_norm", f"{theirs}.ln1") | _norm(f"{channel}.mixer_norm", f"{theirs}.ln2")
        sources |= renamed(f"{time}.mixer", f"{theirs}.attention", MAPS | TIME)
        sources |= renamed(f"{channel}.mixer", f"{theirs}.feed_forward", MAPS)
        shifts = [(time, "attention", name) for name in ("receptance", "key", "value")]
        shifts += [(channel, "feed_forward", name) for name in ("receptance", "key")]
        for ours, part, name in shifts:
            mix = Tensors(f"{theirs}.{part}.time_mix_{name}", change=torch.Tensor.flatten)
            sources[f"{ours}.mixer.shift.{name}.weight"] = mix
    return sources


def _norm(ours: str, theirs: str) -> WeightMap:
    return renamed(ours, theirs, {"weight": "weight", "bias": "bias"})


RWKV = Family(
    "rwkv",
    "transformers",
    _configure,
    _weights,
    head="head.weight",
    float32=("log_decay", "bonus"),  # as transformers keeps them
    original="transformers:RwkvForCausalLM",
)
