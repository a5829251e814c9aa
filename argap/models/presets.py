"""Named architectures: the mixers of every layer, for the trainer and for ``argap models``."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from argap.errors import ArgapError
from argap.models.configuration import ArgapConfig, MixerSpec, as_spec, default_intermediate_size
from argap.models.registry import build_mixer


@dataclass(frozen=True)
class Architecture:
    """What a name stands for."""

    layers: Callable[[int], list[MixerSpec]]
    """The mixers of a model of so many layers."""
    bounded: bool
    """Whether a mixer ends at the length that the model is trained at (a long filter does)."""


def attention_layers(layers: int) -> list[MixerSpec]:
    """Full attention everywhere."""
    return ["attention"] * layers


def base_conv_layers(layers: int) -> list[MixerSpec]:
    """Short explicit and long implicit filters in turn, as the paper's language models have them."""
    short: MixerSpec = {"name": "base_conv", "filter": "explicit", "kernel_size": 3}
    long: MixerSpec = {"name": "base_conv", "filter": "implicit", "kernel_size": None}
    return [short if layer % 2 == 0 else long for layer in range(layers)]


def hybrid_layers(layers: int) -> list[MixerSpec]:
    """BaseConv with full attention in every third layer, the second of each three."""
    return ["attention" if layer % 3 == 1 else mixer for layer, mixer in enumerate(base_conv_layers(layers))]


def everywhere(mixer: MixerSpec) -> Callable[[int], list[MixerSpec]]:
    """The same mixer in every layer."""
    return lambda layers: [mixer] * layers


def based_layers(layers: int) -> list[MixerSpec]:
    """Of each five layers the second is linear attention with Taylor features of 16 dimensions, the third
    attention with a sliding window of 128, the others short gated convolutions (arXiv 2402.18668, section
    3, and the authors' configuration of 27 layers, where no linear attention comes last)."""
    linear: MixerSpec = {"name": "linear_attention", "feature_map": "taylor", "feature_dim": 16}
    window: MixerSpec = {"name": "attention", "window": 128}
    pattern = ["based_conv", linear, window, "based_conv", "based_conv"]
    chosen = [pattern[layer % 5] for layer in range(layers)]
    return [*chosen[:-1], "based_conv"] if chosen[-1] is linear else chosen


ARCHITECTURES: dict[str, Architecture] = {
    "attention": Architecture(attention_layers, bounded=False),
    "base_conv": Architecture(base_conv_layers, bounded=True),
    "hybrid": Architecture(hybrid_layers, bounded=True),
    "linear_attention": Architecture(everywhere("linear_attention"), bounded=False),
    "based": Architecture(based_layers, bounded=False),
    "delta_net": Architecture(everywhere("delta_net"), bounded=False),
    "gla": Architecture(everywhere("gla"), bounded=False),
    "retnet": Architecture(everywhere("retnet"), bounded=False),
    "long_conv": Architecture(everywhere("long_conv"), bounded=True),
    "hyena": Architecture(everywhere("hyena"), bounded=True),
    "h3": Architecture(everywhere("h3"), bounded=False),
    "mamba": Architecture(everywhere("mamba"), bounded=False),
    "rwkv4": Architecture(everywhere("rwkv4"), bounded=False),
    "liquid_s4": Architecture(everywhere("liquid_s4"), bounded=False),
}


def build_config(
    architecture: str, *, hidden_size: int, num_hidden_layers: int, vocab_size: int, seq_len: int, **options: Any
) -> ArgapConfig:
    """The configuration of a named architecture at a size, to be trained at windows of ``seq_len``.

    All architectures of a size have (nearly) the same parameters, see `matching_intermediate_size`.
    ``options`` are further ones of `ArgapConfig` and come before what is set here. Raises `ArgapError` for
    an unknown name.
    """
    if architecture not in ARCHITECTURES:
        raise ArgapError(f"architecture {architecture!r}: unknown; known are {', '.join(ARCHITECTURES)}")
    chosen = ARCHITECTURES[architecture]
    mixers = chosen.layers(num_hidden_layers)
    settings: dict[str, Any] = {
        "intermediate_size": matching_intermediate_size(mixers, hidden_size, seq_len),
        "max_position_embeddings": seq_len if chosen.bounded else None,
        **options,
    }
    return ArgapConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=num_hidden_layers,
        mixers=mixers,
        **settings,
    )


def matching_intermediate_size(mixers: list[MixerSpec], width: int, seq_len: int) -> int:
    """The MLP's inner width with which a model of these mixers, one a layer, has as many parameters as
    attention with the default width, to a multiple of 32.

    An attention layer has 4·D² weights in its mixer, a BaseConv layer little more than D²: what it leaves
    goes to the three maps of the MLP, so that models compare at equal parameters.
    """
    with torch.device("meta"):
        held = sum(p.numel() for mixer in mixers for p in build_mixer(as_spec(mixer), width, seq_len).parameters())
    spare = 4 * width**2 * len(mixers) - held
    return max(1, round((default_intermediate_size(width) + spare / (3 * width * len(mixers))) / 32)) * 32
