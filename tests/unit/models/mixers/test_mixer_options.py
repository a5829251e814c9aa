"""What a mixer cannot be is refused by one line that names it."""

from typing import Any

import pytest

from argap.errors import ArgapError
from argap.models.mixers.attention import Attention
from argap.models.registry import MIXERS, build_mixer

WIDTH = 8


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"name": "attention", "heads": 3}, "does not split into 3 heads"),
        ({"name": "attention", "heads": 0}, "does not split into 0 heads"),
        ({"name": "attention", "heads": 8}, "heads of even width"),  # one number a head cannot be turned
        ({"name": "attention", "heads": 3, "positions": "none"}, "does not split into 3 heads; set its option heads"),
        ({"name": "attention", "positions": "alibi"}, "positions 'alibi'; expected rope or none"),
        ({"name": "attention", "window": 0}, "window 0; expected at least 1"),
        ({"name": "attention", "window": 4, "window_kind": "dilated"}, "expected sliding or blocked"),
        ({"name": "attention", "window_kind": "blocked"}, "'blocked' without a window"),
        ({"name": "base_conv", "filter": "hyena"}, "expected explicit or implicit"),
        ({"name": "base_conv", "bias": "none"}, "expected vector or definition"),
        ({"name": "base_conv", "kernel_size": 0}, "kernel_size 0; expected at least 1"),
        ({"name": "base_conv", "kernel_size": None}, "max_position_embeddings"),
        ({"name": "base_conv", "bias": "definition"}, "max_position_embeddings"),
        ({"name": "long_conv"}, "long_conv: kernel_size null needs the longest sequence"),
        ({"name": "long_conv", "kernel_size": 0}, "long_conv: kernel_size 0; expected at least 1"),
        ({"name": "long_conv", "kernel_size": 3, "squash": -1.0}, "long_conv: squash -1.0; expected at least 0"),
        ({"name": "hyena"}, "hyena: its filters need the longest sequence"),
        ({"name": "hyena", "order": 1}, "hyena: order 1; expected at least 2"),
        ({"name": "hyena", "heads": 3}, "hyena: width 8 does not split into 3 heads"),
        ({"name": "hyena", "filter_depth": 1}, "hyena: filter_depth 1; expected at least 2"),
        ({"name": "multihead_hyena"}, "multihead_hyena: its filters need the longest sequence"),
        ({"name": "multihead_hyena", "heads": 3}, "multihead_hyena: width 8 does not split into 3 heads"),
        ({"name": "multihead_hyena", "filter_depth": 1}, "multihead_hyena: filter_depth 1; expected at least 2"),
        ({"name": "base_conv_autocorrelation", "shifts": 0}, "_autocorrelation: shifts 0; expected at least 1"),
        ({"name": "h3", "states": None}, "needs the longest sequence"),
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
        ({"name": "linear_attention", "heads": 3}, "linear_attention: width 8 does not split into 3 heads"),
        ({"name": "linear_attention", "feature_map": "exp"}, "expected one of identity, elu, relu, performer"),
        ({"name": "linear_attention", "feature_dim": 0}, "feature_dim 0; expected at least 1"),
        ({"name": "linear_attention", "chunk_size": 0}, "chunk_size 0; expected at least 1"),
        ({"name": "linear_attention", "normalization": "max"}, "expected sum or rms"),
        (
            {"name": "linear_attention", "feature_map": "identity", "normalization": "sum"},
            "sum may be 0; use rms",
        ),
        ({"name": "linear_attention", "feature_map": "cosformer"}, "set the model's max_position_embeddings"),
        ({"name": "base_conv", "skip": {}}, "base_conv: skip {}; expected true or false"),
        ({"name": "retnet", "heads": 3}, "retnet: width 8 does not split into 3 heads of even width"),
        ({"name": "retnet", "value_expansion": 0}, "value_expansion 0; expected at least 1"),
        ({"name": "retnet", "norm": "batch"}, "retnet: norm 'batch'; expected layer or rms"),
        ({"name": "retnet", "chunk_size": None, "cross_chunk": False}, "cross_chunk false needs a chunk_size"),
        ({"name": "retnet", "chunk_size": 0}, "retnet: chunk_size 0; expected at least 1"),
        ({"name": "delta_net", "heads": 3}, "delta_net: width 8 does not split into 3 heads"),
        ({"name": "delta_net", "activation": "gelu"}, "'gelu'; expected silu or elu or relu or identity"),
        ({"name": "delta_net", "key_norm": "max"}, "key_norm 'max'; expected l2 or l1"),
        ({"name": "based_conv", "kernel_size": 0}, "based_conv: kernel_size 0; expected at least 1"),
        ({"name": "gla", "heads": 3}, "gla: width 8 and keys of 4 do not split into 3 heads"),
        ({"name": "gla", "heads": 0}, "gla: heads 0; expected at least 1"),
        ({"name": "gla", "key_expansion": 0.01}, "keys of 0 do not split into 4 heads"),
        ({"name": "gla", "gate_temperature": 0}, "gate_temperature 0; expected above 0"),
        ({"name": "mamba2", "heads": 3}, "mamba2: width 16 does not split into 3 heads"),
        ({"name": "mamba2", "heads": 4, "groups": 3}, "mamba2: groups 3; expected a divisor of the 4 heads"),
        ({"name": "mlstm", "heads": 8}, "mlstm: keys of 4 do not split into 8 heads"),
        ({"name": "mlstm", "gate_cap": 40.0}, "gate_cap 40.0; expected above 0, at most 30"),
        ({"name": "hgrn2", "heads": 3}, "hgrn2: width 8 does not split into 3 heads"),
        ({"name": "gsa", "heads": 3}, "gsa: width 8 does not split into 3 heads"),
        ({"name": "rg_lru", "expand": 1.25, "heads": 4}, "rg_lru: width 10 does not split into 4 heads"),
        ({"name": "gated_delta_net", "heads": 4}, "gated_delta_net: keys of 6 and values of 12 do not split into 4"),
        ({"name": "kda", "heads": 3}, "kda: width 8 does not split into 3 heads"),
        ({"name": "lightning_attention", "heads": 3}, "lightning_attention: width 8 does not split into 3 heads"),
        ({"name": "gated_attention", "kv_heads": 3}, "kv_heads 3; expected a divisor of the 1 heads"),
        ({"name": "mla", "heads": 3}, "mla: width 8 does not split into 3 heads"),
        ({"name": "mla", "rotary_size": 3}, "mla: rotary_size 3; expected an even number"),
        ({"name": "delta_net", "conv_size": 0}, "delta_net: conv_size 0; expected at least 1"),
        ({"name": "gla", "norm_eps": "1e-6"}, "gla: norm_eps '1e-6'; expected a number"),  # as YAML reads it
        ({"name": "retnet", "rope_theta": None}, "retnet: rope_theta None; expected a number"),
        ({"name": "gla", "gate_temperature": "16"}, "gla: gate_temperature '16'; expected a number"),
        ({"name": "retnet", "heads": True}, "retnet: heads True; expected a whole number"),
        ({"name": "liquid_s4", "degree": 2.5}, "liquid_s4: degree 2.5; expected a whole number"),
    ],
)
def test_an_option_that_cannot_be_is_refused(spec: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgapError, match=said):
        build_mixer(spec, WIDTH, None)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("attention", "rope_theta"),
        ("selected_attention", "rope_theta"),
        ("retnet", "rope_theta"),
        ("retnet", "norm_eps"),
        ("gla", "norm_eps"),
        ("delta_net", "norm_eps"),
        ("linear_attention", "norm_eps"),
        ("gated_attention", "norm_eps"),
        ("mla", "norm_eps"),
    ],
)
def test_a_rotary_base_and_an_epsilon_are_above_0(name: str, option: str, value: float) -> None:
    with pytest.raises(ArgapError, match=rf"^{name}: {option} {value}; expected above 0, at most 1e\+30$"):
        build_mixer({"name": name, option: value}, WIDTH, None)


class Unchecked(Attention):
    """Options whose types cannot be checked."""

    def __init__(
        self, width: int, max_positions: int | None = None, *, plain=None, late: "int" = 1, lists: list | tuple = ()
    ) -> None:
        super().__init__(width, max_positions)
        self.given = plain, late, lists


def test_an_option_of_a_type_that_cannot_be_checked_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MIXERS, "unchecked", Unchecked)
    mixer = build_mixer({"name": "unchecked", "plain": "a", "late": 2.5, "lists": [3]}, WIDTH, None)
    assert isinstance(mixer, Unchecked)
    assert mixer.given == ("a", 2.5, [3])


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "gla"},
        {"name": "delta_net"},
        {"name": "linear_attention", "normalization": "rms"},
        {"name": "retnet", "heads": 2},
        {"name": "retnet", "heads": 2, "norm": "rms"},
    ],
)
def test_the_norm_of_the_heads_takes_its_epsilon(spec: dict[str, Any]) -> None:
    mixer = build_mixer({**spec, "norm_eps": 0.5}, WIDTH, None)
    assert getattr(mixer.norm, "eps", None) == 0.5
    assert getattr(build_mixer(spec, WIDTH, None).norm, "eps", None) == 1e-5
