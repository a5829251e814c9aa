"""Three models that recall without training: their weights are set by hand.

The first blog post on the Zoology paper (section 3) and the paper itself (arXiv 2312.04927, section 4.2) ask what
recall requires. Attention compares a token with all earlier ones in one product, so its width need not grow with the
length, even without a softmax. A gated convolution compares two tokens at one distance per channel, so it needs
channels for every distance. The models use the mixers that are trained elsewhere. They continue every repeated bigram
and therefore answer every query of multi-query associative recall.

Legend: V vocabulary, T maximum length, c = ⌈log₂ V⌉ bits of a token's code, each ±1.

The rest of a block: an unused MLP has weights 0 and adds nothing. An RMSNorm scales the vector of each position by a
positive number. Where the scale matters, all vectors have the same length and the norm's weight undoes it; elsewhere
only signs and the argmax matter.
"""

import math
from typing import TypeVar

import torch
from torch import nn

from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.block import Block, SwiGLU
from argap.models.mixers.attention import Attention
from argap.models.mixers.base_conv import BaseConv
from argap.models.mixers.linear_attention import LinearAttention
from tests.properties.constructions.arithmetic_circuits import taps_of

MixerType = TypeVar("MixerType")

MARGIN = 30.0
"""Margin between logits: e^−30 vanishes next to 1 in float32."""


def token_codes(vocab_size: int) -> torch.Tensor:
    """Return the bits of each token id as ±1, ``[V, c]``.

    The dot product of two codes is c if they are equal, else at most c − 2.
    """
    bits = max(1, math.ceil(math.log2(vocab_size)))
    return 2.0 * ((torch.arange(vocab_size)[:, None] >> torch.arange(bits)) & 1) - 1


@torch.no_grad()
def attention_by_hand(vocab_size: int, max_positions: int) -> ArgapForCausalLM:
    """Build two attention layers of width 3·c + 1, rounded up to an even number, for any T.

    The residual stream holds the token's code, a 1, the code of the previous token (written by layer 1) and the answer
    (written by layer 2).

    1. All tokens have the same query and key, rotated by RoPE such that they match best one position back: each
       position copies the code of the previous token. (The first position can only copy its own.)
    2. No positions. The query is the token's own code; the key is the code of the token before the key's
       position, minus a little of that position's own code. The second term suppresses the first position, which
       looks like its own successor. A position whose previous token equals the query's token is read.

    T affects only the size of layer 1's weights: the longer the sequence, the closer the RoPE angles of neighbouring
    distances.
    """
    codes = token_codes(vocab_size)
    bits = codes.shape[1]
    width = 3 * bits + 1 + (3 * bits + 1) % 2
    own, one = slice(0, bits), bits
    before, answer = slice(bits + 1, 2 * bits + 1), slice(2 * bits + 1, 3 * bits + 1)
    mixers = [{"name": "attention", "heads": 1}, {"name": "attention", "heads": 1, "positions": "none"}]
    model, embedding, head = _blank(vocab_size, width, mixers, max_positions)
    embedding[:, own] = codes
    embedding[:, one] = 1
    previous, recall = model.model.blocks
    _undo(previous.mixer_norm, bits + 1, width)
    _undo(recall.mixer_norm, 2 * bits + 1, width)

    mixer = _mixer(Attention, previous)
    query, key, value = (mixer.qkv.weight[k * width : (k + 1) * width] for k in range(3))
    half = width // 2
    angles = mixer.rope_theta ** (-torch.arange(half, dtype=torch.float64) * 2 / width)
    distances = torch.arange(max_positions)[torch.arange(max_positions) != 1, None]
    gap = float((1 - torch.cos((distances - 1) * angles)).sum(dim=1).min())
    scale = math.sqrt(MARGIN * math.sqrt(width) / gap)
    key[:half, one] = scale
    query[:half, one] = scale * angles.cos()  # the query is rotated by one position less
    query[half:, one] = -scale * angles.sin()
    _copy(value, slice(0, bits), own)
    _copy(mixer.out.weight, before, slice(0, bits))

    mixer = _mixer(Attention, recall)
    query, key, value = (mixer.qkv.weight[k * width : (k + 1) * width] for k in range(3))
    # A match scores at least ahead·c − (c − 2). The first position, which looks like its own successor, scores
    # (ahead − 1)·c, 2 less; a position after a different token at most ahead·(c − 2) + c, 6 less.
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
def linear_attention_by_hand(vocab_size: int, max_positions: int) -> ArgapForCausalLM:
    """Build a convolution of 2 taps and attention without softmax, of width 3·V, for any T (proposition 4.3).

    One-hot codes replace bits: the product of two codes is 1 if they are equal and 0 otherwise, so that nothing is left
    for a softmax to suppress. There are O(V²) parameters, whatever the length. (In the proposition the input's rows
    hold key and value together; in text the convolution puts them there.)

    The residual stream holds the token's code, the code of the previous token (at first the token's own) and the
    answer.

    1. In the second part, BaseConv with a gate of 1 subtracts the token's code and adds the code one position back.
    2. Linear attention without feature map: y_t = Σ_s (q_t · k_s) v_s, where the query is the token's code, the key the
       code of the token before and the value the code of the position itself: y_t counts the tokens that followed
       x_t. Its RMSNorm only changes the scale.
    """
    codes = torch.eye(vocab_size)
    own, before, answer = (slice(part * vocab_size, (part + 1) * vocab_size) for part in range(3))
    mixers = [
        {"name": "base_conv", "filter": "explicit", "kernel_size": 2},
        {"name": "linear_attention", "heads": 1, "feature_map": "identity", "feature_dim": vocab_size},
    ]
    model, embedding, head = _blank(vocab_size, 3 * vocab_size, mixers, max_positions)
    embedding[:, own] = codes
    embedding[:, before] = codes
    previous, recall = model.model.blocks
    for block in (previous, recall):  # at the first position of the second layer, the vector is shorter: it has no key
        _undo(block.mixer_norm, 2, 3 * vocab_size)

    mixer = _mixer(BaseConv, previous)
    mixer.gate_bias[before] = 1
    taps = taps_of(mixer)
    taps[0, before], taps[1, before] = -1, 1

    mixer = _mixer(LinearAttention, recall)
    query, key = mixer.qk.weight.split(vocab_size)
    _copy(query, slice(0, vocab_size), own)
    _copy(key, slice(0, vocab_size), before)
    _copy(mixer.v.weight, own, own)
    _copy(mixer.out.weight, answer, own)
    mixer.get_parameter("norm.weight").fill_(1)

    head[:, answer] = codes
    return model


@torch.no_grad()
def base_conv_by_hand(vocab_size: int, max_positions: int) -> ArgapForCausalLM:
    """Build two BaseConv layers of width (2·c + 1)·S + c + 1, for the S = T − 1 distances at which a token can recur.

    The residual stream holds the token's code and a 1, and for each shift s from 1 to S a copy of the code to compare,
    a copy to read, and a match flag.

    1. In the channels to compare, the filter is a spike at s and the gate is the token's code: their product is
       +1 for each bit in which the token equals the one s positions back. The layer's MLP has a unit per shift:
       SiLU of (sum of the products − c + 1) is positive if all bits agree, and otherwise 0 up to e^−30.
       (A product of two factors compares bits; counting them needs a nonlinearity.)
    2. In the channels to read, the filter is a spike at s − 1, the token after the compared one, and the gate is the
       match flag of s. The head sums the channels read.

    (A width that grows with V instead of T would work as well: V·c channels that hold a running sum over positions of
    the previous token, one-hot, times the current token's code, gated by the querying token.)
    """
    codes = token_codes(vocab_size)
    bits, shifts = codes.shape[1], max_positions - 1
    width = (2 * bits + 1) * shifts + bits + 1
    own, one = slice(0, bits), bits
    compare = bits + 1
    read = compare + shifts * bits
    matched = read + shifts * bits
    mixers = [{"name": "base_conv", "filter": "explicit", "kernel_size": None}]
    model, embedding, head = _blank(vocab_size, width, mixers, max_positions, intermediate_size=max(1, shifts))
    embedding[:, own] = codes
    embedding[:, one] = 1
    embedding[:, compare:matched] = codes.repeat(1, 2 * shifts)
    first, second = model.model.blocks
    _undo(first.mixer_norm, (2 * shifts + 1) * bits + 1, width)

    mixer = _mixer(BaseConv, first)
    taps = taps_of(mixer)
    for shift in range(1, shifts + 1):
        channels = slice(compare + (shift - 1) * bits, compare + shift * bits)
        _copy(mixer.projection.weight, channels, own)
        taps[shift, channels] = 1

    # The vectors are at most as long as given below, so the norm scales them by at least 1, which only sharpens.
    _undo(first.mlp_norm, bits + 1 + shifts * bits + 4 * shifts * bits, width)
    sharp, mlp = MARGIN, first.mlp
    assert isinstance(mlp, SwiGLU)
    for unit in range(shifts):
        channels = slice(compare + unit * bits, compare + (unit + 1) * bits)
        mlp.gate.weight[unit, channels] = sharp
        mlp.gate.weight[unit, own] = -sharp  # the residual stream still contains the code itself
        mlp.gate.weight[unit, one] = -sharp * (bits - 1)
        mlp.up.weight[unit, one] = 1
        mlp.down.weight[matched + unit, unit] = 1 / sharp

    mixer = _mixer(BaseConv, second)
    taps = taps_of(mixer)
    for shift in range(1, shifts + 1):
        channels = slice(read + (shift - 1) * bits, read + shift * bits)
        mixer.projection.weight[channels, matched + shift - 1] = 1
        taps[shift - 1, channels] = 1
    head[:, read:matched] = codes.repeat(1, shifts)
    head[:, own] = -shifts * codes  # subtract the initial content of the channels to read
    return model


def _blank(
    vocab_size: int, width: int, mixers: list[dict], max_positions: int, intermediate_size: int = 1
) -> tuple[ArgapForCausalLM, torch.Tensor, torch.Tensor]:
    """Build a model of two layers whose weights are all 0, except norms of 1; return its embedding and head too.

    Embedding and head are ``[V, D]``.
    """
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
    return model, model.get_parameter("model.embed_tokens.weight"), model.get_parameter("lm_head.weight")


def _undo(norm: nn.Module, square: float, width: int) -> None:
    """Make an RMSNorm the identity on vectors of squared length ``square``."""
    norm.get_parameter("weight").fill_(math.sqrt(square / width + ArgapConfig().rms_norm_eps))


def _copy(weight: torch.Tensor, to: slice, source: slice, scale: float = 1.0) -> None:
    """Make a linear map add ``scale`` times the inputs ``source`` to the outputs ``to``."""
    weight[to, source] += scale * torch.eye(to.stop - to.start)


def _mixer(mixer_type: type[MixerType], block: Block) -> MixerType:
    mixer = block.mixer
    assert isinstance(mixer, mixer_type)
    return mixer
