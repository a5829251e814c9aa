"""Two models that recall without training: their weights are set by hand.

The first blog post on the Zoology paper (section 3) and the paper itself (arXiv 2312.04927, section 4.2) ask
what recall *takes*: attention compares a token with all before it in one product, so its width need not grow
with the length; a gated convolution compares two tokens at one distance in one channel, so it needs channels
for every distance. Both are built here from the parts that are trained elsewhere, and both continue every
repeated bigram, hence answer every query of multi-query associative recall.

Legend: V vocabulary, T the longest sequence, c = ⌈log₂ V⌉ bits of a token's code, ±1 each.

What else a block holds: an MLP that is not needed has weights 0 and adds nothing. An RMSNorm multiplies the
vector of a position by a positive number; where the number matters, the norm's weight undoes it, because the
vectors there are all of one length; elsewhere only signs and largest values are read from it.
"""

import math
from typing import TypeVar

import torch
from torch import nn

from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.attention import Attention
from argap.models.base_conv import BaseConv
from argap.models.filters import ExplicitFilter
from argap.models.modeling import Block

Kind = TypeVar("Kind")

MARGIN = 30.0
"""What should be ignored weighs less than e^−30 of what should not: float32 rounds it away."""


def token_codes(vocab_size: int) -> torch.Tensor:
    """The bits of each token's number as ±1, ``[V, c]``: two codes agree fully, or their product is c − 2 at
    most."""
    bits = max(1, math.ceil(math.log2(vocab_size)))
    return 2.0 * ((torch.arange(vocab_size)[:, None] >> torch.arange(bits)) & 1) - 1


@torch.no_grad()
def attention_by_hand(vocab_size: int, max_positions: int) -> ArgapForCausalLM:
    """Two attention layers of width 3·c + 1 (one more if that is odd), whatever T.

    The stream of a position holds its token's code, a 1, the code of the token before (from layer 1) and the
    answer (from layer 2).

    1. Queries and keys are the same for all tokens, turned by RoPE so that they agree best one position
       back: each position copies the code of the token before it. (The first has only itself to copy.)
    2. No positions. A query is the token's own code, a key that of the token before the key's position, less
       a little of the position's own code: the second term holds the first position back, which passes for
       its own successor. Where a token is preceded by mine, I read it.

    T enters in the size of layer 1's weights alone: RoPE's angles tell one distance from T − 1 others by less
    and less as T grows.
    """
    codes = token_codes(vocab_size)
    bits = codes.shape[1]
    width = 3 * bits + 1 + (3 * bits + 1) % 2
    own, one = slice(0, bits), bits
    before, answer = slice(bits + 1, 2 * bits + 1), slice(2 * bits + 1, 3 * bits + 1)
    mixers = [{"name": "attention", "heads": 1}, {"name": "attention", "heads": 1, "positions": "none"}]
    model = _blank(vocab_size, width, mixers, max_positions)
    embedding, head = model.get_parameter("model.embed_tokens.weight"), model.get_parameter("lm_head.weight")
    embedding[:, own] = codes
    embedding[:, one] = 1
    previous, recall = model.model.blocks
    _undo(previous.mixer_norm, bits + 1, width)
    _undo(recall.mixer_norm, 2 * bits + 1, width)

    mixer = _as(Attention, previous)
    query, key, value = (mixer.qkv.weight[k * width : (k + 1) * width] for k in range(3))
    half = width // 2
    angles = mixer.rope_theta ** (-torch.arange(half, dtype=torch.float64) * 2 / width)
    distances = torch.arange(max_positions)[torch.arange(max_positions) != 1, None]
    gap = float((1 - torch.cos((distances - 1) * angles)).sum(dim=1).min()) if max_positions > 1 else 1.0
    scale = math.sqrt(MARGIN * math.sqrt(width) / gap)
    key[:half, one] = scale
    query[:half, one] = scale * angles.cos()  # a query that is turned by one position less
    query[half:, one] = -scale * angles.sin()
    _copy(value, slice(0, bits), own)
    _copy(mixer.out.weight, before, slice(0, bits))

    mixer = _as(Attention, recall)
    query, key, value = (mixer.qkv.weight[k * width : (k + 1) * width] for k in range(3))
    # What I look for scores ahead·c − (c − 2) at least; the first position, where it passes for its own
    # successor, (ahead − 1)·c, 2 less; where another token is before, ahead·(c − 2) + c at most, 6 less.
    ahead = bits + 2.0
    scale = MARGIN * math.sqrt(width) / 2
    _copy(query, slice(0, bits), own, scale)
    _copy(key, slice(0, bits), before, ahead)
    _copy(key, slice(0, bits), own, -1)
    _copy(value, slice(0, bits), own)
    _copy(mixer.out.weight, answer, slice(0, bits))

    head[:, answer] = codes
    return model


@torch.no_grad()
def base_conv_by_hand(vocab_size: int, max_positions: int) -> ArgapForCausalLM:
    """Two BaseConv layers of width (2·c + 1)·S + c + 1, for the S = T − 1 distances at which a token can
    return.

    The stream holds the token's code and a 1, and for each shift s from 1 to S the code once more to compare,
    once more to read, and whether it matched.

    1. In the channels to compare, the filter is a spike at s and the gate the token's code: their product is
       +1 for each bit in which the token equals the one s before. The layer's MLP has a unit for each shift:
       SiLU of (sum of the products − c + 1) is positive where all agree, and 0, to e^−30, where one does not.
       (A product of two factors compares bits; to count them takes a nonlinearity.)
    2. In the channels to read, the filter is a spike at s − 1, the token after the one compared, and the gate
       whether s matched. The head adds up what was read.

    (A width that grows with V in place of T would do as well: a running sum over all positions of the token
    before, one-hot, times the code of the token, gated by the token that asks: V·c channels.)
    """
    codes = token_codes(vocab_size)
    bits, shifts = codes.shape[1], max(1, max_positions - 1)
    width = (2 * bits + 1) * shifts + bits + 1
    own, one = slice(0, bits), bits
    compare = bits + 1
    read = compare + shifts * bits
    matched = read + shifts * bits
    mixers = [{"name": "base_conv", "filter": "explicit", "kernel_size": None}]
    model = _blank(vocab_size, width, mixers, max_positions, intermediate_size=shifts)
    embedding, head = model.get_parameter("model.embed_tokens.weight"), model.get_parameter("lm_head.weight")
    embedding[:, own] = codes
    embedding[:, one] = 1
    embedding[:, compare:matched] = codes.repeat(1, 2 * shifts)
    first, second = model.model.blocks
    _undo(first.mixer_norm, (2 * shifts + 1) * bits + 1, width)

    mixer = _as(BaseConv, first)
    taps = _explicit(mixer)
    for shift in range(1, shifts + 1):
        channels = slice(compare + (shift - 1) * bits, compare + shift * bits)
        _copy(mixer.projection.weight, channels, own)
        if shift < max_positions:
            taps[shift, channels] = 1

    # Every position is now of the length below at most, so its norm multiplies by 1 at least: sharper still.
    _undo(first.mlp_norm, bits + 1 + shifts * bits + 4 * shifts * bits, width)
    sharp = MARGIN
    for unit in range(shifts):
        channels = slice(compare + unit * bits, compare + (unit + 1) * bits)
        first.mlp.gate.weight[unit, channels] = sharp
        first.mlp.gate.weight[unit, own] = -sharp  # the residual stream still holds the code itself there
        first.mlp.gate.weight[unit, one] = -sharp * (bits - 1)
        first.mlp.up.weight[unit, one] = 1
        first.mlp.down.weight[matched + unit, unit] = 1 / sharp

    mixer = _as(BaseConv, second)
    taps = _explicit(mixer)
    for shift in range(1, shifts + 1):
        channels = slice(read + (shift - 1) * bits, read + shift * bits)
        mixer.projection.weight[channels, matched + shift - 1] = 1
        taps[shift - 1, channels] = 1
    head[:, read:matched] = codes.repeat(1, shifts)
    head[:, own] = -shifts * codes  # what the channels to read held before
    return model


def _blank(
    vocab_size: int, width: int, mixers: list[dict], max_positions: int, intermediate_size: int = 1
) -> ArgapForCausalLM:
    """A model of two layers whose weights are all 0, its norms' 1."""
    config = ArgapConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=intermediate_size,
        num_hidden_layers=2,
        mixers=mixers,
        max_position_embeddings=max_positions,
        tie_word_embeddings=False,
    )
    model = ArgapForCausalLM(config).eval()
    norms = {id(module.weight) for module in model.modules() if isinstance(module, nn.RMSNorm)}
    for parameter in model.parameters():
        parameter.fill_(1.0 if id(parameter) in norms else 0.0)
    return model


def _undo(norm: nn.Module, square: float, width: int) -> None:
    """Let an RMSNorm return a vector of squared length ``square`` as it is."""
    norm.get_parameter("weight").fill_(math.sqrt(square / width + ArgapConfig().rms_norm_eps))


def _copy(weight: torch.Tensor, to: slice, source: slice, scale: float = 1.0) -> None:
    """Let a linear map add ``scale`` times the inputs ``source`` to the outputs ``to``."""
    weight[to, source] += scale * torch.eye(to.stop - to.start)


def _as(kind: type[Kind], block: Block) -> Kind:
    mixer = block.mixer
    assert isinstance(mixer, kind)  # built so above
    return mixer


def _explicit(mixer: BaseConv) -> torch.Tensor:
    """The free taps ``[T, D]``."""
    assert isinstance(mixer.filter, ExplicitFilter)  # built so above
    return mixer.filter.weight
