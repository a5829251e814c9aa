"""The laws that every mixer of linear attention's kin keeps; its equations have a file each."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from argap.errors import ArgapError
from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.delta_net import DeltaNet
from argap.models.gla import GLA
from argap.models.mixer import Mixer, State
from argap.models.registry import build_mixer

WIDTH, LONGEST = 16, 200
SPECS: dict[str, dict[str, Any]] = {
    "linear_attention": {"name": "linear_attention", "heads": 2},
    "identity": {"name": "linear_attention", "heads": 2, "feature_map": "identity"},
    "relu": {"name": "linear_attention", "feature_map": "relu", "feature_dim": 24, "normalization": "rms"},
    "performer": {"name": "linear_attention", "heads": 2, "feature_map": "performer", "random_features": 20},
    "cosformer": {"name": "linear_attention", "heads": 2, "feature_map": "cosformer"},
    "taylor": {"name": "linear_attention", "heads": 2, "feature_map": "taylor", "feature_dim": 4},
    "retnet": {"name": "retnet", "heads": 2},
    "retnet, four narrow heads": {"name": "retnet", "value_expansion": 1, "rope_theta": 100.0},
    "delta_net": {"name": "delta_net", "heads": 2},
    "delta_net, 1 + elu, l1": {"name": "delta_net", "activation": "elu", "key_norm": "l1", "conv_size": None},
    "gla": {"name": "gla"},
    "gla, short convolution": {"name": "gla", "heads": 2, "key_expansion": 1.0, "gate_rank": 3, "conv_size": 4},
}


@pytest.fixture(params=SPECS.values(), ids=list(SPECS))
def spec(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


@pytest.fixture
def mixer(spec: dict[str, Any]) -> Mixer:
    return randomized(spec)


def randomized(spec: dict[str, Any]) -> Mixer:
    """A mixer with random parameters in float64, the same for the same parameters."""
    torch.manual_seed(0)
    mixer = build_mixer(spec, WIDTH, LONGEST).double()
    for tensor in (*mixer.parameters(), *mixer.buffers()):
        torch.nn.init.normal_(tensor, std=0.3)
    return mixer


def inputs(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(length))


def numbers(state: State) -> int:
    """Elements of the tensors in a state."""
    if isinstance(state, torch.Tensor):
        return state[0].numel()
    return sum(numbers(part) for part in state) if isinstance(state, tuple) else 0


@torch.no_grad()
def test_a_change_at_t_changes_nothing_before_t(mixer: Mixer) -> None:
    x = inputs(2, 70)
    y = mixer(x)
    for t in (1, 35, 69):
        changed = x.clone()
        changed[:, t] += 1
        difference = (mixer(changed) - y).abs().amax(dim=(0, 2))
        assert difference[:t].max() < 1e-13
        assert difference[t] > 1e-4


@torch.no_grad()
def test_chunks_steps_and_the_parallel_form_agree(spec: dict[str, Any]) -> None:
    """At lengths below, at and past a chunk's end; one sequence stepped through gives the steps of all."""
    mixer = randomized(spec)
    x = inputs(2, LONGEST)
    state = mixer.init_state(2, x.dtype, x.device)
    steps = []
    for t in range(LONGEST):
        y, state = mixer.step(x[:, t], state)
        steps.append(y)
        if t + 1 in (1, 2, 65, LONGEST):
            assert numbers(state) == mixer.state_size(t + 1)
    stepped = torch.stack(steps, dim=1)
    for chunk in (8, 32, 64, 128, None):
        chunked = randomized({**spec, "chunk_size": chunk})
        for length in (1, 2, 63, 64, 65, LONGEST):
            torch.testing.assert_close(chunked(x[:, :length]), stepped[:, :length], rtol=0, atol=1e-9)


def test_every_parameter_has_a_finite_gradient(mixer: Mixer) -> None:
    mixer(inputs(2, 65)).square().sum().backward()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


@torch.no_grad()
def test_bfloat16_stays_within_its_precision(mixer: Mixer) -> None:
    """8 bits of mantissa: a relative error of 2⁻⁹ each time that a value is stored, some ten in a row; what
    is summed over positions is kept in float32. A norm of a head's small outputs enlarges their error."""
    mixer = mixer.to(torch.bfloat16)
    x = inputs(2, 65).bfloat16()
    low = mixer(x).double()
    high = mixer.double()(x.double())
    assert (low - high).norm() / high.norm() < 0.03


@torch.no_grad()
def test_matrix_products_are_as_torch_counts_them(spec: dict[str, Any]) -> None:
    mixer = build_mixer(spec, WIDTH, LONGEST)
    with FlopCounterMode(display=False) as counter:
        mixer(torch.zeros(2, 150, WIDTH))
    assert mixer.flops(2, 150) == counter.get_total_flops() + beside_matrix_products(mixer, 2, 150)


def beside_matrix_products(mixer: Mixer, batch: int, length: int) -> int:
    """What a mixer counts and torch does not: its formula by hand."""
    if isinstance(mixer, DeltaNet):
        # Heads of 8: in each of 3 chunks of 64 the triangular solve for K and V of 8; 4 taps of 3·16 channels.
        solve = batch * 2 * 3 * 64**2 * (8 + 8)
        return solve + (0 if mixer.conv is None else 2 * 4 * batch * length * 48)
    if isinstance(mixer, GLA):
        # 10 chunks of 16 in 4 heads of K = 2 or 2 of K = 8: the scores, each pair with decays of its own.
        if mixer.conv is None:
            return 2 * batch * 4 * 10 * 16**2 * 2
        return 2 * batch * 2 * 10 * 16**2 * 8 + 2 * 4 * batch * length * 48
    return 0


def test_a_model_of_it_starts_quietly_survives_saving_and_steps(spec: dict[str, Any], tmp_path) -> None:
    torch.manual_seed(0)
    config = ArgapConfig(
        vocab_size=32, hidden_size=WIDTH, num_hidden_layers=2, mixers=[spec], max_position_embeddings=LONGEST
    )
    model = ArgapForCausalLM(config).eval()
    ids = torch.randint(32, (2, 20))
    with torch.no_grad():
        x = model.model.embed_tokens(ids)
        block = model.model.blocks[0]
        written = block.mixer(block.mixer_norm(x)).std()
        assert 1e-4 * x.std() < written < 2 * x.std()
        model.save_pretrained(tmp_path)
        loaded = ArgapForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
        logits = loaded(ids).logits
        assert torch.equal(logits, model(ids).logits)
        state = loaded.init_state(2)
        for t in range(20):
            stepped, state = loaded.step(ids[:, t], state)
            torch.testing.assert_close(stepped, logits[:, t], rtol=0, atol=2e-4)


@pytest.mark.parametrize(
    ("spec", "longest", "said"),
    [
        ({"name": "linear_attention", "heads": 3}, None, "linear_attention: width 16 does not split into 3 heads"),
        ({"name": "linear_attention", "feature_map": "exp"}, None, "expected one of identity, elu, relu, performer"),
        ({"name": "linear_attention", "feature_dim": 0}, None, "feature_dim 0; expected at least 1"),
        ({"name": "linear_attention", "chunk_size": 0}, None, "chunk_size 0; expected at least 1"),
        ({"name": "linear_attention", "normalization": "max"}, None, "expected sum or rms"),
        (
            {"name": "linear_attention", "feature_map": "identity", "normalization": "sum"},
            None,
            "sum may be 0; use rms",
        ),
        ({"name": "linear_attention", "feature_map": "cosformer"}, None, "set the model's max_position_embeddings"),
        ({"name": "retnet", "heads": 3}, None, "retnet: width 16 does not split into 3 heads of even width"),
        ({"name": "retnet", "value_expansion": 0}, None, "value_expansion 0; expected at least 1"),
        ({"name": "retnet", "chunk_size": 0}, None, "retnet: chunk_size 0; expected at least 1"),
        ({"name": "delta_net", "heads": 3}, None, "delta_net: width 16 does not split into 3 heads"),
        ({"name": "delta_net", "activation": "gelu"}, None, "'gelu'; expected silu or elu or relu or identity"),
        ({"name": "delta_net", "key_norm": "max"}, None, "key_norm 'max'; expected l2 or l1"),
        ({"name": "based_conv", "kernel_size": 0}, None, "based_conv: kernel_size 0; expected at least 1"),
        ({"name": "gla", "heads": 3}, None, "gla: width 16 and keys of 8 do not split into 3 heads"),
        ({"name": "gla", "heads": 0}, None, "gla: heads 0; expected at least 1"),
        ({"name": "gla", "key_expansion": 0.01}, None, "keys of 0 do not split into 4 heads"),
        ({"name": "gla", "gate_temperature": 0}, None, "gate_temperature 0; expected more than 0"),
        ({"name": "delta_net", "conv_size": 0}, None, "delta_net: conv_size 0; expected at least 1"),
    ],
)
def test_an_option_that_cannot_be_is_refused(spec: dict[str, Any], longest: int | None, said: str) -> None:
    with pytest.raises(ArgapError, match=said):
        build_mixer(spec, WIDTH, longest)
