"""The laws that every mixer keeps; its equations have a file each."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.mixer import Mixer, State
from argap.models.mixers.delta_net import DeltaRuleMixer
from argap.models.registry import build_mixer, options_of, resolve
from tests.builders.weights import assert_all_learn

WIDTH, LONGEST = 16, 200
SPECS: dict[str, dict[str, Any]] = {
    "attention, one head": {"name": "attention"},
    "attention, two heads": {"name": "attention", "heads": 2, "rope_theta": 100.0},
    "attention, no positions": {"name": "attention", "heads": 16, "positions": "none"},
    "sliding window": {"name": "attention", "heads": 2, "window": 64},
    "sliding window of 1": {"name": "attention", "window": 1},
    "blocked window": {"name": "attention", "heads": 2, "window": 32, "window_kind": "blocked"},
    "programmatic": {"name": "selected_attention", "heads": 2},
    "programmatic, by bigram": {"name": "selected_attention", "by": "bigram", "positions": "none"},
    "random": {"name": "selected_attention", "select": "random"},
    "learned": {"name": "selected_attention", "select": "learned", "k": 20},
    "full": {"name": "selected_attention", "select": "full"},
    "short explicit": {"name": "base_conv"},
    "40 taps": {"name": "base_conv", "kernel_size": 40},  # by FFT where T > 32
    "40 implicit taps": {"name": "base_conv", "kernel_size": 40, "filter": "implicit"},
    "long explicit": {"name": "base_conv", "kernel_size": None},
    "long implicit": {"name": "base_conv", "kernel_size": None, "filter": "implicit"},
    "based_conv": {"name": "based_conv", "kernel_size": 4, "expand": 3},
    "short_long_conv": {"name": "short_long_conv"},
    "short_long_conv, 4 and 20 taps": {"name": "short_long_conv", "short_kernel": 4, "long_kernel": 20},
    "definition": {"name": "base_conv", "kernel_size": None, "filter": "implicit", "bias": "definition"},
    "listings": {"name": "base_conv", "kernel_size": None, "filter": "listing", "skip": True},
    "short explicit, skip": {"name": "base_conv", "skip": True},
    "linear_attention": {"name": "linear_attention", "heads": 2},
    "identity": {"name": "linear_attention", "heads": 2, "feature_map": "identity"},
    "relu": {"name": "linear_attention", "feature_map": "relu", "feature_dim": 24, "normalization": "rms"},
    "performer": {"name": "linear_attention", "heads": 2, "feature_map": "performer", "random_features": 20},
    "cosformer": {"name": "linear_attention", "heads": 2, "feature_map": "cosformer"},
    "taylor": {"name": "linear_attention", "heads": 2, "feature_map": "taylor", "feature_dim": 4},
    "retnet": {"name": "retnet", "heads": 2},
    "retnet, four narrow heads": {"name": "retnet", "value_expansion": 1, "rope_theta": 100.0},
    "retnet, RMSNorm": {"name": "retnet", "heads": 2, "norm": "rms"},
    "retnet, no recall across chunks": {"name": "retnet", "heads": 2, "chunk_size": 32, "cross_chunk": False},
    "delta_net": {"name": "delta_net", "heads": 2},
    "delta_net, 1 + elu, l1": {"name": "delta_net", "activation": "elu", "key_norm": "l1", "conv_size": None},
    "delta_net, β to 2": {"name": "delta_net", "conv_size": None, "negative_eigenvalues": True},
    "gla": {"name": "gla"},
    "gla, short convolution": {"name": "gla", "heads": 2, "key_expansion": 1.0, "gate_rank": 3, "conv_size": 4},
    "mamba2": {"name": "mamba2", "states": 8, "heads": 2},
    "mamba2, two groups": {"name": "mamba2", "states": 3, "expand": 1, "heads": 4, "groups": 2, "short_kernel": 2},
    "gated_delta_net": {"name": "gated_delta_net", "heads": 2},
    "gated_delta_net, β to 2": {"name": "gated_delta_net", "conv_size": None, "negative_eigenvalues": True},
    "kda": {"name": "kda", "heads": 2},
    "kda, no convolution": {"name": "kda", "conv_size": None, "negative_eigenvalues": True},
    "lightning_attention": {"name": "lightning_attention"},
    "mlstm": {"name": "mlstm", "heads": 2},
    "hgrn2": {"name": "hgrn2", "heads": 2},
    "gsa": {"name": "gsa", "heads": 2, "slots": 4},
    "rg_lru": {"name": "rg_lru"},
    "rg_lru, two blocks of 12": {"name": "rg_lru", "expand": 1.5, "heads": 2, "short_kernel": 2},
    "gated_attention": {"name": "gated_attention", "heads": 2},
    "gated_attention, shared keys": {"name": "gated_attention", "heads": 4, "kv_heads": 2, "window": 7},
    "mla": {"name": "mla", "heads": 2},
    "mla, query latents, no positions": {"name": "mla", "query_latent": 6, "latent": 5, "positions": "none"},
    "nsa": {
        "name": "nsa",
        "heads": 4,
        "kv_heads": 2,
        "block": 4,
        "stride": 2,
        "selected_block": 8,
        "selected": 4,
        "window": 10,
    },
    "nsa, no positions": {
        "name": "nsa",
        "block": 8,
        "stride": 8,
        "selected_block": 8,
        "selected": 3,
        "window": 1,
        "positions": "none",
    },
    "long_conv": {"name": "long_conv"},
    "long_conv, 40 taps": {"name": "long_conv", "kernel_size": 40, "squash": 0.1},
    "hyena": {"name": "hyena"},
    "hyena, order 3, two heads": {"name": "hyena", "order": 3, "heads": 2, "bands": 3, "filter_depth": 2},
    "multihead_hyena": {"name": "multihead_hyena"},
    "multihead_hyena, four heads": {"name": "multihead_hyena", "heads": 4, "bands": 3, "filter_depth": 2},
    "h3": {"name": "h3", "states": 8},
    "h3, states for every position": {"name": "h3", "shift_states": None, "states": None},
    "h3, heads of 2": {"name": "h3", "head_size": 2, "shift_states": 4, "states": 2},
    "mamba": {"name": "mamba", "states": 4},
    "mamba, narrow": {"name": "mamba", "states": 2, "expand": 1, "short_kernel": 2, "step_rank": 3},
    "rwkv4": {"name": "rwkv4"},
    "rwkv4_channel": {"name": "rwkv4_channel"},
    "rwkv7": {"name": "rwkv7", "heads": 2, "rate_rank": 3},
    "liquid_s4": {"name": "liquid_s4", "states": 8},
    "liquid_s4, kb of degree 3": {"name": "liquid_s4", "kernel": "kb", "degree": 3, "states": 4},
}


TOKENS = torch.randint(3, (2, LONGEST), generator=torch.Generator().manual_seed(0))
"""Of the positions, for mixers that ask for them: few, so that they repeat."""

CHUNKED = {
    name: spec
    for name, spec in SPECS.items()
    if "chunk_size" in options_of(resolve(spec["name"])) and spec.get("cross_chunk", True)
}
"""Those whose chunk size changes how the output is computed, not its value."""


@pytest.fixture(params=SPECS.values(), ids=list(SPECS))
def spec(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.param


@pytest.fixture
def mixer(spec: dict[str, Any]) -> Mixer:
    return randomized(spec)


def randomized(spec: dict[str, Any]) -> Mixer:
    """A mixer with random parameters, biases and drawn features too, in float64; the same every time, and
    without the noise of training."""
    torch.manual_seed(0)
    mixer = build_mixer(spec, WIDTH, LONGEST).double()
    for tensor in (*mixer.parameters(), *mixer.buffers()):
        torch.nn.init.normal_(tensor, std=0.35)
    return mixer.eval()


def applied(mixer: Mixer, x: torch.Tensor) -> torch.Tensor:
    """The parallel form on ``x [2, T, D]``."""
    return mixer(x, TOKENS[:, : x.shape[1]]) if mixer.needs_ids else mixer(x)


def stepped_on(mixer: Mixer, x: torch.Tensor, state: State, t: int) -> tuple[torch.Tensor, State]:
    """The step to position t of ``x [2, T, D]``."""
    return mixer.step(x[:, t], state, *((TOKENS[:, t],) if mixer.needs_ids else ()))


def inputs(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(length))


def numbers(state: State) -> int:
    """Real numbers in the tensors of a state: a complex one is two."""
    if isinstance(state, torch.Tensor):
        return state.numel() * (2 if state.is_complex() else 1)
    return sum(numbers(part) for part in state) if isinstance(state, tuple) else 0


@torch.no_grad()
def test_a_change_at_t_changes_nothing_before_t(mixer: Mixer) -> None:
    x = inputs(2, 70)
    y = applied(mixer, x)
    for t in (1, 35, 69):
        changed = x.clone()
        changed[:, t] += 1
        difference = (applied(mixer, changed) - y).abs().amax(dim=(0, 2))
        assert difference[:t].max() < 1e-12
        if y[:, t].any():  # a position that is not selected puts out 0
            assert difference[t] > 1e-4
    assert y[:, 35].any()


@torch.no_grad()
def test_stepping_equals_the_parallel_form_on_every_length(mixer: Mixer) -> None:
    x = inputs(2, LONGEST)
    state = mixer.init_state(2, x.dtype, x.device)
    steps, forked = [], None
    for t in range(LONGEST):
        if t == 65:
            forked = state
        y, state = stepped_on(mixer, x, state, t)
        steps.append(y)
        assert numbers(state) == 2 * mixer.state_size(t + 1)
    stepped = torch.stack(steps, dim=1)
    for length in (1, 2, 63, 64, 65, LONGEST):
        torch.testing.assert_close(applied(mixer, x[:, :length]), stepped[:, :length], rtol=1e-11, atol=1e-9)
    # A state is a value: the one kept at 65 continues from there, and twice.
    for t in range(65, 70):
        y, continued = stepped_on(mixer, x, forked, t)
        stepped_on(mixer, -x, forked, t)
        torch.testing.assert_close(y, stepped[:, t], rtol=1e-11, atol=1e-11)
        forked = continued


def test_every_parameter_has_a_finite_gradient(mixer: Mixer) -> None:
    applied(mixer, inputs(2, 65)).square().sum().backward()
    assert_all_learn(mixer)


@torch.no_grad()
def test_bfloat16_stays_within_its_precision(mixer: Mixer) -> None:
    """8 bits of mantissa: a relative error of 2⁻⁹ each time that a value is stored, some ten in a row; what
    is summed over positions is kept in float32. A norm of a head's small outputs enlarges their error."""
    mixer = mixer.to(torch.bfloat16)
    x = inputs(2, 65).bfloat16()
    low = applied(mixer, x).double()
    high = applied(mixer.double(), x.double())
    assert (low - high).norm() / high.norm() < 0.03


def test_a_model_of_it_starts_quietly_survives_saving_and_steps(spec: dict[str, Any], tmp_path) -> None:
    """At the model's own start: the output is neither buried nor burying; saved and loaded it is the same."""
    torch.manual_seed(0)
    config = ArgapConfig(
        vocab_size=32, hidden_size=WIDTH, num_hidden_layers=2, mixers=[spec], max_position_embeddings=LONGEST
    )
    model = ArgapForCausalLM(config).eval()
    ids = torch.randint(32, (2, 20))
    with torch.no_grad():
        x = model.model.embed_tokens(ids)
        block = model.model.blocks[0]
        written = applied(block.mixer, block.mixer_norm(x)).std()
        if not spec.get("skip"):  # the published BaseConv adds its normed input as it is, and starts loud
            assert 1e-4 * x.std() < written < 2 * x.std()
        model.save_pretrained(tmp_path)
        loaded = ArgapForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
        logits = loaded(ids).logits
        assert torch.equal(logits, model(ids).logits)
        state = loaded.init_state(2)
        for t in range(20):
            stepped, state = loaded.step(ids[:, t], state)
            torch.testing.assert_close(stepped, logits[:, t], rtol=0, atol=2e-4)


@pytest.mark.parametrize("spec", CHUNKED.values(), ids=list(CHUNKED))
@torch.no_grad()
def test_chunks_of_any_size_agree(spec: dict[str, Any]) -> None:
    """At lengths below, at and past a chunk's end; what the steps give is in the test above."""
    x = inputs(2, LONGEST)
    whole = randomized(spec)(x)
    for chunk in (8, 32, 64, 128, None):
        chunked = randomized({**spec, "chunk_size": chunk})
        for length in (1, 2, 63, 64, 65, LONGEST):
            torch.testing.assert_close(chunked(x[:, :length]), whole[:, :length], rtol=0, atol=1e-9)


SEQUENCES, POSITIONS = 2, 150
BESIDE_PRODUCTS = {
    # In each of 3 chunks of 64 the triangular solve for K and V; 4 taps of 3·16 channels.
    "delta_net": SEQUENCES * 2 * 3 * 64**2 * (8 + 8) + 2 * 4 * SEQUENCES * POSITIONS * 48,
    "delta_net, 1 + elu, l1": SEQUENCES * 3 * 64**2 * (16 + 16),
    # The same with keys of 6 and values of 12; then one head with keys of 12 and values of 24.
    "gated_delta_net": SEQUENCES * 2 * 3 * 64**2 * (6 + 12) + 2 * 4 * SEQUENCES * POSITIONS * 48,
    "delta_net, β to 2": SEQUENCES * 3 * 64**2 * (16 + 16),
    "gated_delta_net, β to 2": SEQUENCES * 3 * 64**2 * (12 + 24),
    # In 10 chunks of 16 the same solve, and products of keys with keys and queries, each pair with K decays of its own.
    "kda": SEQUENCES * 2 * 10 * 16**2 * (8 + 8 + 4 * 8) + 2 * 4 * SEQUENCES * POSITIONS * 48,
    "kda, no convolution": SEQUENCES * 10 * 16**2 * (16 + 16 + 4 * 16),
    # In 10 chunks of 16 the scores, each pair with K decays of its own.
    "gla": 2 * SEQUENCES * 4 * 10 * 16**2 * 2,
    "gla, short convolution": 2 * SEQUENCES * 2 * 10 * 16**2 * 8 + 2 * 4 * SEQUENCES * POSITIONS * 48,
    # In 10 chunks of 16 the solve for K and V of 8.
    "rwkv7": SEQUENCES * 2 * 10 * 16**2 * (8 + 8),
    "hgrn2": 2 * SEQUENCES * 2 * 10 * 16**2 * 8,
    "gsa": 2 * SEQUENCES * 2 * 10 * 16**2 * 4,  # those of the values, with slots as keys
    # 4 taps and a bias of E + 2·G·N = 32 + 2·8 channels, 2 taps and a bias of 16 + 2·2·3.
    "mamba2": (2 * 4 + 1) * SEQUENCES * POSITIONS * 48,
    "mamba2, two groups": (2 * 2 + 1) * SEQUENCES * POSITIONS * 28,
}
"""What mixers count and torch does not, by hand."""


@pytest.mark.parametrize("name", CHUNKED)
@torch.no_grad()
def test_matrix_products_are_as_torch_counts_them(name: str) -> None:
    mixer = build_mixer(CHUNKED[name], WIDTH, LONGEST)
    with FlopCounterMode(display=False) as counter:
        mixer(torch.zeros(SEQUENCES, POSITIONS, WIDTH))
    assert mixer.flops(SEQUENCES, POSITIONS) == counter.get_total_flops() + BESIDE_PRODUCTS.get(name, 0)


@pytest.mark.parametrize("name", ["delta_net", "gated_delta_net", "kda"])
def test_negative_eigenvalues_double_the_rate(name: str) -> None:
    """β, which σ keeps below 1, is below 2: the eigenvalue 1 − β of a key's direction reaches −1."""
    plain, doubled = (build_mixer({"name": name, "negative_eigenvalues": on}, WIDTH, LONGEST) for on in (False, True))
    assert isinstance(plain, DeltaRuleMixer)
    assert isinstance(doubled, DeltaRuleMixer)
    doubled.load_state_dict(plain.state_dict())
    x = torch.randn(SEQUENCES, 5, WIDTH)
    torch.testing.assert_close(doubled._rate(x), 2 * plain._rate(x))
