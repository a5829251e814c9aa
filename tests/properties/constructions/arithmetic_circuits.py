"""Arithmetic circuits computed by stacked BaseConv layers, with weights set by hand (arXiv 2312.04927, theorem 4.2).

The theorem says that BaseConv layers compute any arithmetic circuit in about as many layers as the circuit is deep. One
layer y = (u W + b1) ⊙ (h ∗ u + b2) can do three things, and a circuit needs no others: a linear map of the channels (h
= 0, b2 = 1), a shift of each channel along the sequence (W = 0, b1 = 1, h a spike) and the product of two channels (h a
spike at 0, W the other factor).

Legend: B batch, N positions of the input, D values at each, G gates.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from argap.errors import ArgapError
from argap.models.mixers.base_conv import BaseConv, Bias
from argap.models.mixers.filters import ExplicitFilter


@dataclass(frozen=True)
class Gate:
    """One gate: the sum or the product of two wires.

    Wires 0 to N·D − 1 are the inputs, position by position, and wire N·D + g is the output of gate g.
    """

    op: Literal["+", "*"]
    left: int
    right: int


@dataclass(frozen=True)
class Circuit:
    """Gates over an input of ``positions`` × ``width`` values; each reads inputs and earlier gates.

    Raises `ArgapError` for a gate that reads itself or a later one, and for an operation that is neither.
    """

    positions: int
    width: int
    gates: tuple[Gate, ...]

    def __post_init__(self) -> None:
        for number, gate in enumerate(self.gates):
            wires = self.inputs + number
            if gate.op not in ("+", "*") or not (0 <= gate.left < wires and 0 <= gate.right < wires):
                raise ArgapError(f"gate {number}: {gate}; expected + or * of two wires from 0 to {wires - 1}")

    @property
    def inputs(self) -> int:
        """The number of inputs, N·D."""
        return self.positions * self.width

    def depths(self) -> list[int]:
        """Return the depth of every wire: 0 for inputs, for a gate one more than its deeper operand."""
        depths = [0] * self.inputs
        for gate in self.gates:
            depths.append(1 + max(depths[gate.left], depths[gate.right]))
        return depths

    def evaluate(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of every gate, ``[B, G]``, for ``x [B, N, D]``: the definition, gate by gate."""
        wires = list(x.flatten(1).unbind(dim=1))
        for gate in self.gates:
            left, right = wires[gate.left], wires[gate.right]
            wires.append(left + right if gate.op == "+" else left * right)
        return torch.stack(wires[self.inputs :], dim=1)


@torch.no_grad()
def base_conv_of_circuit(circuit: Circuit) -> nn.Sequential:
    """Build BaseConv layers that compute a circuit.

    They map ``x [B, N, W]``, with the input in the first D of W channels and zeros in the others, to ``[B, N, W]``,
    whose last position holds the gates' outputs in its first G channels.

    W = 2·(N·D + G) channels: one per wire and a second for the left operand of a product. Layers: one that copies each
    input's channel, one that shifts the copies to the last position, two for each level of the circuit (a linear map
    that adds the sums and fetches the factors, and the products), and one that moves the outputs to the front. All
    weights are 0, 1 or 2, in float64.
    """
    inputs, count = circuit.inputs, circuit.inputs + len(circuit.gates)
    depths = circuit.depths()
    layers = [_linear(2 * count, circuit.positions), _shift(2 * count, circuit.positions)]
    for wire in range(inputs):
        position, channel = divmod(wire, circuit.width)
        layers[0].projection.weight[wire, channel] = 1
        taps_of(layers[1])[circuit.positions - 1 - position, wire] = 1
    for depth in range(1, max(depths) + 1):
        fetch, multiply = _linear(2 * count, circuit.positions), _product(2 * count, circuit.positions)
        for wire in range(count):
            if depths[wire] < depth:
                fetch.projection.weight[wire, wire] = 1
                multiply.gate_bias[wire] = 1
            elif depths[wire] == depth:
                gate = circuit.gates[wire - inputs]
                fetch.projection.weight[wire, gate.right] += 1
                if gate.op == "+":
                    fetch.projection.weight[wire, gate.left] += 1
                    multiply.gate_bias[wire] = 1
                else:
                    fetch.projection.weight[count + wire, gate.left] = 1
                    multiply.projection.weight[wire, count + wire] = 1
        layers += [fetch, multiply]
    first = _linear(2 * count, circuit.positions)
    for number in range(len(circuit.gates)):
        first.projection.weight[number, inputs + number] = 1
    return nn.Sequential(*layers, first)


def padded(x: torch.Tensor, circuit: Circuit) -> torch.Tensor:
    """Append channels of zeros to ``x [B, N, D]``, up to the width of `base_conv_of_circuit`."""
    return nn.functional.pad(x, (0, 2 * (circuit.inputs + len(circuit.gates)) - circuit.width))


def blank_layer(width: int, positions: int, taps: int, bias: Bias = "vector") -> BaseConv:
    """Build a BaseConv layer in float64 whose weights are all 0."""
    layer = BaseConv(width, positions, kernel_size=taps, bias=bias).double()
    for parameter in layer.requires_grad_(False).parameters():
        parameter.zero_()
    return layer


def taps_of(layer: BaseConv) -> torch.Tensor:
    """Return the taps of an explicit filter, ``[N, D]``."""
    assert isinstance(layer.filter, ExplicitFilter)
    return layer.filter.weight


def _linear(width: int, positions: int) -> BaseConv:
    """Build the layer u W, with W still 0."""
    layer = blank_layer(width, positions, positions)
    layer.conv_bias.fill_(1)
    return layer


def _shift(width: int, positions: int) -> BaseConv:
    """Build the layer h ∗ u, with h still 0."""
    layer = blank_layer(width, positions, positions)
    layer.gate_bias.fill_(1)
    return layer


def _product(width: int, positions: int) -> BaseConv:
    """Build the layer (u W + b1) ⊙ u, with W and b1 still 0."""
    layer = blank_layer(width, positions, positions)
    taps_of(layer)[0] = 1
    return layer
