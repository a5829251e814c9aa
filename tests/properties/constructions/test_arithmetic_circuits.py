"""Stacked BaseConv layers compute arithmetic circuits exactly."""

import random

import pytest
import torch

from argap.errors import ArgapError
from tests.properties.constructions.arithmetic_circuits import Circuit, Gate, base_conv_of_circuit, padded


def drawn(positions: int, width: int, gates: int, seed: int) -> Circuit:
    """Gates whose operands are any earlier wires, the same one twice at times."""
    draw = random.Random(seed)
    inputs = positions * width
    made = [Gate(draw.choice("+*"), draw.randrange(inputs + g), draw.randrange(inputs + g)) for g in range(gates)]  # type: ignore[arg-type]
    return Circuit(positions, width, tuple(made))


def test_a_circuit_by_hand() -> None:
    # Inputs a, b at position 0 and c, d at 1: a + c, then (a + c)·d, then its square, and a·b.
    circuit = Circuit(2, 2, (Gate("+", 0, 2), Gate("*", 4, 3), Gate("*", 5, 5), Gate("*", 0, 1)))
    x = torch.tensor([[[2.0, 5.0], [1.0, 4.0]]], dtype=torch.float64)
    assert circuit.evaluate(x).tolist() == [[3.0, 12.0, 144.0, 10.0]]
    assert circuit.depths() == [0, 0, 0, 0, 1, 2, 3, 1]
    layers = base_conv_of_circuit(circuit)
    assert layers(padded(x, circuit))[0, -1, :4].tolist() == [3.0, 12.0, 144.0, 10.0]


@pytest.mark.parametrize(("positions", "width", "gates"), [(1, 1, 5), (3, 2, 12), (5, 1, 20), (2, 4, 1)])
def test_layers_compute_what_the_gates_do(positions: int, width: int, gates: int) -> None:
    for seed in range(3):
        circuit = drawn(positions, width, gates, seed)
        x = torch.randint(-1, 2, (4, positions, width), generator=torch.Generator().manual_seed(seed)).double()
        out = base_conv_of_circuit(circuit)(padded(x, circuit))[:, -1, :gates]
        torch.testing.assert_close(out, circuit.evaluate(x), rtol=1e-12, atol=1e-9)


def test_layers_are_twice_the_depth_and_channels_twice_the_wires() -> None:
    circuit = drawn(3, 2, 12, 0)
    layers = base_conv_of_circuit(circuit)
    assert len(layers) == 2 * max(circuit.depths()) + 3
    assert padded(torch.zeros(1, 3, 2), circuit).shape == (1, 3, 2 * (6 + 12))
    assert {float(value) for layer in layers for p in layer.parameters() for value in p.unique()} <= {0.0, 1.0, 2.0}


@pytest.mark.parametrize("gate", [Gate("+", 0, 4), Gate("*", -1, 0), Gate("-", 0, 0)])  # type: ignore[arg-type]
def test_a_gate_reads_earlier_wires_alone(gate: Gate) -> None:
    with pytest.raises(ArgapError, match=r"gate 0: .* of two wires from 0 to 3"):
        Circuit(2, 2, (gate,))
