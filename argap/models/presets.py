"""Named architectures: the mixers of every layer, for the trainer and for ``argap models``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from argap.errors import ArgapError
from argap.models.configuration import MLP_MATRICES, ArgapConfig, MixerSpec, as_spec, default_intermediate_size
from argap.models.registry import build_mixer

Layers = Callable[[int], list[MixerSpec]]
"""Returns the mixers of a model with the given number of layers."""


@dataclass(frozen=True)
class Architecture:
    """A named choice of mixers."""

    layers: Layers
    bounded: bool = False
    """Whether a mixer stops at the training length (a long filter does)."""
    source: str = ""
    """Who measured this combination of mixers; the mixers have their own sources."""
    about: str = ""
    """What sets it apart where its name alone would not."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """`ArgapConfig` options of the architecture."""
    depth: int = 1
    """Layers of the model per layer asked for: 2 if a mixer replaces each MLP."""


def in_turn(*mixers: MixerSpec) -> Layers:
    """Alternate the mixers layer by layer; a single one is in every layer."""
    return lambda layers: [mixers[layer % len(mixers)] for layer in range(layers)]


def every(period: int, chosen: MixerSpec, others: MixerSpec) -> Layers:
    """Place ``chosen`` in the last layer of every ``period``, or of a shorter model, and ``others`` elsewhere."""

    def layers(count: int) -> list[MixerSpec]:
        step = min(period, count)
        return [chosen if (layer + 1) % step == 0 else others for layer in range(count)]

    return layers


base_conv_layers = in_turn(
    {"name": "base_conv", "filter": "explicit", "kernel_size": 3, "skip": True},
    {"name": "base_conv", "filter": "listing", "kernel_size": None, "skip": True},
)
"""Alternating short explicit and long implicit filters, as in the paper's language models; built as in its listings 1
and 2."""
octaves_layers = in_turn(
    {"name": "base_conv", "filter": "explicit", "kernel_size": 3},
    {"name": "base_conv", "filter": "implicit", "kernel_size": None},
)
"""The same with our long filters, of octaves, and without the listings' skip."""
TAYLOR: MixerSpec = {"name": "linear_attention", "feature_map": "taylor", "feature_dim": 16}
"""Linear attention with Taylor features of 16 dimensions."""


def window(positions: int) -> MixerSpec:
    """Return attention with a sliding window."""
    return {"name": "attention", "window": positions}


def hybrid_layers(layers: int) -> list[MixerSpec]:
    """Return BaseConv with our filters and full attention in every third layer, the second of each three."""
    return ["attention" if layer % 3 == 1 else mixer for layer, mixer in enumerate(octaves_layers(layers))]


def hybrid_three_layers(select: str) -> Layers:
    """Build BaseConv with attention at selected positions in three layers.

    As in the hybrids of the paper's table 2; which layers is our choice: the middle ones of three equal parts. A model
    of fewer than six layers has them in half its layers. The paper's hybrids have attention in less than 10% of their
    layers, which takes about thirty layers.
    """
    mixer: MixerSpec = {"name": "selected_attention", "select": select}

    def layers(count: int) -> list[MixerSpec]:
        parts = min(3, max(1, count // 2))
        chosen = [(2 * part + 1) * count // (2 * parts) for part in range(parts)]
        return [mixer if layer in chosen else other for layer, other in enumerate(base_conv_layers(count))]

    return layers


def delta_net_global_layers(layers: int) -> list[MixerSpec]:
    """Return DeltaNet with full attention in two layers, the 2nd and the (L/2 + 1)-th of L, counted from 1."""
    return ["attention" if layer in (1, layers // 2) else "delta_net" for layer in range(layers)]


def based_layers(layers: int) -> list[MixerSpec]:
    """Return Based's layers in groups of five: linear attention is the second, window attention the third.

    The second has Taylor features, the third a sliding window, and the others are short gated convolutions (arXiv
    2402.18668, section 3, and the authors' configurations of 27 layers, where linear attention never comes last). The
    window is 128 as in their example at 360M; their reference configurations have 256, their README says 64.
    """
    chosen = in_turn("based_conv", TAYLOR, window(128), "based_conv", "based_conv")(layers)
    return [*chosen[:-1], "based_conv"] if chosen[-1] is TAYLOR else chosen


ZOOLOGY, DELTA_NET = "arXiv 2312.04927", "arXiv 2406.06484"

ARCHITECTURES: dict[str, Architecture] = {
    "attention": Architecture(in_turn("attention")),
    "base_conv": Architecture(
        base_conv_layers,
        bounded=True,
        source=f"{ZOOLOGY}, table 2, listings 1 and 2",
        about="the paper's, with its listings' long filters and skip; in results/table1-7m base_conv_listing, in "
        "results/table2-mini base_conv",
    ),
    "base_conv_octaves": Architecture(
        octaves_layers,
        bounded=True,
        about="argap's own long filters (octaves) and no skip; it is called base_conv as a bundled checkpoint, in "
        "results/table1-* and in results/recall-along-training",
    ),
    "hybrid": Architecture(hybrid_layers, bounded=True),
    **{
        f"hybrid_{select}": Architecture(hybrid_three_layers(select), bounded=True, source=f"{ZOOLOGY}, table 2")
        for select in ("random", "programmatic", "learned", "full")
    },
    "linear_attention": Architecture(in_turn("linear_attention")),
    "based": Architecture(based_layers),
    "based_post": Architecture(in_turn("short_long_conv", TAYLOR), source="second Zoology post"),
    "delta_net": Architecture(in_turn("delta_net")),
    "delta_net_window": Architecture(in_turn("delta_net", window(128)), source=f"{DELTA_NET}, hybrid models"),
    "delta_net_global": Architecture(delta_net_global_layers, source=f"{DELTA_NET}, hybrid models"),
    "gla": Architecture(in_turn("gla")),
    "retnet": Architecture(in_turn("retnet")),
    "retnet_block": Architecture(
        in_turn("retnet"),
        source="arXiv 2307.08621, sections 2 and 2.4",
        options={"mlp": "gelu", "norm": "layer"},
    ),
    "retnet_window": Architecture(in_turn("retnet", window(128)), source=f"{ZOOLOGY}, table 4"),
    "long_conv": Architecture(in_turn("long_conv"), bounded=True),
    "hyena": Architecture(in_turn("hyena"), bounded=True),
    "hyena_window_64": Architecture(in_turn("hyena", window(64)), bounded=True, source=f"{ZOOLOGY}, table 4"),
    "hyena_window_256": Architecture(in_turn("hyena", window(256)), bounded=True, source=f"{ZOOLOGY}, table 4"),
    "multihead_hyena": Architecture(in_turn("multihead_hyena"), bounded=True),
    "h3": Architecture(in_turn("h3")),
    "mamba": Architecture(in_turn("mamba")),
    "mamba_block": Architecture(
        in_turn("mamba"), source="arXiv 2312.00752, figure 3", options={"mlp": "none"}, depth=2
    ),
    "rwkv4": Architecture(in_turn("rwkv4")),
    "rwkv4_channel": Architecture(
        in_turn("rwkv4", "rwkv4_channel"),
        source="arXiv 2305.13048",
        options={"mlp": "none", "norm": "layer", "embedding_norm": True},
        depth=2,
    ),
    "liquid_s4": Architecture(in_turn("liquid_s4")),
    "mamba2": Architecture(in_turn("mamba2")),
    "gated_delta_net": Architecture(in_turn("gated_delta_net")),
    "kda": Architecture(in_turn("kda")),
    "rwkv7": Architecture(in_turn("rwkv7")),
    "lightning_attention": Architecture(in_turn("lightning_attention")),
    "mlstm": Architecture(in_turn("mlstm")),
    "rg_lru": Architecture(in_turn("rg_lru")),
    "hgrn2": Architecture(in_turn("hgrn2")),
    "gsa": Architecture(in_turn("gsa")),
    "gated_attention": Architecture(in_turn("gated_attention")),
    "mla": Architecture(in_turn("mla")),
    "nsa": Architecture(in_turn("nsa")),
    "attention_window": Architecture(every(6, "attention", window(128)), source="arXiv 2503.19786 (Gemma 3)"),
    "gated_delta_net_hybrid": Architecture(every(4, "gated_attention", "gated_delta_net"), source="Qwen3-Next"),
    "olmo_hybrid": Architecture(
        every(4, "attention", {"name": "gated_delta_net", "negative_eigenvalues": True}), source="OLMo-Hybrid"
    ),
    "kda_hybrid": Architecture(
        every(4, {"name": "mla", "positions": "none"}, "kda"), source="arXiv 2510.26692 (Kimi Linear)"
    ),
    "mamba2_hybrid": Architecture(every(4, "attention", "mamba2")),
    "lightning_hybrid": Architecture(
        every(8, "attention", "lightning_attention"), source="arXiv 2501.08313 (MiniMax-01)"
    ),
    "griffin": Architecture(every(3, window(128), "rg_lru"), source="arXiv 2402.19427, section 2"),
}
"""Architectures by name. Those that end in ``_block``, and ``rwkv4_channel``, have the block of the mixer's authors;
the others have Llama's. The windows of ``delta_net_window`` and ``retnet_window`` are 128 (table 4's for RetNet; ours
for DeltaNet), in every other layer (stated for DeltaNet, ours for the others). ``based_post`` alternates short and long
convolutions with linear attention (second blog post on the Zoology paper; that they alternate is our reading). Hybrids
named after published models have their mixers in their proportions, but none of their experts; the windows of
``attention_window`` and ``griffin``, 128, and the proportion of ``mamba2_hybrid`` are ours."""


def build_config(
    architecture: str, *, hidden_size: int, num_hidden_layers: int, vocab_size: int, seq_len: int, **options: Any
) -> ArgapConfig:
    """Build the configuration of a named architecture at a size, for training on windows of ``seq_len``.

    All architectures of a size have (nearly) the same number of parameters, see `matching_intermediate_size`. Those
    without an MLP, ``mamba_block`` and ``rwkv4_channel``, have up to a tenth more besides the embedding. ``options``
    are further options of `ArgapConfig` and override the values set here. Raises `ArgapError` for an unknown name.
    """
    if architecture not in ARCHITECTURES:
        raise ArgapError(f"architecture {architecture!r}: unknown; known are {', '.join(ARCHITECTURES)}")
    chosen = ARCHITECTURES[architecture]
    num_hidden_layers *= chosen.depth
    mixers = chosen.layers(num_hidden_layers)
    settings: dict[str, Any] = {"max_position_embeddings": seq_len if chosen.bounded else None}
    settings |= {**chosen.options, **options}
    matrices = MLP_MATRICES.get(settings.get("mlp", "swiglu"), 3)  # ArgapConfig refuses an unknown one
    if matrices:
        matched = matching_intermediate_size(mixers, hidden_size, seq_len, matrices)
        settings.setdefault("intermediate_size", matched)
    return ArgapConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=num_hidden_layers,
        mixers=mixers,
        **settings,
    )


def matching_intermediate_size(mixers: list[MixerSpec], width: int, seq_len: int, matrices: int = 3) -> int:
    """Return the MLP's inner width, a multiple of 32, that matches the parameters of attention with its default MLP.

    ``mixers`` has one entry per layer; ``matrices`` of the MLP, 3 in a SwiGLU. An attention layer has 4·D² weights in
    its mixer, a BaseConv layer little more than D², retention 8·D². The MLP makes up the difference, so that models
    compare at equal parameters.
    """
    with torch.device("meta"):
        distinct = {str(mixer): mixer for mixer in mixers}
        built = {key: build_mixer(as_spec(mixer), width, seq_len) for key, mixer in distinct.items()}
    in_mixers = sum(p.numel() for mixer in mixers for p in built[str(mixer)].parameters())
    in_mlps = 3 * width * default_intermediate_size(width) * len(mixers) + 4 * width**2 * len(mixers) - in_mixers
    return max(1, round(in_mlps / (matrices * width * len(mixers)) / 32)) * 32
