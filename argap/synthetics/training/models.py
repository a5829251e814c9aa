"""The models that a run trains: their mixers by name, and the decoder of the compression task.

Legend: B batch, N positions, M supervised positions per example, D width, V vocabulary.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from argap.errors import ArgapError, within
from argap.files.configs import build
from argap.models.configuration import MixerSpec


@dataclass(frozen=True)
class Member:
    """A model of a sweep, independent of its width."""

    mixers: tuple[Any, ...]
    """One entry per layer, in the form that `argap.models.ArgapConfig` takes; a single entry makes two layers."""
    learned_positions: bool = False
    mlp: bool = False
    """Add a SwiGLU after each mixer. The published configurations of figure 2 have none."""


SHORT_CONV: MixerSpec = {"name": "base_conv", "filter": "explicit", "kernel_size": 3, "skip": True}
LONG_CONV: MixerSpec = {"name": "base_conv", "filter": "listing", "kernel_size": None, "skip": True}
ONE_HEAD: MixerSpec = {"name": "attention", "heads": 1, "positions": "none"}

MEMBERS: dict[str, Member] = {
    "attention": Member((ONE_HEAD,), learned_positions=True),
    "base_conv": Member((SHORT_CONV, LONG_CONV)),
    "hyena": Member(({"name": "hyena", "bands": 1, "sine_frequency": 1.0},)),
    "multihead_hyena": Member(("multihead_hyena",)),
    "h3": Member(({"name": "h3", "head_size": 2, "shift_states": None, "states": None},)),
    "rwkv4": Member(("rwkv4",)),
    "mamba": Member(("mamba",)),
    "based": Member((SHORT_CONV, {"name": "linear_attention", "heads": 1, "feature_map": "taylor", "feature_dim": 8})),
    "delta_net": Member(({"name": "delta_net", "heads": 2, "conv_size": None},)),
    "gla": Member(({"name": "gla", "heads": 1},)),
    "retnet": Member(("retnet",)),
    "linear_attention": Member(({"name": "linear_attention", "heads": 1},)),
}
"""Members by name. As in the paper's synthetic models, attention has one head and only attention has positions.

As published for figure 2 of arXiv 2312.04927 (HazyResearch/zoology, experiments/iclr24_zoology_figure2), BaseConv's
short filter is a depthwise Conv1d of 3 taps; Hyena's filter has ω = 1 and 3 features; H3 has heads of 2 and N states;
Based alternates the short convolution and Taylor features of 8 dimensions. BaseConv's long filter is listing 2's; the
published code has Hyena's there. DeltaNet is that of arXiv 2406.06484, section 5.1: "2 heads", "we do not use
convolutions". A sweep lists four layers if the publication has them."""


def member_from(name: str, value: Any = None) -> Member:
    """Build the member that a sweep file describes.

    ``name`` is one of `MEMBERS`, or a registered mixer or ``module:Class`` for both layers; ``value`` maps the fields
    that differ. Raises `ArgapError` for unknown keys and for a value that is not a mapping; an unknown mixer raises
    when the model is built.
    """
    if not isinstance(value, Mapping | None):
        known = ", ".join(f.name for f in fields(Member))
        raise ArgapError(f"{name}: expected nothing or KEY: VALUE lines ({known}), found {value!r}")
    with within(name):
        return build(Member, {**asdict(MEMBERS.get(name, Member((name,)))), **(value or {})})


class LastVectorDecoder(nn.Module):
    """Computes logits of every token of a sequence from only the last hidden state and the token's position.

    As in MAD's published code (arXiv 2403.17844, section 3): sinusoidal positions, an MLP of two layers of constant
    width with a norm before and a GELU after each, and an untied head with a norm. The hidden state is taken after the
    model's final norm. Raises `ArgapError` for an odd width.
    """

    positions: torch.Tensor
    """``[N, D]``."""

    def __init__(self, width: int, vocab_size: int, length: int) -> None:
        super().__init__()
        layers = [nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()) for _ in range(2)]
        self.mlp = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocab_size))
        self.register_buffer("positions", sinusoids(length, width), persistent=False)

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits ``[B, M, V]`` from the hidden states ``[B, N, D]`` for the input ``positions [B, M]``."""
        last = hidden[:, -1:]
        return self.head(self.mlp(last + F.embedding(positions, self.positions)))


def sinusoids(length: int, width: int) -> torch.Tensor:
    """``[length, width]``: sines, then cosines of each position at ``width / 2`` rates from 1 to 1 / 10,000."""
    if width % 2:
        raise ArgapError(f"width {width}: the decoder of compression needs an even number")
    device = torch.get_default_device()  # stated: linspace may miss a device that a ``with`` block sets
    rates = torch.exp(torch.linspace(0, -math.log(10_000), width // 2, device=device))
    angles = torch.arange(length, device=device)[:, None] * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)
