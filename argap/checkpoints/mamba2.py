"""Rewrite Mamba-2 as mamba_ssm saves it (``ssm_cfg: {"layer": "Mamba2"}``) in the layout of transformers' Mamba-2.

Both name the mixer's tensors alike, and differ in the name of the embedding and in how they spell the sizes: mamba_ssm
writes the arguments of its ``Mamba2`` that differ from its defaults (mamba_ssm/modules/mamba2.py).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from argap.checkpoints.weight_names import as_architecture
from argap.errors import ArgapError
from argap.models.hub.family import Options, padded

if TYPE_CHECKING:
    import torch

SIZES = {
    "d_state": ("state_size", 128),
    "d_conv": ("conv_kernel", 4),
    "expand": ("expand", 2),
    "headdim": ("head_dim", 64),
    "ngroups": ("n_groups", 1),
    "conv_bias": ("use_conv_bias", True),
    "bias": ("use_bias", False),
    "chunk_size": ("chunk_size", 256),
}
"""Arguments of mamba_ssm's ``Mamba2``: transformers' name, and mamba_ssm's default."""
FIXED = {
    "layer": "Mamba2",
    "conv_init": None,
    "d_ssm": None,
    "activation": "swish",
    "rmsnorm": True,
    "norm_before_gate": False,
    "D_has_hdim": False,
    "sequence_parallel": True,
}
"""Arguments with one value that transformers has."""
ONLY_INITIAL = ("A_init_range", "dt_min", "dt_max", "dt_init_floor", "use_mem_eff_path")
"""Arguments that affect only initialisation, or the choice of kernel."""


class _Options(Options):
    def refuse(self, name: str, value: Any, expected: str) -> NoReturn:
        raise ArgapError(
            f"{self.checkpoint}: option {name} {value!r} of mamba_ssm's Mamba-2 is none of transformers', expected "
            f"{expected}"
        )


def is_mamba2(config: Mapping[str, Any]) -> bool:
    """Return whether a ``config.json`` is that of a Mamba-2 of mamba_ssm."""
    mixer = config.get("ssm_cfg")
    return "model_type" not in config and isinstance(mixer, Mapping) and mixer.get("layer") == "Mamba2"


def in_transformers(
    name: str, config: Mapping[str, Any], tensors: "Mapping[str, torch.Tensor]"
) -> "tuple[dict[str, Any], dict[str, torch.Tensor]]":
    """Return ``config.json`` and tensors of checkpoint ``name`` in the layout of transformers.

    Raises `ArgapError`, with name and value, for an option that transformers' Mamba-2 lacks, and for tensors that are
    missing or of another shape.
    """
    options = _Options(name, "mamba_ssm", config)
    options.fixed(rms_norm=True, d_intermediate=0, attn_layer_idx=[], attn_cfg={})
    mixer = options.get("ssm_cfg", {})
    for key, value in mixer.items():
        if key in FIXED and value != FIXED[key]:
            options.refuse(f"ssm_cfg.{key}", value, repr(FIXED[key]))
        if key not in (*SIZES, *FIXED, *ONLY_INITIAL):
            options.refuse("ssm_cfg", mixer, f"the keys {', '.join(SIZES)}")
    sizes = {theirs: mixer.get(own, default) for own, (theirs, default) in SIZES.items()}
    width = options.size("d_model")
    written = {
        "architectures": ["Mamba2ForCausalLM"],
        "model_type": "mamba2",
        "hidden_size": width,
        "num_heads": sizes["expand"] * width // sizes["head_dim"],
        "num_hidden_layers": options.layers("n_layer"),
        "vocab_size": padded(options.size("vocab_size"), options.size("pad_vocab_size_multiple", 8)),
        "layer_norm_epsilon": 1e-5,
        "residual_in_fp32": options.get("residual_in_fp32", True),
        "tie_word_embeddings": options.get("tie_embeddings", True),
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
        **sizes,
        **options.shared(),
    }
    renamed = {
        key.removeprefix("model.").replace("backbone.embedding.", "backbone.embeddings."): value
        for key, value in tensors.items()
        if "metrics" not in key  # HazyResearch's trainer counts there
    }
    if written["tie_word_embeddings"]:
        renamed.pop("lm_head.weight", None)
    return written, as_architecture(name, renamed, written)
