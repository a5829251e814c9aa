"""Models whose weights are set by hand answer every query of MQAR, and compute arithmetic circuits exactly."""

import random
from collections.abc import Callable

import pytest
import torch

from argap.errors import ArgapError
from argap.models import ArgapForCausalLM
from argap.synthetics.tasks.mqar import MqarConfig, build
from tests.properties.constructions.arithmetic_circuits import Circuit, Gate, base_conv_of_circuit, padded
from tests.properties.constructions.by_hand import (
    attention_by_hand,
    base_conv_by_hand,
    linear_attention_by_hand,
    token_codes,
)

BUILDERS: list[Callable[[int, int], ArgapForCausalLM]] = [
    attention_by_hand,
    linear_attention_by_hand,
    base_conv_by_hand,
]


def leads(model: ArgapForCausalLM, config: MqarConfig, seed: int) -> torch.Tensor:
    """By how much each answer's logit leads all others, as a share of its size; below 0 where it does not."""
    examples = build(config, seed)
    inputs, labels = (torch.from_numpy(x).long() for x in (examples.inputs, examples.labels))
    with torch.no_grad():
        logits = model(inputs).logits[:, :-1]
    asked = labels[:, 1:] >= 0
    logits, answers = logits[asked], labels[:, 1:][asked]
    assert len(answers) == config.examples * config.pairs
    own = logits.gather(1, answers[:, None])[:, 0]
    others = logits.scatter(1, answers[:, None], -torch.inf).amax(dim=1)
    return (own - others) / own.abs()


@pytest.mark.parametrize("by_hand", BUILDERS)
@pytest.mark.parametrize(("length", "vocab"), [(16, 16), (16, 60), (33, 64), (64, 64), (128, 48)])
def test_every_query_is_answered(by_hand: Callable, length: int, vocab: int) -> None:
    model = by_hand(vocab, length)
    for seed, pairs in enumerate((1, length // 16, length // 8 + 1)):
        found = leads(model, MqarConfig(examples=4, length=length, pairs=pairs, vocab_size=vocab), seed)
        assert found.min() > 1 / 4  # codes of c ≤ 6 bits: the next best has c − 2 of c


@pytest.mark.parametrize("by_hand", BUILDERS)
def test_every_query_of_256_tokens_is_answered(by_hand: Callable) -> None:
    model = by_hand(64, 256)
    assert leads(model, MqarConfig(examples=1, length=256, pairs=31, vocab_size=64), seed=1).min() > 1 / 4


def test_attention_with_the_papers_vocabulary() -> None:
    model = attention_by_hand(8192, 256)
    assert leads(model, MqarConfig(examples=8, length=256, pairs=64), seed=0).min() > 1 / 8


@pytest.mark.parametrize("by_hand", BUILDERS)
def test_a_fill_token_that_repeats_does_not_disturb(by_hand: Callable) -> None:
    config = MqarConfig(examples=4, length=64, pairs=8, vocab_size=48, fill=5)
    assert leads(by_hand(48, 64), config, seed=1).min() > 1 / 4


def test_attentions_width_does_not_grow_and_base_convs_does() -> None:
    lengths = (1, 16, 32, 64)
    assert {attention_by_hand(64, n).config.hidden_size for n in lengths} == {20}  # 3·6 + 1, to even
    assert {linear_attention_by_hand(64, n).config.hidden_size for n in lengths} == {192}  # 3·64
    assert [base_conv_by_hand(64, n).config.hidden_size for n in lengths] == [7, 202, 410, 826]  # 13·(T − 1) + 7


@pytest.mark.parametrize("by_hand", BUILDERS)
@pytest.mark.parametrize("layer", [0, 1])
def test_both_layers_are_needed(by_hand: Callable, layer: int) -> None:
    model = by_hand(64, 64)
    with torch.no_grad():
        for parameter in model.model.blocks[layer].mixer.parameters():
            parameter.zero_()
    config = MqarConfig(examples=8, length=64, pairs=8, vocab_size=64)
    assert (leads(model, config, seed=0) > 0).float().mean() < 0.2


@torch.no_grad()
def test_attentions_first_layer_copies_the_token_before() -> None:
    model = attention_by_hand(64, 200).model
    ids = torch.randint(64, (1, 200), generator=torch.Generator().manual_seed(0))
    x = model.blocks[0](model.embed_tokens(ids), ids)
    codes = token_codes(64)[ids[0]]
    torch.testing.assert_close(x[0, 1:, 7:13], codes[:-1], rtol=0, atol=1e-4)
    torch.testing.assert_close(x[0, 0, 7:13], codes[0], rtol=0, atol=1e-4)


@torch.no_grad()
def test_without_a_softmax_the_answer_counts_what_followed() -> None:
    model = linear_attention_by_hand(4, 8)
    #                    a  b  a  c  a  b  a: after a came b, c and b; after b came a, twice; nothing after c at 3
    ids = torch.tensor([[0, 1, 0, 2, 0, 1, 0]])
    logits = model(ids).logits[0]
    torch.testing.assert_close(logits[6] / logits[6, 2], torch.tensor([0.0, 2.0, 1.0, 0.0]), rtol=1e-5, atol=1e-5)
    assert logits[5].argmax() == 0
    assert logits[3].abs().max() < 1e-3  # what rounding leaves of the norm's scale


@torch.no_grad()
def test_base_convs_first_layer_finds_the_distances_of_a_token() -> None:
    model = base_conv_by_hand(8, 6).model
    ids = torch.tensor([[3, 5, 3, 1, 5, 3]])
    x = model.blocks[0](model.embed_tokens(ids), ids)
    matched = x[0, :, -5:] > 0.1  # shifts 1 to 5
    expected = [[], [], [2], [], [3], [3, 5]]  # 3 at 5 was at 2 and 0; 5 at 4 was at 1
    assert [[s + 1 for s in range(5) if row[s]] for row in matched] == expected
    assert x[0, :, -5:][~matched].abs().max() < 1e-6


@pytest.mark.parametrize("by_hand", BUILDERS)
@torch.no_grad()
def test_the_recurrent_form_recalls_too(by_hand: Callable) -> None:
    model = by_hand(32, 24)
    examples = build(MqarConfig(examples=3, length=24, pairs=3, vocab_size=32), seed=2)
    state = model.init_state(3)
    for t in range(23):
        logits, state = model.step(torch.from_numpy(examples.inputs[:, t]).long(), state)
        asked = examples.labels[:, t + 1] >= 0
        assert (logits.argmax(dim=1).numpy()[asked] == examples.labels[:, t + 1][asked]).all()


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
