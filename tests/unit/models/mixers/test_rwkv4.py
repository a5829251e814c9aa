"""RWKV-4 against its sums written out and against transformers' layers; exponents that would overflow."""

import math

import pytest
import torch
from transformers.models.rwkv.configuration_rwkv import RwkvConfig
from transformers.models.rwkv.modeling_rwkv import RwkvFeedForward, RwkvSelfAttention

from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.mixers.rwkv4 import RWKV4, RWKV4Channel
from tests.builders.weights import redraw


@torch.no_grad()
def test_time_mixing_is_the_papers_sum() -> None:
    torch.manual_seed(0)
    width, length = 4, 20
    mixer = RWKV4(width).double()
    redraw(mixer, 0.7)
    x = torch.randn(length, width, dtype=torch.float64)
    mu = {name: mixer.get_parameter(f"shift.{name}.weight") for name in ("receptance", "key", "value")}

    def mapped(name: str, t: int) -> torch.Tensor:
        before = x[t - 1] if t else torch.zeros(width, dtype=torch.float64)
        return mixer.get_parameter(f"{name}.weight") @ (mu[name] * x[t] + (1 - mu[name]) * before)

    k, v = ([mapped(name, t) for t in range(length)] for name in ("key", "value"))
    w, u = mixer.log_decay.exp(), mixer.bonus
    expected = []
    for t in range(length):
        numerator, denominator = torch.exp(u + k[t]) * v[t], torch.exp(u + k[t])
        for i in range(t):
            weight = torch.exp(-(t - 1 - i) * w + k[i])
            numerator, denominator = numerator + weight * v[i], denominator + weight
        expected.append(mixer.out.weight @ (torch.sigmoid(mapped("receptance", t)) * numerator / denominator))
    torch.testing.assert_close(mixer(x[None])[0], torch.stack(expected), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@torch.no_grad()
def test_exponents_beyond_the_type_do_no_harm(kind: torch.dtype) -> None:
    torch.manual_seed(1)
    mixer = RWKV4(4)
    redraw(mixer, 0.7)
    mixer.key.weight.mul_(3000)  # keys of thousands: e^k is beyond float64
    mixer.log_decay.copy_(torch.tensor([-30.0, -5.0, 0.0, 4.0]))
    mixer = mixer.to(kind)
    x = torch.randn(2, 200, 4).to(kind)
    y = mixer(x)
    assert torch.isfinite(y).all()
    state = mixer.init_state(2, kind, x.device)
    for t in range(200):
        stepped, state = mixer.step(x[:, t], state)
        if kind == torch.float64:
            torch.testing.assert_close(stepped, y[:, t], rtol=0, atol=1e-9)
        assert torch.isfinite(stepped).all()


@torch.no_grad()
def test_both_are_transformers_layers() -> None:
    torch.manual_seed(2)
    width = 16
    config = RwkvConfig(hidden_size=width, num_hidden_layers=1, vocab_size=8)
    x = torch.randn(2, 40, width)
    time, channel = RWKV4(width), RWKV4Channel(width)
    redraw(time, 0.4)
    redraw(channel, 0.4)
    attention, feed_forward = RwkvSelfAttention(config), RwkvFeedForward(config)
    attention.time_decay.copy_(time.log_decay)
    attention.time_first.copy_(time.bonus)
    attention.output.load_state_dict(time.out.state_dict())
    for ours, theirs, names in (
        (time, attention, ("receptance", "key", "value")),
        (channel, feed_forward, ("receptance", "key")),
    ):
        for name in names:
            theirs.get_parameter(f"time_mix_{name}")[0, 0] = ours.get_parameter(f"shift.{name}.weight")
    for ours, theirs in ((time, attention), (channel, feed_forward)):
        for name in ("receptance", "key", "value"):
            theirs.get_parameter(f"{name}.weight").copy_(ours.get_parameter(f"{name}.weight"))
    torch.testing.assert_close(time(x), attention(x)[0], rtol=0, atol=1e-5)
    torch.testing.assert_close(channel(x), feed_forward(x)[0], rtol=0, atol=1e-5)


@torch.no_grad()
def test_decays_start_from_long_to_short() -> None:
    mixer = RWKV4(9)
    mixer.initialize(0.02, 0.01)
    # Channel 4 of 0 … 8 is half-way: −5 + 8·½^1.35.
    assert float(mixer.log_decay[4]) == pytest.approx(-5 + 8 * 0.5**1.35)
    assert (float(mixer.log_decay[0]), float(mixer.log_decay[8])) == (-5, 3)
    third = [math.log(0.3), math.log(0.3) + 0.5, math.log(0.3) - 0.5]
    assert mixer.bonus.tolist() == pytest.approx(third * 3)


@torch.no_grad()
def test_every_layer_starts_at_its_own_depth() -> None:
    """arXiv 2305.13048, parameter initialisation: exponents 0.7 + 1.3·l/(L − 1) and 1 − l/L."""
    config = ArgapConfig(
        vocab_size=8, hidden_size=9, num_hidden_layers=6, mixers=["rwkv4", "rwkv4_channel"], mlp="none"
    )
    blocks = ArgapForCausalLM(config).model.blocks
    for layer in range(3):
        time, channel = blocks[2 * layer].mixer, blocks[2 * layer + 1].mixer
        exponent = 0.7 + 1.3 * layer / 2
        assert float(time.get_parameter("log_decay")[4]) == pytest.approx(-5 + 8 * 0.5**exponent)
        key = (3 / 9) ** (1 - layer / 3)
        assert float(time.get_parameter("shift.key.weight")[3]) == pytest.approx(key)
        assert float(time.get_parameter("shift.value.weight")[3]) == pytest.approx(key + 0.3 * layer / 2)
        assert float(time.get_parameter("shift.receptance.weight")[3]) == pytest.approx(math.sqrt(key))
        for name in ("receptance", "key"):
            assert float(channel.get_parameter(f"shift.{name}.weight")[3]) == pytest.approx(key)


def test_the_scale_of_the_sums_has_no_part_in_the_gradients() -> None:
    """The largest exponents are held constant in the backward pass; finite differences vary them."""
    torch.manual_seed(3)
    mixer = RWKV4(3).double()
    redraw(mixer, 0.7)
    names = [name for name, _ in mixer.named_parameters()]

    def outputs(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(mixer, dict(zip(names, parameters, strict=True)), (x,))

    x = torch.randn(1, 6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(outputs, (x, *mixer.parameters()))
