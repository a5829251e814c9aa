"""Which mixer stands in which layer of the named architectures."""

from typing import Any

import pytest
import torch

from argap.errors import ArgapError
from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.block import GELUMLP
from argap.models.configuration import as_spec
from argap.models.cost import cost
from argap.models.presets import ARCHITECTURES, build_config


def specs(name: str, layers: int) -> list[dict[str, Any]]:
    return [as_spec(mixer) for mixer in ARCHITECTURES[name].layers(layers)]


def where(name: str, layers: int, mixer: str) -> list[int]:
    """Its layers, counted from 0."""
    return [number for number, spec in enumerate(specs(name, layers)) if spec["name"] == mixer]


@pytest.mark.parametrize("select", ["random", "programmatic", "learned", "full"])
def test_three_layers_of_a_hybrid_select(select: str) -> None:
    # The middles of 30 / 3 = 10, of 12 / 3 = 4, of 24 / 3 = 8, of 6 / 3 = 2 layers each; half of 4, of 3, of 2 and
    # of 1, at least 1.
    for layers, chosen in (
        (30, [5, 15, 25]),
        (12, [2, 6, 10]),
        (24, [4, 12, 20]),
        (6, [1, 3, 5]),
        (4, [1, 3]),
        (3, [1]),
        (1, [0]),
    ):
        name = f"hybrid_{select}"
        assert where(name, layers, "selected_attention") == chosen
        assert all(spec["select"] == select for spec in specs(name, layers) if "select" in spec)
        assert set(where(name, layers, "base_conv")) == set(range(layers)) - set(chosen)


def test_delta_net_has_attention_in_its_second_and_its_middle_layer() -> None:
    assert where("delta_net_global", 24, "attention") == [1, 12]  # the 2nd and the 13th, counted from 1
    assert where("delta_net_global", 6, "attention") == [1, 3]
    assert where("delta_net_global", 2, "attention") == [1]
    assert all("window" not in spec for spec in specs("delta_net_global", 24))


@pytest.mark.parametrize(
    ("name", "mixer", "window"),
    [
        ("hyena_window_64", "hyena", 64),
        ("hyena_window_256", "hyena", 256),
        ("retnet_window", "retnet", 128),
        ("delta_net_window", "delta_net", 128),
    ],
)
def test_every_other_layer_has_a_window(name: str, mixer: str, window: int) -> None:
    assert where(name, 5, mixer) == [0, 2, 4]
    assert [spec.get("window") for spec in specs(name, 5)] == [None, window, None, window, None]


@pytest.mark.parametrize(
    ("name", "mixer", "period"),
    [
        ("gated_delta_net_hybrid", "gated_attention", 4),
        ("olmo_hybrid", "attention", 4),
        ("kda_hybrid", "mla", 4),
        ("mamba2_hybrid", "attention", 4),
        ("lightning_hybrid", "attention", 8),
    ],
)
def test_attention_ends_every_period_of_a_hybrid_or_the_model(name: str, mixer: str, period: int) -> None:
    assert where(name, 2 * period + 1, mixer) == [period - 1, 2 * period - 1]
    assert where(name, 3, mixer) == [2]
    assert where(name, 1, mixer) == [0]


def test_windows_alternate_with_other_layers() -> None:
    # Gemma 3: five windows, then full attention; Griffin: two recurrences, then a window.
    assert [spec.get("window") for spec in specs("attention_window", 7)] == [128] * 5 + [None, 128]
    assert where("griffin", 7, "rg_lru") == [0, 1, 3, 4, 6]
    assert specs("griffin", 3)[2] == {"name": "attention", "window": 128}


def test_channel_mixing_stands_in_the_place_of_the_mlp() -> None:
    config = build_config("rwkv4_channel", hidden_size=32, num_hidden_layers=3, vocab_size=24, seq_len=24)
    assert [mixer["name"] for mixer in config.mixers] == ["rwkv4", "rwkv4_channel"] * 3
    model = ArgapForCausalLM(config)
    assert not any(block.has_mlp for block in model.model.blocks)
    # 4·D² of time mixing and 9·D² of channel mixing, where attention and SwiGLU have 12·D².
    weights = sum(p.numel() for name, p in model.model.layers.named_parameters() if p.ndim == 2)
    assert weights == 3 * 13 * 32**2


def test_mamba_alone_makes_the_layers_of_its_own_block() -> None:
    config = build_config("mamba_block", hidden_size=32, num_hidden_layers=3, vocab_size=24, seq_len=24)
    assert [mixer["name"] for mixer in config.mixers] == ["mamba"] * 6
    assert (config.mlp, config.norm) == ("none", "rms")
    # Of each layer: D² · (4 in, 2 out), E = 2·D channels with 4 taps and R + 2·N = 2 + 32 selections, R step sizes, the
    # biases of taps and steps, N = 16 decays and a skip; and a norm.
    layer = 6 * 32**2 + 64 * (4 + 34 + 2 + 2 + 16 + 1) + 32
    assert cost(config, 24).parameters == 24 * 32 + 6 * layer + 32
    assert shape_of_logits(config) == (2, 24, 24)


def test_retention_has_layer_norms_and_an_ungated_mlp_in_its_own_block() -> None:
    config = build_config("retnet_block", hidden_size=64, num_hidden_layers=2, vocab_size=24, seq_len=24)
    model = ArgapForCausalLM(config)
    for block in model.model.blocks:
        assert isinstance(block.mixer_norm, torch.nn.LayerNorm)
        assert [type(module).__name__ for module in block.mlp.children()] == ["Linear", "ResidualLinear"]
    # 8·D² of retention and, to match attention's 4·D² and its SwiGLU of 3·D·192, 5·D² = 2·D·160; two norms of 2·D.
    assert config.intermediate_size == 160
    assert cost(config, 24).parameters == 24 * 64 + 2 * (8 * 64**2 + 2 * 64 * 160 + 4 * 64) + 2 * 64
    dense = cost(config, 24).flops - sum(block.mixer.flops(1, 24) for block in model.model.blocks)
    assert dense == 2 * 24 * (2 * 2 * 64 * 160 + 64 * 24)  # two matrices of each layer, and the head
    assert shape_of_logits(config) == (2, 24, 24)


def shape_of_logits(config: ArgapConfig) -> tuple[int, ...]:
    return tuple(ArgapForCausalLM(config)(torch.randint(24, (2, 24))).logits.shape)


def test_the_ungated_mlp_by_hand() -> None:
    mlp = GELUMLP(2, 1)
    with torch.no_grad():
        mlp.up.weight.copy_(torch.tensor([[1.0, 2.0]]))
        mlp.down.weight.copy_(torch.tensor([[3.0], [-1.0]]))
    # up: 1·(−1) + 2·1 = 1; gelu(1) = Φ(1) = 0.841345.
    torch.testing.assert_close(mlp(torch.tensor([-1.0, 1.0])), torch.tensor([3.0, -1.0]) * 0.841345)


def test_an_unknown_mlp_is_refused() -> None:
    with pytest.raises(ArgapError, match="mlp 'relu'; expected swiglu or gelu or none"):
        build_config("attention", hidden_size=32, num_hidden_layers=1, vocab_size=24, seq_len=24, mlp="relu")
