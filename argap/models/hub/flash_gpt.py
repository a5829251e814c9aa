"""The attention model of HazyResearch's comparisons (``hazyresearch/attn-360m``, ``attn-1b``): FlashAttention's GPT
with SwiGLU, RMSNorm, no biases, and rotary positions over half of each head.

Its ``config.json`` is a ``GPT2Config`` with further keys, which transformers' GPT-2 ignores. The layout is that of
based/models/transformer/gpt.py and train/configs/experiment/reference/attn-*.yaml in HazyResearch/based, on
flash_attn/modules/mha.py and flash_attn/layers/rotary.py in Dao-AILab/flash-attention. Where half of a head is odd
(attn-1b: 35 of 70), the rotary code there makes ⌈35 / 2⌉ angles with exponents over 35, and turns 36 components; so
does ``rotary_size``.
"""

from typing import Any

from argap.models.configuration import ArgapConfig
from argap.models.hub.based import EMBEDDING, rename
from argap.models.hub.family import Family, Options, WeightMap, first_half, second_half, tensors

BACKBONE: dict[str, tuple[Any, ...]] = {
    "rms_norm": (True,),
    "activation_function": ("swiglu",),
    "rotary_emb_interleaved": (False,),
    "rotary_emb_scale_base": (None,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "max_position_embeddings": (0,),
    "tie_word_embeddings": (True,),
    "parallel_block": (False,),
    "prenorm": (True,),
    "use_alibi": (False,),
    "attn_dwconv": (False,),
    "mlp_fc1_bias": (False,),
    "mlp_fc2_bias": (False,),
    "out_proj_bias": (False,),
    "lm_head_bias": (False,),
    "norm_head": (False,),
    "word_embed_proj_dim": (None,),
    "mlp_type": ("base", None),
}
"""Options with one native form."""
REQUIRED = (
    "rms_norm",
    "activation_function",
    "max_position_embeddings",
    "mlp_fc1_bias",
    "mlp_fc2_bias",
    "out_proj_bias",
)
"""Options whose absence means something else."""
MLP_MULTIPLE = 256


def _configure(options: Options) -> ArgapConfig:
    for name, accepted in BACKBONE.items():
        options.only(name, *accepted)
    for name in REQUIRED:
        if options.get(name) is None:
            options.refuse(name, None, repr(BACKBONE[name][0]))
    width, heads = options.size("n_embd"), options.size("n_head")
    padding = options.size("pad_vocab_size_multiple", 1)
    inner = options.size("n_inner", int(8 * width / 3))
    rotary = int(options.get("rotary_emb_fraction", 0.0) * (width // heads))
    left, _ = options.get("window_size", (-1, -1))
    mixer = {
        "name": "attention",
        "heads": heads,
        "kv_heads": options.get("n_head_kv"),
        "qkv_bias": options.get("qkv_proj_bias", True),
        "positions": "rope" if rotary else "none",
        "rotary_size": rotary or None,
        "rope_theta": float(options.get("rotary_emb_base", 10_000.0)),
        "window": None if left < 0 else left + 1,
    }
    return ArgapConfig(
        vocab_size=-(-options.size("vocab_size", 50257) // padding) * padding,
        hidden_size=width,
        intermediate_size=-(-inner // MLP_MULTIPLE) * MLP_MULTIPLE,
        num_hidden_layers=options.size("n_layer"),
        mixers=[mixer],
        rms_norm_eps=options.get("layer_norm_epsilon", 1e-5),
        **{**options.shared(), "tie_word_embeddings": True},
    )


def _weights(options: Options, config: ArgapConfig) -> WeightMap:
    sources = {
        "model.embed_tokens.weight": tensors(EMBEDDING),
        "model.norm.weight": tensors("transformer.ln_f.weight"),
    }
    for layer, spec in enumerate(config.mixers):
        ours, theirs = f"model.layers.{layer}", f"transformer.layers.{layer}"
        sources |= {
            f"{ours}.mixer_norm.weight": tensors(f"{theirs}.norm1.weight"),
            f"{ours}.mlp_norm.weight": tensors(f"{theirs}.norm2.weight"),
            f"{ours}.mixer.qkv.weight": tensors(f"{theirs}.mixer.Wqkv.weight"),
            f"{ours}.mixer.out.weight": tensors(f"{theirs}.mixer.out_proj.weight"),
            f"{ours}.mlp.up.weight": tensors(f"{theirs}.mlp.fc1.weight", change=first_half),
            f"{ours}.mlp.gate.weight": tensors(f"{theirs}.mlp.fc1.weight", change=second_half),
            f"{ours}.mlp.down.weight": tensors(f"{theirs}.mlp.fc2.weight"),
        }
        if spec["qkv_bias"]:
            sources[f"{ours}.mixer.qkv.bias"] = tensors(f"{theirs}.mixer.Wqkv.bias")
    return sources


FLASH_GPT = Family("flash_gpt", "github.com/HazyResearch/based", _configure, _weights, rename)
