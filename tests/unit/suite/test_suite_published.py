"""The suites that follow the papers' models: the layers, parameters and shapes of what they train."""

from pathlib import Path

import pytest
import torch

from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.cost import cost
from argap.suite.config import load_suite
from argap.suite.result import read_size
from argap.text.tokenizer import load_tokenizer
from argap.train.config import load_config
from argap.train.model import build_model

ROOT = Path(__file__).parents[3]


def models(suite: str, device: str = "meta") -> dict[str, ArgapForCausalLM]:
    """The untrained models of the suite's size of 7m, by member; on ``meta`` without values."""
    tokenizer = load_tokenizer(str(ROOT / "argap" / "demo" / "tokenizer"))
    entries = load_suite(ROOT / "suites" / f"{suite}.yaml").entries("7m")
    with torch.device(device):
        return {entry.member: build_model(entry.config, tokenizer) for entry in entries if entry.seed == 0}


def parameters(model: ArgapForCausalLM) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("suite", ["table2-mini", "table1-7m"])
def test_models_of_a_suite_have_nearly_equal_parameters(suite):
    built = models(suite)
    counts = [parameters(model) for model in built.values()]
    assert max(counts) / min(counts) < 1.08
    assert counts[0] == pytest.approx(7e6, rel=0.07)


@pytest.mark.parametrize("suite", ["table2-mini", "table1-7m"])
def test_models_of_a_suite_map_windows_to_logits(suite):
    for model in models(suite, "cpu").values():
        with torch.no_grad():
            assert model(torch.arange(20)[None] % 7).logits.shape == (1, 20, 8192)


def test_the_suite_describes_the_models_of_its_result():
    """Presets that change must not change what a committed result was trained from."""
    built = models("table1-7m")
    for trained in read_size(ROOT / "results" / "table1-7m" / "7m").members:
        config = built[trained.member].config
        assert isinstance(config, ArgapConfig)
        spent = cost(config, 1024)
        assert (spent.parameters, spent.flops, spent.state_size) == (
            trained.parameters,
            trained.flops,
            trained.state_size,
        ), trained.name


@pytest.mark.parametrize("name", ["attention", "base_conv", "hybrid"])
def test_the_demos_configurations_describe_its_checkpoints(name):
    shipped = ArgapConfig.from_pretrained(ROOT / "argap" / "demo" / "checkpoints" / name)
    config = load_config(ROOT / "suites" / "demo" / f"{name}.yaml", {})
    tokenizer = load_tokenizer(str(ROOT / "argap" / "demo" / "tokenizer"))
    with torch.device("meta"):
        built = build_model(config, tokenizer).config
    assert (built.mixers, built.intermediate_size) == (shipped.mixers, shipped.intermediate_size)


@pytest.mark.parametrize("select", ["full", "random", "programmatic", "learned"])
def test_a_tenth_of_the_layers_of_table_2_have_attention(select):
    model = models("table2-mini")["hybrid" if select == "full" else f"hybrid_{select}"]
    layers = model.config.mixers
    assert (model.config.hidden_size, len(layers)) == (128, 30)
    assert [number for number, layer in enumerate(layers) if layer["name"] != "base_conv"] == [5, 15, 25]
    # Half of BaseConv's filters are long; attention stands in the place of three of them.
    assert [layer.get("filter") for layer in layers[:6]] == [
        "explicit",
        "listing",
        "explicit",
        "listing",
        "explicit",
        None,
    ]
    for block in (model.model.blocks[number] for number in (5, 15, 25)):
        assert block.mixer.select == select
        assert block.mixer.k == 1024 // 8


def test_native_blocks_stand_beside_llamas():
    built = models("table1-7m")
    for member, layers, mlp, norm in (
        ("mamba", 6, "swiglu", "rms"),
        ("mamba_block", 12, "none", "rms"),
        ("retnet", 6, "swiglu", "rms"),
        ("retnet_block", 6, "gelu", "layer"),
        ("rwkv4", 6, "swiglu", "rms"),
        ("rwkv4_channel", 12, "none", "layer"),
    ):
        config = built[member].config
        assert (len(built[member].model.blocks), config.mlp, config.norm) == (layers, mlp, norm)
