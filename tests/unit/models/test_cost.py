"""Sizes, operations and states: by hand, against torch's own counter, and equal across architectures."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import LlamaConfig, LlamaForCausalLM, MambaConfig, MambaForCausalLM
from typer.testing import CliRunner

from argap.cli.models import app
from argap.errors import ArgapError
from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.cost import cost
from argap.models.mixers.attention import Attention
from argap.models.mixers.base_conv import BaseConv
from argap.models.mixers.convolution import convolution_flops
from argap.models.presets import ARCHITECTURES, build_config
from argap.models.registry import build_mixer


def test_the_cost_of_a_small_model_by_hand() -> None:
    config = ArgapConfig(vocab_size=10, hidden_size=4, intermediate_size=6, num_hidden_layers=2, mixers=["attention"])
    found = cost(config, 3)
    # Embedding 40; a layer: norms 8, mixer 4·16, MLP 3·24; the last norm 4; the head is the embedding.
    assert found.parameters == 40 + 2 * (8 + 64 + 72) + 4
    # A layer: projections 8·3·16, the 6 visible pairs 4·4 each, MLP 6·3·24; the head 2·3·40.
    assert found.flops == 2 * (384 + 96 + 432) + 240
    assert found.state_size == 2 * (2 * 3 * 4)


@pytest.mark.parametrize("architecture", ["attention", "base_conv", "hybrid"])
def test_matrix_products_are_as_torch_counts_them(architecture: str) -> None:
    length, width = 24, 32
    config = build_config(architecture, hidden_size=width, num_hidden_layers=3, vocab_size=64, seq_len=40)
    model = ArgapForCausalLM(config).requires_grad_(False)
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):  # it does not count the CPU's fused attention
        model(torch.zeros(1, length, dtype=torch.long))
    expected = counter.get_total_flops()
    for block in model.model.blocks:
        mixer = block.mixer
        if isinstance(mixer, Attention):  # torch counts all T² pairs, ours those that the mask leaves
            expected += -4 * length**2 * width + 2 * length * (length + 1) * width
        elif isinstance(mixer, BaseConv):  # biases, gate, skip and convolution (direct, as T ≤ 32) are no products
            expected += (3 + mixer.skip) * length * width + 2 * min(mixer.taps, length) * length * width
    assert cost(config, length).flops == expected


@pytest.mark.parametrize(("width", "layers"), [(64, 3), (256, 6), (1024, 8)])
def test_architectures_of_a_width_have_equal_parameters(width: int, layers: int) -> None:
    counts = [
        cost(build_config(a, hidden_size=width, num_hidden_layers=layers, vocab_size=8192, seq_len=1024), 8).parameters
        for a in ARCHITECTURES
        if ARCHITECTURES[a].options.get("mlp") != "none"  # nothing to match with
        and (a, width) != ("long_conv", 64)  # a filter of 1,024 taps a channel holds more than attention and its MLP
    ]
    assert max(counts) / min(counts) < 1.05


@pytest.mark.parametrize("architecture", ["attention", "base_conv", "hybrid"])
def test_a_checkpoint_of_the_demo_fits_14_megabytes(architecture: str) -> None:
    config = build_config(architecture, hidden_size=256, num_hidden_layers=6, vocab_size=8192, seq_len=1024)
    count = cost(config, 1024).parameters
    assert count > 6.6e6
    assert 2 * count < 14_000_000 - 100_000  # bf16, and the file's header


def test_options_come_before_what_is_matched() -> None:
    config = build_config(
        "base_conv", hidden_size=64, num_hidden_layers=2, vocab_size=64, seq_len=32, intermediate_size=64
    )
    assert (config.intermediate_size, config.max_position_embeddings) == (64, 32)
    with pytest.raises(ArgapError, match="unknown; known are attention, base_conv, base_conv_octaves"):
        build_config("transformer", hidden_size=64, num_hidden_layers=2, vocab_size=64, seq_len=32)


def test_a_window_past_the_filters_has_no_cost() -> None:
    config = build_config("hybrid", hidden_size=64, num_hidden_layers=2, vocab_size=64, seq_len=32)
    with pytest.raises(ArgapError, match="window of 33 tokens"):
        cost(config, 33)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_models_list_prints_every_architecture() -> None:
    rows = json.loads(run("list", "--json"))
    assert [row["name"] for row in rows] == list(ARCHITECTURES)
    for row in rows:
        assert {"params", "flops", "state_size", "source"} <= set(row)
    # 2·T·D for each of 6 layers, by hand.
    assert rows[0]["state_size"] == 6 * 2 * 1024 * 256
    table = run("list", "--seq-len", "512")
    assert "6.9 M" in table
    assert "512 tokens" in " ".join(table.split())  # the title may wrap
    assert "5 mamba2, 1 attention" in table
    assert "called base_conv as a bundled checkpoint" in " ".join(table.split())


def test_models_show_knows_architectures_and_checkpoints(tmp_path: Path) -> None:
    config = build_config("hybrid", hidden_size=32, num_hidden_layers=3, vocab_size=64, seq_len=48)
    model = ArgapForCausalLM(config)
    model.save_pretrained(tmp_path)
    found = json.loads(run("show", str(tmp_path), "--json"))
    assert found["params"] == sum(p.numel() for p in model.parameters())
    assert found["window"] == 48  # what it was made for, not the 1,024 of a named architecture
    assert found["mixers"] == config.mixers
    named = run("show", "hybrid", "--hidden-size", "32", "--layers", "3", "--vocab-size", "64", "--seq-len", "48")
    assert f"{found['params']:,}" in named
    assert "base_conv: filter explicit, kernel_size 3" in named
    assert f"{3 * found['flops'] / 1e9:.2f} GFLOPs, forward and backward" in named


def test_models_show_takes_a_folder_before_an_architecture_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ArgapForCausalLM(build_config("mamba2", hidden_size=32, num_hidden_layers=1, vocab_size=64, seq_len=48))
    model.save_pretrained(tmp_path / "mamba2")
    monkeypatch.chdir(tmp_path)
    assert json.loads(run("show", "mamba2", "--json"))["params"] == model.num_parameters()
    assert "mamba2" in run("show", "mamba2", "--size", "125m")  # of a size: the architecture


def test_models_show_knows_the_families_that_load_natively(tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, state_size=4)
    model = MambaForCausalLM(config)
    model.save_pretrained(tmp_path)
    found = json.loads(run("show", str(tmp_path), "--json"))
    assert (found["model_type"], found["params"]) == ("mamba", model.num_parameters())
    assert [mixer["name"] for mixer in found["mixers"]] == ["mamba", "mamba"]
    assert found["flops"] > 0


def test_models_show_counts_the_weights_of_another_model_type(tmp_path: Path) -> None:
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2)
    )
    model.save_pretrained(tmp_path)
    found = json.loads(run("show", str(tmp_path), "--json"))
    assert (found["model_type"], found["params"], found["flops"]) == ("llama", model.num_parameters(), None)
    assert f"{model.num_parameters():,}" in run("show", str(tmp_path))


WIDTH = 8
CASES: dict[str, tuple[dict[str, Any], tuple[int, int], int]] = {
    # 4 heads of 2 × 2 products; reading takes 16 multiplications and 8 sums, making and skip 16 and 32.
    "h3": (
        {"name": "h3", "head_size": 2, "shift_states": 16, "states": 4},
        (3, 50),
        3 * 50 * (2 * 8 + 16 + 2 * 16 + 16 + 8)
        + 3 * 50 * 8 * 2 * 16
        + convolution_flops(3, 50, 16, 50)
        + 8 * 50 * 4 * 2,
    ),
    # The short convolution of 4·8 channels, 3 taps and a bias; three long ones, three skips and gates.
    "hyena": (
        {"name": "hyena", "order": 3},
        (2, 50),
        2 * 50 * 32 * (2 * 3 + 1) + 3 * (convolution_flops(2, 50, 8, 64) + 3 * 2 * 50 * 8),
    ),
    # The short convolution of 3·8 channels, 3 taps and a bias; 8·4 outer products, skips and their sums.
    "multihead_hyena": (
        {"name": "multihead_hyena", "heads": 2},
        (2, 50),
        2 * 50 * 24 * (2 * 3 + 1) + convolution_flops(2, 50, 32, 64) + 3 * 2 * 50 * 32,
    ),
    # 8 operations for each tap of 8 channels with 2 states; skip 2, two products, each with a filter of its own.
    **{
        f"liquid_s4 {kernel}": (
            {"name": "liquid_s4", "kernel": kernel, "degree": 3, "states": 4},
            (2, 50),
            2 * 50 * 8 * 4
            + convolution_flops(2, 50, 8, 50)
            + 8 * 50 * 8 * 2
            + 2 * (convolution_flops(2, 50, 8, taps) + 8 * taps * 8 * 2),
        )
        for kernel, taps in (("pb", 1), ("kb", 50))
    },
    "long_conv": ({"name": "long_conv"}, (2, 64), 2 * 64 * 2 * 8 + convolution_flops(2, 64, 8, 64)),
    "mamba": (
        {"name": "mamba", "states": 4},
        (2, 10),
        2 * 10 * (6 * 16 * 4 + 4 * 16) + 2 * 10 * 16 * (2 * 4 + 1),
    ),
    "rwkv4": ({"name": "rwkv4"}, (2, 10), 2 * 10 * 27 * 8),
    "rwkv4_channel": ({"name": "rwkv4_channel"}, (2, 10), 2 * 10 * (7 * 8 + 32)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=list(CASES))
def test_operations_are_the_matrix_products_and_what_is_stated(
    case: tuple[dict[str, Any], tuple[int, int], int],
) -> None:
    spec, (batch, length), rest = case
    mixer = build_mixer(spec, WIDTH, 64).requires_grad_(False)
    for parameter in mixer.parameters():
        torch.nn.init.zeros_(parameter)
    with FlopCounterMode(display=False) as counter:
        mixer(torch.zeros(batch, length, WIDTH))
    assert mixer.flops(batch, length) - counter.get_total_flops() == rest
