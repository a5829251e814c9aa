"""Reading a suite's YAML, its one-line errors, and the models of the suites that follow the papers."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from argap.errors import ArgapError
from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.cost import cost
from argap.suite.config import load_suite
from argap.suite.result import read_size
from argap.text.tokenizer import load_tokenizer
from argap.train.config import load_config
from argap.train.model import build_model

GOOD = {
    "reference": "attention",
    "train": {"tokenizer": "t", "data": ["d"], "steps": 4, "warmup_steps": 1},
    "sizes": {"small": {"hidden_size": 32, "num_layers": 2}, "wide": {"hidden_size": 64, "num_layers": 2}},
    "evaluation": {"data": ["e"], "seq_len": 64},
    "members": {"attention": {"seeds": [0, 1]}, "mixed": {"mixers": ["attention", "base_conv"], "num_layers": None}},
}


def written(tmp_path: Path, **changes) -> Path:
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(GOOD | changes))
    return path


def test_entries_differ_only_in_mixers_and_seed(tmp_path):
    entries = load_suite(written(tmp_path)).entries("wide")
    assert [entry.name for entry in entries] == ["attention", "mixed", "attention-seed1"]
    assert [entry.config.architecture for entry in entries] == ["attention", None, "attention"]
    assert {entry.config.hidden_size for entry in entries} == {64}
    assert [entry.config.seed for entry in entries] == [0, 0, 1]
    first, _, again = (entry.config.as_json() for entry in entries)
    assert {key for key in first if first[key] != again[key]} == {"seed"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reference": "nobody"}, "reference: 'nobody' is not a member; members are attention, mixed"),
        ({"base": "nobody"}, "base: 'nobody' is not a member"),
        ({"members": {"attention": None, "nonesuch": None}}, "nonesuch: unknown architecture"),
        ({"sizes": {}}, "sizes: expected at least one"),
        ({"sizes": {"small": {"hiden_size": 3}}}, "attention at small: unknown key hiden_size"),
        ({"sizes": {"small": 3}}, "sizes: small: expected KEY: VALUE lines or nothing, found 3"),
        ({"members": {"attention": 3}}, "members: attention: expected KEY: VALUE lines or nothing, found 3"),
        ({"members": {"attention": {"seeds": 3}}}, "members: attention: seeds: expected a list of different numbers"),
        (
            {"members": {"attention": {"seeds": [0, 0]}}},
            "members: attention: seeds: expected a list of different numbers",
        ),
        ({"members": {"attention": {"seeds": [1]}}}, "members: attention: seeds: expected 0 among them"),
        ({"name": "other"}, "name: a suite is named by its file"),
        ({"surprise": 1}, "unknown key surprise; known are"),
        ({"evaluation": {"data": ["e"], "seq_len": "long"}}, "seq_len: expected a whole number"),
        ({"evaluation": {"data": ["e"], "keep": ["language"]}}, "evaluation: keep: a suite's result has no tokens"),
    ],
)
def test_errors_are_one_line(tmp_path, changes, message):
    path = written(tmp_path, **changes)
    with pytest.raises(ArgapError, match=r"^\S+suite\.yaml: ") as error:
        load_suite(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


ROOT = Path(__file__).parents[3]


def models(suite: str, device: str = "meta", **sizes: int) -> dict[str, ArgapForCausalLM]:
    """The untrained models of the suite's size of 7m, by member; on ``meta`` without values."""
    tokenizer = load_tokenizer(str(ROOT / "argap" / "demo" / "tokenizer"))
    entries = load_suite(ROOT / "suites" / f"{suite}.yaml").entries("7m")
    with torch.device(device):
        return {
            entry.member: build_model(replace(entry.config, **sizes), tokenizer) for entry in entries if entry.seed == 0
        }


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
    for model in models(suite, "cpu", hidden_size=64, num_layers=3).values():
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
