"""Recall by stacked BaseConv layers whose width hardly grows with the length (arXiv 2312.04927, theorem 4.4).

The theorem says that BaseConv, whose filters do not depend on the input, solves multi-query associative recall with
O(N log V) parameters in O(1) layers, up to powers of log N. `tests.constructions.by_hand.base_conv_by_hand` needs two
layers but a width that grows with T; here the width is logarithmic in N and V and the depth polylogarithmic in N. The
algorithm is ours:

1. Each position holds a record of its token, its number and the token after it. A sorting network sorts the records by
   token, then number.
2. The preceding record now holds the last earlier occurrence of the same token, if there is one. The token that
   followed it is the answer.
3. A second network sorts by number, which brings every answer back to its query.

A layer y = (u W + b1) ⊙ (h ∗ u + b2), with one bias per position as in definition 4.1, can do three things: a
linear map of the channels plus a constant of the position, a shift of each channel times a mask of the positions, and
the product of two channels. Bits are 0 and 1, so that sums and products compare numbers. A convolution cannot look
ahead: an exchange with the position s ahead delays all records by s instead, nearly 4·N in all.

Legend: B batch, T tokens, N ≥ T records, a power of two; c = ⌈log₂ V⌉ bits of a token, p = log₂ N bits of a number.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from argap.errors import ArgapError
from argap.models.mixers.base_conv import BaseConv
from tests.properties.constructions.arithmetic_circuits import blank_layer, taps_of

Channels = list[int]
Sums = dict[int, list[tuple[int, int]]]
"""Maps each channel to the channels that it becomes a sum of, with their weights."""
NOT_FOUND = -1


@dataclass(frozen=True)
class SortingRecall:
    """BaseConv layers without norms or residuals, ``[B, N + delay, W]`` to the same shape, in float64."""

    layers: nn.Sequential
    bits: int
    """c. The token's bits are the first c channels of the input; the others are 0."""
    answer: Channels
    """Channels of the answer's bits in the output."""
    found: int
    """Channel that is 1 if there is an answer, else 0."""
    delay: int
    """The answer to position t is at t + delay."""
    positions: int
    """N + delay."""

    @torch.no_grad()
    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """Find the token that followed the last earlier occurrence of each token, or `NOT_FOUND`.

        ``tokens [B, T ≤ N]`` and the result ``[B, T]`` are int64. Example: 3, 5, 3 gives -1, -1, 5. Raises `ArgapError`
        for more tokens than records, and tokens of more bits.
        """
        length, weights = tokens.shape[1], 1 << torch.arange(self.bits).flip(0)
        if length > self.positions - self.delay or tokens.min() < 0 or tokens.max() >> self.bits:
            limits = f"{self.positions - self.delay} of them, from 0 to {(1 << self.bits) - 1}"
            raise ArgapError(f"`tokens` {tuple(tokens.shape)} up to {tokens.max()}; expected at most {limits}")
        width = self.layers[0].get_parameter("projection.weight").shape[0]
        x = torch.zeros(len(tokens), self.positions, width, dtype=torch.float64)
        x[:, :length, : self.bits] = (tokens[..., None] & weights).bool().double()
        y = self.layers(x)[:, self.delay : self.delay + length].round().long()
        return torch.where(y[..., self.found] == 1, (y[..., self.answer] * weights).sum(dim=-1), NOT_FOUND)


def sorting_recall(vocab_size: int, length: int) -> SortingRecall:
    """Build the layers for up to ``length`` tokens below ``vocab_size``.

    W = 8·c + 5·p + 3 channels, and p·(p + 1)/2 exchanges in each network, of 8 + 2·⌈log₂ k⌉ layers for a key of k bits.
    A layer's filter ends at its largest shift, at most N. Arithmetic is exact up to N = 16. From N = 32 on, filters of
    more than 32 taps run as FFTs, whose rounding errors later layers amplify: bits are off by at most 10⁻⁹ at N = 32
    and 10⁻⁷ at 64.
    """
    bits, number = (max(1, math.ceil(math.log2(n))) for n in (vocab_size, length))
    return _Builder(bits, number).build()


class _Builder:
    """Appends layers and keeps track of the delay.

    The channels hold three copies of a record (its own, its partner's and one to compute with) and, for each bit of a
    key, whether the own one is less than the partner's and whether they are equal.
    """

    def __init__(self, bits: int, number: int) -> None:
        self.bits, self.number, self.records = bits, number, 1 << number
        self.size, keys = 2 * bits + number + 1, bits + number
        fields = list(range(3 * self.size + 2 * keys))
        self.width = len(fields)
        self.token, self.at, self.value = fields[:bits], fields[bits:keys], fields[keys : self.size - 1]
        self.found, self.record = self.size - 1, fields[: self.size]
        self.partner, self.third = (fields[self.size * n : self.size * (n + 1)] for n in (1, 2))
        self.both = [*self.record, *self.partner]
        self.less, self.equal = fields[-2 * keys : -keys], fields[-keys:]
        self.exchanges = [(1 << k, 1 << s) for k in range(1, number + 1) for s in reversed(range(k))]
        self.positions = self.records + 1 + 2 * sum(distance for _, distance in self.exchanges)
        self.delay = 0
        self.layers: list[BaseConv] = []

    def build(self) -> SortingRecall:
        """Build all layers."""
        self._read()
        self._sort([*self.token, *self.at])
        self._look_back()
        self._sort(self.at)
        layers = nn.Sequential(*self.layers).requires_grad_(False)
        return SortingRecall(layers, self.bits, self.value, self.found, self.delay, self.positions)

    def _read(self) -> None:
        """Make records of each token, its number and the token after it."""
        self._linear({**_same(self.token), **_sums(self.value, self.token)})
        self.delay = 1
        there = self._mask(lambda record: True)
        self._shift({**dict.fromkeys(self.token, (1, there)), **dict.fromkeys(self.value, (0, there))})
        bits = (self._mask(lambda record, bit=bit: bool(record >> bit & 1)) for bit in reversed(range(self.number)))
        self._linear(_same(self.record), dict(zip(self.at, bits, strict=True)), copies=True)

    def _sort(self, key: Channels) -> None:
        """Sort the records by a key, its most significant bit first: Batcher's bitonic network."""
        for block, distance in self.exchanges:
            self.delay += distance
            there = self._mask(lambda record: True)
            low = self._mask(lambda record, d=distance: not record & d)
            moved = dict.fromkeys(self.record, (distance, there)) | dict.fromkeys(self.partner, (0, low))
            self._shift(moved | dict.fromkeys(self.third, (2 * distance, there - low)))
            self._compare(key)
            # In every other block the order is reversed. Where the lesser record belongs, the own one stays if it is
            # less; elsewhere, if it is not less.
            lesser = self._mask(lambda record, d=distance, b=block: (not record & d) == (not record & b))
            stays = self.less[0]
            self._shift({**dict.fromkeys(self.both, (0, there)), stays: (0, 2 * lesser - there)})
            self._linear(
                {**_sums(self.record, self.record, self.partner, weights=(1, -1)), **_same([*self.partner, stays])},
                {stays: there - lesser},
            )
            self._product(dict.fromkeys(self.record, stays), self.partner)
            self._linear(_sums(self.record, self.record, self.partner), copies=True)

    def _look_back(self) -> None:
        """Replace each value by that of the preceding record if both have the same token, else by zeros."""
        there, follows = self._mask(lambda record: True), self._mask(lambda record: record > 0)
        self._shift({**dict.fromkeys(self.record, (0, there)), **dict.fromkeys(self.third, (1, follows))})
        self._compare(self.token)
        equal = self.equal[0]
        self._shift({**dict.fromkeys(self.both, (0, there)), equal: (0, follows)})
        value = self.partner[self.value[0] : self.found]
        self._product(dict.fromkeys(value, equal), [*self.at, equal])
        self._linear(
            {**_same(self.at), **_sums(self.value, value), **_sums([self.found], [equal])},
            copies=True,
        )

    def _compare(self, key: Channels) -> None:
        """Compute whether the own key is less than the partner's, and whether they are equal.

        The results are in the first channels of ``less`` and ``equal``. The partner's record is the sum of the second
        and third copies. Bits a and b: less is b − ab and equal is 1 − a − b + 2ab. Two parts, the first more
        significant: less is less_1 + equal_1·less_2 and equal is equal_1·equal_2.
        """
        joined = (self.partner, self.third)
        self._linear({**_same(self.record), **_sums(self.partner, *joined), **_sums(self.third, *joined)})
        self._product(dict(zip(self.third, self.record, strict=True)), self.both)
        count = len(key)
        less, equal = self.less[:count], self.equal[:count]
        own, partner, product = key, [self.partner[c] for c in key], [self.third[c] for c in key]
        differ = _sums(equal, own, partner, product, weights=(-1, -1, 2))
        self._linear(
            {**_same(self.both), **_sums(less, partner, product, weights=(1, -1)), **differ},
            dict.fromkeys(equal, torch.ones(self.positions, dtype=torch.float64)),
        )
        while count > 1:
            pairs, odd = count // 2, count % 2
            first, second = slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)
            gates = dict(zip([*less[second], *equal[second]], 2 * equal[first], strict=True))
            self._product(gates, {*self.both, *less, *equal} - gates.keys())
            joined_less = _sums(less[:pairs], less[first], less[second])
            joined_equal = _sums(equal[:pairs], equal[second])
            count = pairs + odd
            if odd:
                joined_less |= _sums([less[pairs]], [less[-1]])
                joined_equal |= _sums([equal[pairs]], [equal[-1]])
            self._linear({**_same(self.both), **joined_less, **joined_equal})
            less, equal = less[:count], equal[:count]

    def _linear(self, sums: Sums, constants: Mapping[int, torch.Tensor] | None = None, *, copies: bool = False) -> None:
        """Append u W + b1: each channel a weighted sum of channels, plus a constant ``[positions]``.

        With ``copies`` the second and third copies of a record become the first.
        """
        layer = self._layer(taps=1)
        layer.conv_bias.fill_(1)
        for shift in (0, self.size, 2 * self.size) if copies else (0,):
            for channel, sources in sums.items():
                for source, weight in sources:
                    layer.projection.weight[channel + shift, source] += weight
            for channel, constant in (constants or {}).items():
                layer.gate_bias[:, channel + shift] = constant

    def _shift(self, moved: Mapping[int, tuple[int, torch.Tensor]]) -> None:
        """Append mask ⊙ (h ∗ u): each channel from a number of positions back, times a mask ``[positions]``."""
        layer = self._layer(taps=1 + max(distance for distance, _ in moved.values()))
        for channel, (distance, mask) in moved.items():
            layer.gate_bias[:, channel] = mask
            taps_of(layer)[distance, channel] = 1

    def _product(self, gates: Mapping[int, int], kept: Iterable[int]) -> None:
        """Append (u W + b1) ⊙ u: each channel times another, and the ``kept`` ones unchanged."""
        layer = self._layer(taps=1)
        taps_of(layer)[0] = 1
        for channel, gate in gates.items():
            layer.projection.weight[channel, gate] = 1
        layer.gate_bias[:, list(kept)] = 1

    def _layer(self, taps: int) -> BaseConv:
        """Append a layer with all weights 0."""
        self.layers.append(blank_layer(self.width, self.positions, taps, bias="definition"))
        return self.layers[-1]

    def _mask(self, chosen: Callable[[int], bool]) -> torch.Tensor:
        """Return 1 where a chosen record now is, else 0: ``[positions]``."""
        mask = torch.zeros(self.positions, dtype=torch.float64)
        mask[self.delay : self.delay + self.records] = torch.tensor([float(chosen(n)) for n in range(self.records)])
        return mask


def _same(channels: Iterable[int]) -> Sums:
    """Return sums that keep channels unchanged."""
    return {channel: [(channel, 1)] for channel in channels}


def _sums(to: Channels, *sources: Channels, weights: tuple[int, ...] = (1, 1)) -> Sums:
    """Return sums that make channels weighted sums of the ``sources``, one channel of each."""
    return {each: list(zip(channels, weights, strict=False)) for each, *channels in zip(to, *sources, strict=True)}
