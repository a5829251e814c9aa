"""A prompt in parallel leaves the state that stepping through it leaves."""

from typing import Any

import pytest
import torch

from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.mixer import Mixer
from argap.models.registry import MIXERS, build_mixer, resolve

WIDTH, LONGEST = 16, 96
SPECS: list[dict[str, Any]] = [
    {"name": "attention"},
    {"name": "attention", "window": 8},
    {"name": "attention", "window": 8, "window_kind": "blocked"},
    {"name": "selected_attention", "select": "learned", "k": 5},
    {"name": "base_conv"},
    {"name": "base_conv", "kernel_size": 1},
    {"name": "base_conv", "kernel_size": None, "filter": "implicit", "bias": "definition"},
    {"name": "linear_attention", "heads": 2},
    {"name": "linear_attention", "feature_map": "cosformer"},
    {"name": "linear_attention", "feature_map": "taylor", "feature_dim": 4},
    {"name": "retnet", "heads": 2},
    {"name": "gla", "conv_size": 4},
    {"name": "gla", "conv_size": None},
    {"name": "delta_net", "heads": 2},
    {"name": "delta_net", "heads": 2, "activation": "elu", "key_norm": "l1"},
    {"name": "mamba", "states": 4},
    {"name": "mamba2", "states": 4},
    {"name": "gated_delta_net", "heads": 2},
    {"name": "kda", "heads": 2},
    {"name": "lightning_attention"},
    {"name": "mlstm"},
    {"name": "hgrn2"},
    {"name": "gsa", "slots": 4},
    {"name": "rg_lru"},
    {"name": "gated_attention"},
    {"name": "mla"},
    {"name": "nsa", "block": 4, "stride": 2, "selected_block": 4, "selected": 3, "window": 6},
    {"name": "rwkv4"},
    {"name": "rwkv4_channel"},
    {"name": "rwkv7", "heads": 2},
    {"name": "based_conv"},
    {"name": "short_long_conv"},
    {"name": "long_conv"},
    {"name": "hyena"},
    {"name": "multihead_hyena"},
    {"name": "h3", "states": 4},
    {"name": "liquid_s4", "states": 4},
]


@pytest.mark.parametrize("length", [1, 7, 65])
@pytest.mark.parametrize("spec", SPECS, ids=lambda s: "-".join(map(str, s.values())))
def test_prefill_is_forward_and_leaves_the_state_of_stepping(spec: dict[str, Any], length: int) -> None:
    """Outputs of the prompt, and of 5 steps after it, against ``forward`` on the whole, in float64."""
    torch.manual_seed(0)
    config = ArgapConfig(vocab_size=11, hidden_size=WIDTH, mixers=[spec], max_position_embeddings=LONGEST)
    model = ArgapForCausalLM(config).double().eval()
    ids = torch.randint(0, 11, (2, length + 5))
    with torch.inference_mode():
        whole = model(ids).logits
        logits, state = model.prefill(ids[:, :length])
        torch.testing.assert_close(logits, whole[:, length - 1], rtol=0, atol=1e-9)
        assert state.position == length
        for t in range(length, length + 5):
            logits, state = model.step(ids[:, t], state)
            torch.testing.assert_close(logits, whole[:, t], rtol=0, atol=1e-9)


def test_these_mixers_do_not_step_through_their_prompt() -> None:
    recurrent = {name for name in MIXERS if resolve(name).recurrent}
    assert recurrent == {spec["name"] for spec in SPECS}
    stepping = {"selected_attention", "hyena", "h3", "long_conv", "liquid_s4"}
    for name in {spec["name"] for spec in SPECS} - stepping:
        mixer = build_mixer({"name": name}, WIDTH, LONGEST)
        assert type(mixer).prefill is not Mixer.prefill
