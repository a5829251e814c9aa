"""Which mixer stands in which layer of the named architectures."""

from typing import Any

import pytest
import torch

from argap.models import ArgapForCausalLM
from argap.models.configuration import as_spec
from argap.models.presets import ARCHITECTURES, build_config


def specs(name: str, layers: int) -> list[dict[str, Any]]:
    return [as_spec(mixer) for mixer in ARCHITECTURES[name].layers(layers)]


def where(name: str, layers: int, mixer: str) -> list[int]:
    """Its layers, counted from 0."""
    return [number for number, spec in enumerate(specs(name, layers)) if spec["name"] == mixer]


@pytest.mark.parametrize("select", ["random", "programmatic", "learned", "full"])
def test_three_layers_of_a_hybrid_select(select: str) -> None:
    # The middles of 12 / 3 = 4, of 24 / 3 = 8, of 6 / 3 = 2 layers each; half of 4, of 3, of 2 and of 1, at least 1.
    for layers, chosen in ((12, [2, 6, 10]), (24, [4, 12, 20]), (6, [1, 3, 5]), (4, [1, 3]), (3, [1]), (1, [0])):
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


def test_channel_mixing_stands_in_the_place_of_the_mlp() -> None:
    config = build_config("rwkv4_channel", hidden_size=32, num_hidden_layers=3, vocab_size=24, seq_len=24)
    assert [mixer["name"] for mixer in config.mixers] == ["rwkv4", "rwkv4_channel"] * 3
    model = ArgapForCausalLM(config)
    assert not any(block.has_mlp for block in model.model.blocks)
    # 4·D² of time mixing and 9·D² of channel mixing, where attention and SwiGLU have 12·D².
    weights = sum(p.numel() for name, p in model.model.layers.named_parameters() if p.ndim == 2)
    assert weights == 3 * 13 * 32**2


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_learns(name: str) -> None:
    """Ninety-six tokens by heart, in 20 steps at toy size."""
    torch.manual_seed(0)
    ids = torch.randint(24, (4, 24))
    model = ArgapForCausalLM(build_config(name, hidden_size=32, num_hidden_layers=3, vocab_size=24, seq_len=24))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.3
