"""The laws that every mixer of long filters or of a recurrent state keeps; its equations have a file each."""

from typing import Any

import pytest
import torch

from argap.errors import ArgapError
from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.mixer import Mixer, State
from argap.models.registry import build_mixer

WIDTH, LONGEST = 8, 200
SPECS: dict[str, dict[str, Any]] = {
    "long_conv": {"name": "long_conv"},
    "long_conv, 40 taps": {"name": "long_conv", "kernel_size": 40, "squash": 0.1},
    "hyena": {"name": "hyena"},
    "hyena, order 3, two heads": {"name": "hyena", "order": 3, "heads": 2, "bands": 3, "filter_depth": 2},
    "h3": {"name": "h3", "states": 8},
    "h3, heads of 2": {"name": "h3", "head_size": 2, "shift_states": 4, "states": 2},
    "mamba": {"name": "mamba", "states": 4},
    "mamba, narrow": {"name": "mamba", "states": 2, "expand": 1, "short_kernel": 2, "step_rank": 3},
    "rwkv4": {"name": "rwkv4"},
    "rwkv4_channel": {"name": "rwkv4_channel"},
    "liquid_s4": {"name": "liquid_s4", "states": 8},
    "liquid_s4, kb of degree 3": {"name": "liquid_s4", "kernel": "kb", "degree": 3, "states": 4},
}


@pytest.fixture(params=SPECS.values(), ids=list(SPECS))
def mixer(request: pytest.FixtureRequest) -> Mixer:
    """A mixer with random parameters in float64."""
    torch.manual_seed(0)
    mixer = build_mixer(request.param, WIDTH, LONGEST).double()
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return mixer


def inputs(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(length))


def numbers(state: State) -> int:
    """Real numbers in a state: a complex one is two."""
    if isinstance(state, torch.Tensor):
        return state.numel() * (2 if state.is_complex() else 1)
    return sum(numbers(part) for part in state) if isinstance(state, tuple) else 0


@torch.no_grad()
def test_a_change_at_t_changes_nothing_before_t(mixer: Mixer) -> None:
    x = inputs(2, 70)
    y = mixer(x)
    for t in (1, 35, 69):
        changed = x.clone()
        changed[:, t] += 1
        difference = (mixer(changed) - y).abs().amax(dim=(0, 2))
        assert difference[:t].max() < 1e-12
        assert difference[t] > 1e-4


@torch.no_grad()
def test_stepping_equals_the_parallel_form_on_every_length(mixer: Mixer) -> None:
    x = inputs(2, LONGEST)
    state = mixer.init_state(2, x.dtype, x.device)
    steps, forked = [], None
    for t in range(LONGEST):
        if t == 65:
            forked = state
        y, state = mixer.step(x[:, t], state)
        steps.append(y)
        assert numbers(state) == 2 * mixer.state_size(t + 1)
    stepped = torch.stack(steps, dim=1)
    for length in (1, 2, 63, 64, 65, LONGEST):
        torch.testing.assert_close(mixer(x[:, :length]), stepped[:, :length], rtol=1e-11, atol=1e-11)
    # A state is a value: the one kept at 65 still continues from there.
    for t in range(65, 70):
        y, forked = mixer.step(x[:, t], forked)
        torch.testing.assert_close(y, stepped[:, t], rtol=0, atol=0)


def test_every_parameter_has_a_finite_gradient(mixer: Mixer) -> None:
    mixer(inputs(2, 65)).square().sum().backward()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


@torch.no_grad()
def test_bfloat16_stays_within_its_precision(mixer: Mixer) -> None:
    """8 bits of mantissa: a relative error of 2⁻⁹ each time that a value is stored; some ten in a row here."""
    mixer = mixer.to(torch.bfloat16)
    x = inputs(2, 65).bfloat16()
    low = mixer(x).double()
    high = mixer.double()(x.double())
    assert (low - high).norm() / high.norm() < 0.02


@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
def test_a_fresh_layer_passes_a_signal_and_learns(spec: dict[str, Any]) -> None:
    """At the model's own start: the output is neither buried nor burying, and every gradient is finite."""
    torch.manual_seed(0)
    config = ArgapConfig(
        vocab_size=16, hidden_size=32, num_hidden_layers=2, mixers=[spec], max_position_embeddings=LONGEST
    )
    mixer = ArgapForCausalLM(config).model.blocks[1].mixer
    y = mixer(torch.randn(2, LONGEST, 32))
    assert 1e-4 < y.std() < 0.5
    y.square().sum().backward()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all(), name


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"name": "long_conv"}, "long_conv: kernel_size null needs the longest sequence"),
        ({"name": "long_conv", "kernel_size": 0}, "long_conv: kernel_size 0; expected at least 1"),
        ({"name": "long_conv", "kernel_size": 3, "squash": -1.0}, "long_conv: squash -1.0; expected 0 or more"),
        ({"name": "hyena"}, "hyena: its filters need the longest sequence"),
        ({"name": "hyena", "order": 1}, "hyena: order 1; expected at least 2"),
        ({"name": "hyena", "heads": 3}, "hyena: width 8 does not split into 3 heads"),
        ({"name": "hyena", "filter_depth": 1}, "hyena: filter_depth 1; expected at least 2"),
        ({"name": "h3", "head_size": 3}, "h3: width 8 does not split into heads of 3"),
        ({"name": "h3", "shift_states": 0}, "h3: shift_states 0; expected at least 1"),
        ({"name": "h3", "states": 3}, "h3: states 3; expected an even number"),
        ({"name": "mamba", "states": 0}, "mamba: states 0; expected at least 1"),
        ({"name": "mamba", "step_rank": 0}, "mamba: step_rank 0; expected at least 1"),
        ({"name": "rwkv4_channel", "expand": 0}, "rwkv4_channel: expand 0; expected at least 1"),
        ({"name": "liquid_s4", "kernel": "s4"}, "liquid_s4: kernel 's4'; expected pb or kb"),
        ({"name": "liquid_s4", "degree": 1}, "liquid_s4: degree 1; expected at least 2"),
        ({"name": "liquid_s4", "states": 5}, "liquid_s4: states 5; expected an even number"),
        ({"name": "hyena", "bands": 0}, "hyena: bands 0; expected at least 1"),
    ],
)
def test_an_option_that_cannot_be_is_refused(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgapError, match=said):
        build_mixer(spec, WIDTH, None)
