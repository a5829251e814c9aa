"""Named architectures: the mixers of every layer, for a trainer and for ``argap models``."""

from collections.abc import Callable
from typing import Any

from argap.errors import ArgapError
from argap.models.configuration import ArgapConfig, MixerSpec, default_intermediate_size

Layers = Callable[[int], list[MixerSpec]]


def attention_layers(layers: int) -> list[MixerSpec]:
    return ["attention"] * layers


def base_conv_layers(layers: int) -> list[MixerSpec]:
    """Short explicit and long implicit filters in turn, as the paper's language models have them."""
    short: MixerSpec = {"name": "base_conv", "filter": "explicit", "kernel_size": 3}
    long: MixerSpec = {"name": "base_conv", "filter": "implicit", "kernel_size": None}
    return [short if layer % 2 == 0 else long for layer in range(layers)]


def hybrid_layers(layers: int) -> list[MixerSpec]:
    """BaseConv with full attention in every third layer, the second of each three."""
    return ["attention" if i % 3 == 1 else mixer for i, mixer in enumerate(base_conv_layers(layers))]


ARCHITECTURES: dict[str, Layers] = {
    "attention": attention_layers,
    "base_conv": base_conv_layers,
    "hybrid": hybrid_layers,
}


def build_config(
    architecture: str, *, hidden_size: int, num_hidden_layers: int, vocab_size: int, seq_len: int, **options: Any
) -> ArgapConfig:
    """The configuration of a named architecture at a size.

    An attention layer has 4·D² weights in its mixer and a BaseConv layer D²; the MLP of the latter's
    models is widened so that all architectures of a size have (nearly) the same parameters.
    Raises `ArgapError` for an unknown name.
    """
    if architecture not in ARCHITECTURES:
        raise ArgapError(f"architecture {architecture!r}: unknown; known are {', '.join(ARCHITECTURES)}")
    mixers = ARCHITECTURES[architecture](num_hidden_layers)
    gated = sum(m != "attention" for m in mixers)
    spare = 3 * hidden_size**2 * gated / num_hidden_layers  # weights a layer that the mixers leave
    inner = default_intermediate_size(hidden_size) + spare / (3 * hidden_size)
    settings: dict[str, Any] = {
        "intermediate_size": round(inner / 32) * 32,
        "max_position_embeddings": seq_len if gated else None,
        **options,
    }
    return ArgapConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=num_hidden_layers,
        mixers=mixers,
        **settings,
    )
