"""The attention model of HazyResearch's comparisons (``hazyresearch/attn-360m``, ``attn-1b``).

It is FlashAttention's GPT with SwiGLU, RMSNorm, no biases, and rotary positions over half of each head. Its
``config.json`` is a ``GPT2Config`` with further keys, which transformers' GPT-2 ignores. The layout is that of
based/models/transformer/gpt.py and train/configs/experiment/reference/attn-*.yaml in HazyResearch/based, on
flash_attn/modules/mha.py and flash_attn/layers/rotary.py in Dao-AILab/flash-attention. If half of a head is odd
(attn-1b: 35 of 70), the rotary code there computes ⌈35 / 2⌉ angles with exponents over 35, and rotates 36 components;
so does ``rotary_size``.
"""

from argap.models.configuration import ArgapConfig
from argap.models.hub.based import BACKBONE, backbone, rename, weights
from argap.models.hub.family import Family, Options, Tensors, WeightMap, padded

FIXED = {
    **BACKBONE,
    "max_position_embeddings": 0,
    "use_alibi": False,
    "attn_dwconv": False,
    "mlp_fc1_bias": False,
    "mlp_fc2_bias": False,
    "out_proj_bias": False,
    "lm_head_bias": False,
    "norm_head": False,
    "word_embed_proj_dim": None,
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
    options.fixed(**FIXED)
    options.only("mlp_type", "base", None)
    for name in REQUIRED:
        if options.get(name) is None:
            options.refuse(name, None, repr(FIXED[name]))
    width, heads = options.size("n_embd"), options.size("n_head")
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
    vocabulary, multiple = options.size("vocab_size", 50257), options.size("pad_vocab_size_multiple", 1)
    return backbone(options, vocabulary, multiple, padded(inner, MLP_MULTIPLE), [mixer])


def _weights(options: Options, config: ArgapConfig) -> WeightMap:
    biases = {
        f"model.layers.{layer}.mixer.qkv.bias": Tensors(f"transformer.layers.{layer}.mixer.Wqkv.bias")
        for layer, spec in enumerate(config.mixers)
        if spec["qkv_bias"]
    }
    return weights(options, config) | biases


FLASH_GPT = Family("flash_gpt", "github.com/HazyResearch/based", _configure, _weights, rename)
