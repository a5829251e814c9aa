"""Mamba, a mixer alone in each layer, in transformers' layout and in that of its authors' package.

`MAMBA` is transformers' model type ``mamba``. `MAMBA_SSM` is mamba_ssm/models/mixer_seq_simple.py in
state-spaces/mamba, and based/models/mamba.py in HazyResearch/based, whose ``mamba-360m`` and ``mamba-1b`` have the same
class.
"""

from typing import Any

from argap.errors import ArgapError
from argap.models.configuration import ArgapConfig, Spec
from argap.models.hub.family import Family, Options, Tensors, WeightMap, padded, renamed, taps

NAMES = {
    "projection.weight": "in_proj.weight",
    "short.bias": "conv1d.bias",
    "selection.weight": "x_proj.weight",
    "step_size.weight": "dt_proj.weight",
    "step_size.bias": "dt_proj.bias",
    "log_decay": "A_log",
    "skip": "D",
    "out.weight": "out_proj.weight",
}
"""Our names of the mixer's weights, and theirs."""


def _configure(options: Options) -> ArgapConfig:
    width, expand = options.size("hidden_size", 768), options.size("expand", 2)
    options.fixed(use_bias=False, use_conv_bias=True, intermediate_size=expand * width)
    options.only("hidden_act", "silu", "swish")
    rank = options.get("time_step_rank", "auto")
    mixer = _mixer(options.size("state_size", 16), expand, options.size("conv_kernel", 4), rank)
    return ArgapConfig(
        vocab_size=options.size("vocab_size", 50280),
        hidden_size=width,
        num_hidden_layers=options.layers("num_hidden_layers", 32),
        mixers=[mixer],
        mlp="none",
        rms_norm_eps=options.get("layer_norm_epsilon", 1e-5),
        **{"tie_word_embeddings": True, **options.shared()},
    )


def _mixer(states: int, expand: int, kernel: int, rank: Any) -> Spec:
    """Return the native mixer; ``rank`` of the step size is a number or ``auto``."""
    own = None if rank == "auto" else rank
    return {"name": "mamba", "states": states, "expand": expand, "short_kernel": kernel, "step_rank": own}


def _weights(options: Options, config: ArgapConfig) -> WeightMap:
    sources = {
        "model.embed_tokens.weight": Tensors("backbone.embeddings.weight"),
        "model.norm.weight": Tensors("backbone.norm_f.weight"),
    }
    for layer in range(config.num_hidden_layers):
        ours, theirs = f"model.layers.{layer}", f"backbone.layers.{layer}"
        sources[f"{ours}.mixer_norm.weight"] = Tensors(f"{theirs}.norm.weight")
        sources[f"{ours}.mixer.short.weight"] = Tensors(f"{theirs}.mixer.conv1d.weight", change=taps)
        sources |= renamed(f"{ours}.mixer", f"{theirs}.mixer", NAMES)
    return sources


def _configure_published(options: Options) -> ArgapConfig:
    """Configure from ``ssm_cfg``, whose keys are the arguments of the authors' ``Mamba``.

    transformers spells these options at the top level.
    """
    mixer = options.get("ssm_cfg", {})
    if mixer.get("layer") == "Mamba2":
        raise ArgapError(
            f"{options.checkpoint}: Mamba-2 as mamba_ssm saves it; write it as transformers does, once, with `argap "
            f"convert {options.checkpoint} OUT`, and use OUT"
        )
    known = {"d_state": 16, "d_conv": 4, "expand": 2, "dt_rank": "auto", "conv_bias": True, "bias": False}
    fixed = {"layer": "Mamba1", "conv_bias": True, "bias": False}
    for name, value in mixer.items():
        if name in fixed and value != fixed[name]:
            options.refuse(f"ssm_cfg.{name}", value, repr(fixed[name]))
        if name not in (*known, *fixed, *ONLY_INITIAL):
            options.refuse("ssm_cfg", mixer, f"the keys {', '.join(known)}")
    options.fixed(rms_norm=True, d_intermediate=0, attn_layer_idx=[], attn_cfg={}, tie_embeddings=True)
    given = known | mixer
    return ArgapConfig(
        vocab_size=padded(options.size("vocab_size", 50277), options.size("pad_vocab_size_multiple", 8)),
        hidden_size=options.size("d_model", 1024),
        num_hidden_layers=options.layers("n_layer", 48),
        mixers=[_mixer(given["d_state"], given["expand"], given["d_conv"], given["dt_rank"])],
        mlp="none",
        rms_norm_eps=1e-5,
        **{**options.shared(), "tie_word_embeddings": True},
    )


ONLY_INITIAL = ("dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "use_fast_path")
"""Arguments of the authors' ``Mamba`` that affect only initialisation, or the choice of kernel."""


def _rename(name: str) -> str | None:
    """Rename ``embedding`` to ``embeddings``; drop the prefix and the counters of HazyResearch's trainer."""
    if "metrics" in name:
        return None
    return name.removeprefix("model.").replace("backbone.embedding.", "backbone.embeddings.")


MAMBA = Family("mamba", "transformers", _configure, _weights, _rename, original="transformers:MambaForCausalLM")
MAMBA_SSM = Family("mamba_ssm", "github.com/state-spaces/mamba", _configure_published, _weights, _rename)
