"""Based, as saved by its authors (``hazyresearch/based-*``).

Layers are short gated convolutions, Taylor linear attention (``alt_mixer_layers``) or sliding-window attention
(``alt_mixer_2_layers``). The layout is that of the authors' training code (github.com/HazyResearch/based): a GPT-2
configuration with the mixers' options in it, ``transformer.layers.N.mixer``, and one tensor for head and embedding,
with padded rows.
"""

from argap.models.configuration import ArgapConfig, Spec
from argap.models.hub.family import Family, Options, Tensors, WeightMap, first_half, padded, renamed, second_half, taps

EMBEDDING = "lm_head.weight"
BACKBONE = {
    "rms_norm": True,
    "activation_function": "swiglu",
    "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
    "parallel_block": False,
    "prenorm": True,
}
"""Options shared by the released models and those of `argap.models.hub.flash_gpt`; other values are refused."""
READING = "fixed_decay_reading"
"""How to read ``fixed_decay: true``; set by `argap.checkpoints.convert.convert`. Two versions of the authors' linear
attention differ. based/models/mixers/linear_attn.py multiplies the scores by γ_h^(i − j), γ_h = 1 − 2^(decay_const −
h), with ``decay_denom`` also by (Σ_j γ_h^(i − j))^−½, and leaves the sum that divides them undecayed;
based/models/mixers/linear_attention.py, which the released configurations name, ignores the decay. A checkpoint does
not say which one trained it. ``apply`` is the first, ``ignore`` the second."""
READINGS = ("ignore", "apply")


def _configure(options: Options) -> ArgapConfig:
    options.fixed(**BACKBONE)
    options.only("rotary_emb_fraction", 1, None)
    options.only("max_position_embeddings", 0, None)
    if options.get("fixed_decay", False) and options.get(READING) not in READINGS:
        options.refuse("fixed_decay", True, "false, or `fixed_decay=ignore` or `fixed_decay=apply` of `argap convert`")
    width, layers = options.size("n_embd"), options.layers("n_layer")
    by_layer = dict.fromkeys(options.get("alt_mixer_layers", []), _linear_attention(options, width))
    by_layer |= dict.fromkeys(options.get("alt_mixer_2_layers", []), _window(options))
    convolution = _convolution(options)
    mixers = [by_layer.get(layer, convolution) for layer in range(layers)]
    return backbone(
        options, options.size("vocab_size"), options.size("pad_vocab_size_multiple", 8), options.size("n_inner"), mixers
    )


def backbone(options: Options, vocabulary: int, multiple: int, inner: int, mixers: list[Spec]) -> ArgapConfig:
    """Build the configuration of a FlashAttention GPT with these mixers; embedding rows are a ``multiple``."""
    return ArgapConfig(
        vocab_size=padded(vocabulary, multiple),
        hidden_size=options.size("n_embd"),
        intermediate_size=inner,
        num_hidden_layers=options.layers("n_layer"),
        mixers=mixers,
        rms_norm_eps=options.get("layer_norm_epsilon", 1e-5),
        **{**options.shared(), "tie_word_embeddings": True},
    )


def _convolution(options: Options) -> Spec:
    given = options.get("mixer", {})
    projected = given.get("expand_proj", 4)
    if projected % 2:
        options.refuse("mixer", given, "an even expand_proj")
    if not given.get("use_bias", True) or given.get("use_cuda", False):
        options.refuse("mixer", given, "use_bias and not use_cuda")
    return {"name": "based_conv", "kernel_size": given.get("kernel_size", 3), "expand": projected // 2}


def _linear_attention(options: Options, width: int) -> Spec:
    given = options.get("alt_mixer", {})
    heads, size = given.get("num_heads", 16), given.get("feature_dim", 16)
    if given.get("head_dim") not in (None, width // heads):
        options.refuse("alt_mixer", given, f"head_dim {width // heads}")
    if given.get("feature_map", {}).get("input_dim", size) != size:
        options.refuse("alt_mixer", given, "a feature map of feature_dim")
    mixer = {"name": "linear_attention", "heads": heads, "feature_map": "taylor", "feature_dim": size}
    if options.get("fixed_decay", False) and options.get(READING) == "apply":
        if heads != options.size("n_head"):
            options.refuse("alt_mixer", given, "num_heads as n_head, which the decay has")
        mixer |= {"decay": options.get("decay_const", -5), "decay_scale": options.get("decay_denom", True)}
    return mixer


def _window(options: Options) -> Spec:
    """Return attention whose window is the half of ``window_size`` behind a position, plus the position itself.

    In a causal model the other half would lie ahead.
    """
    given, heads = options.get("alt_mixer_2", {}), options.size("n_head")
    if given.get("num_heads", heads) != heads:
        options.refuse("alt_mixer_2", given, f"num_heads {heads}, as n_head")
    return {
        "name": "attention",
        "heads": heads,
        "rope_theta": float(options.get("rotary_emb_base", 10_000.0)),
        "window": given.get("window_size", 128) // 2 + 1,
    }


def weights(options: Options, config: ArgapConfig) -> WeightMap:
    """Map the weights of FlashAttention's GPT backbone, and those of this family's mixers."""
    sources = {
        "model.embed_tokens.weight": Tensors(EMBEDDING),
        "model.norm.weight": Tensors("transformer.ln_f.weight"),
    }
    for layer, spec in enumerate(config.mixers):
        ours, theirs = f"model.layers.{layer}", f"transformer.layers.{layer}"
        sources |= renamed(ours, theirs, BLOCK)
        sources |= renamed(f"{ours}.mixer", f"{theirs}.mixer", MIXERS[spec["name"]])
        sources[f"{ours}.mlp.up.weight"] = Tensors(f"{theirs}.mlp.fc1.weight", change=first_half)
        sources[f"{ours}.mlp.gate.weight"] = Tensors(f"{theirs}.mlp.fc1.weight", change=second_half)
        if spec["name"] == "based_conv":
            sources[f"{ours}.mixer.conv.weight"] = Tensors(f"{theirs}.mixer.conv.conv.weight", change=taps)
        elif spec["name"] == "linear_attention":
            projections = (f"{theirs}.mixer.proj_{part}.weight" for part in "qk")
            sources[f"{ours}.mixer.qk.weight"] = Tensors(*projections)
    return sources


BLOCK = {"mixer_norm.weight": "norm1.weight", "mlp_norm.weight": "norm2.weight", "mlp.down.weight": "mlp.fc2.weight"}
"""Our names of a layer's weights, and theirs."""
MIXERS = {
    "based_conv": {
        "projections.weight": "in_proj.weight",
        "projections.bias": "in_proj.bias",
        "out.weight": "out_proj.weight",
        "out.bias": "out_proj.bias",
    },
    "linear_attention": {"v.weight": "proj_v.weight", "out.weight": "out_proj.weight"},
    "attention": {"qkv.weight": "Wqkv.weight", "out.weight": "out_proj.weight"},
}
"""The same for the mixers' weights that are single tensors."""


def rename(name: str) -> str | None:
    """Strip the trainer's prefix; return None for tensors that are not weights.

    Those are the trainer's counters and the rotary tables, which follow from the options. Embedding and head are one
    tensor, saved under either name or both.
    """
    name = name.removeprefix("model.")
    if "metrics" in name or name.endswith("rotary_emb.inv_freq"):
        return None
    return EMBEDDING if name == "transformer.embeddings.word_embeddings.weight" else name


BASED = Family("based", "github.com/HazyResearch/based", _configure, weights, rename)
