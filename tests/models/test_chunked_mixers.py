"""The chunked forms of linear attention's kin agree with stepping, and their FLOPs are as torch counts them."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from argap.models.delta_net import DeltaNet
from argap.models.gla import GLA
from argap.models.mixer import Mixer
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


def randomized(spec: dict[str, Any]) -> Mixer:
    """A mixer with random parameters in float64, the same for the same parameters."""
    torch.manual_seed(0)
    mixer = build_mixer(spec, WIDTH, LONGEST).double()
    for tensor in (*mixer.parameters(), *mixer.buffers()):
        torch.nn.init.normal_(tensor, std=0.3)
    return mixer


def inputs(batch: int, length: int) -> torch.Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(length))


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
    stepped = torch.stack(steps, dim=1)
    for chunk in (8, 32, 64, 128, None):
        chunked = randomized({**spec, "chunk_size": chunk})
        for length in (1, 2, 63, 64, 65, LONGEST):
            torch.testing.assert_close(chunked(x[:, :length]), stepped[:, :length], rtol=0, atol=1e-9)


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
