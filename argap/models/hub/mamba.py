"""Mamba (model type ``mamba``), as transformers lays it out: a mixer alone in each layer."""

from argap.models.configuration import ArgapConfig
from argap.models.hub.family import Family, Options, WeightMap, taps, tensors


def _configure(options: Options) -> ArgapConfig:
    width, expand = options.size("hidden_size", 768), options.size("expand", 2)
    options.only("use_bias", False)
    options.only("use_conv_bias", True)
    options.only("hidden_act", "silu", "swish")
    options.only("intermediate_size", expand * width)
    rank = options.get("time_step_rank", "auto")
    mixer = {
        "name": "mamba",
        "states": options.size("state_size", 16),
        "expand": expand,
        "short_kernel": options.size("conv_kernel", 4),
        "step_rank": None if rank == "auto" else rank,
    }
    return ArgapConfig(
        vocab_size=options.size("vocab_size", 50280),
        hidden_size=width,
        num_hidden_layers=options.size("num_hidden_layers", 32),
        mixers=[mixer],
        mlp="none",
        rms_norm_eps=options.get("layer_norm_epsilon", 1e-5),
        **{"tie_word_embeddings": True, **options.shared()},
    )


def _weights(options: Options, config: ArgapConfig) -> WeightMap:
    sources = {
        "model.embed_tokens.weight": tensors("backbone.embeddings.weight"),
        "model.norm.weight": tensors("backbone.norm_f.weight"),
    }
    for layer in range(config.num_hidden_layers):
        ours, theirs = f"model.layers.{layer}", f"backbone.layers.{layer}"
        sources |= {
            f"{ours}.mixer_norm.weight": tensors(f"{theirs}.norm.weight"),
            f"{ours}.mixer.projection.weight": tensors(f"{theirs}.mixer.in_proj.weight"),
            f"{ours}.mixer.short.weight": tensors(f"{theirs}.mixer.conv1d.weight", change=taps),
            f"{ours}.mixer.short.bias": tensors(f"{theirs}.mixer.conv1d.bias"),
            f"{ours}.mixer.selection.weight": tensors(f"{theirs}.mixer.x_proj.weight"),
            f"{ours}.mixer.step_size.weight": tensors(f"{theirs}.mixer.dt_proj.weight"),
            f"{ours}.mixer.step_size.bias": tensors(f"{theirs}.mixer.dt_proj.bias"),
            f"{ours}.mixer.log_decay": tensors(f"{theirs}.mixer.A_log"),
            f"{ours}.mixer.skip": tensors(f"{theirs}.mixer.D"),
            f"{ours}.mixer.out.weight": tensors(f"{theirs}.mixer.out_proj.weight"),
        }
    return sources


def _rename(name: str) -> str | None:
    """The authors' first conversions write ``embedding`` for ``embeddings``."""
    return name.replace("backbone.embedding.", "backbone.embeddings.")


MAMBA = Family("mamba", "transformers", _configure, _weights, _rename, original="transformers:MambaForCausalLM")
