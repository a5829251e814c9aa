"""A file that names a module imports it only where the caller trusts the file; each test watches for a file that the
module would create."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from argap.checkpoints.find import find_checkpoint
from argap.checkpoints.load import check_loadable, load_model
from argap.cli import app
from argap.errors import ArgapError
from argap.models import ArgapConfig, ArgapForCausalLM, register_mixer, registry
from argap.models.mixers.attention import Attention
from argap.runtime.trust import call_with_trust, trusting
from argap.train import load_config
from argap.train.model import build_model
from tests.builders.gguf_files import small_llama

TOKENIZER = Path(__file__).parents[2] / "argap" / "demo" / "tokenizer"
MIXER = "planted:Planted"
REFUSED = "mixer 'planted:Planted': would import the module 'planted', which is not part of argap"
MODULE = """
from pathlib import Path
from argap.models.mixers.attention import Attention
Path(__file__).with_name("created").touch()

class Planted(Attention):
    pass
"""


@pytest.fixture
def created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that the module creates when it is imported."""
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "planted.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(registry, "MIXERS", dict(registry.MIXERS))
    yield folder / "created"
    sys.modules.pop("planted", None)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """An honest checkpoint whose ``config.json`` was changed to name the module."""
    folder = tmp_path / "checkpoint"
    config = ArgapConfig(
        vocab_size=8192, hidden_size=8, intermediate_size=8, num_hidden_layers=1, max_position_embeddings=64
    )
    ArgapForCausalLM(config).save_pretrained(folder)
    for file in TOKENIZER.iterdir():
        shutil.copy(file, folder)
    values = json.loads((folder / "config.json").read_text())
    values["mixers"] = [{"name": MIXER, "heads": 1}]
    (folder / "config.json").write_text(json.dumps(values | {"trust_remote_code": True}))
    return folder


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A suite whose only member names the module."""
    text = tmp_path / "text.txt"
    text.write_text("one two three two three\n" * 50)
    train = {"tokenizer": str(TOKENIZER), "data": [str(text)], "hidden_size": 8, "seq_len": 16, "batch_size": 2}
    values = {
        "reference": "mine",
        "members": {"mine": {"mixers": [MIXER]}},
        "sizes": {"tiny": None},
        "train": {**train, "steps": 1, "warmup_steps": 0},
        "evaluation": {"data": [str(text)], "seq_len": 16},
    }
    path = tmp_path / "suite.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def call(*arguments: object) -> None:
    CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def test_a_checkpoint_is_refused_before_the_import(checkpoint: Path, created: Path) -> None:
    with pytest.raises(ArgapError, match=REFUSED):
        load_model(find_checkpoint(checkpoint), dtype=torch.float32, device="cpu")
    with pytest.raises(ArgapError, match=REFUSED):
        AutoModelForCausalLM.from_pretrained(checkpoint)
    with pytest.raises(ArgapError, match=REFUSED):
        AutoModelForCausalLM.from_config(ArgapConfig.from_pretrained(checkpoint))
    assert not created.exists()


@pytest.mark.parametrize(
    "asked",
    [
        {"attn_implementation": "me/planted"},
        {"_attn_implementation": "paged|me/planted"},
        {"experts_implementation": {"": "me/planted"}},
        {"text_config": {"attn_implementation": "me/planted"}},
    ],
)
def test_a_kernel_of_the_hub_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict) -> None:
    """transformers downloads the kernel that a configuration names, and runs it."""
    created = tmp_path / "created"
    monkeypatch.setattr("transformers.modeling_utils.lazy_import_flash_attention", lambda *a, **k: created.touch())
    monkeypatch.setattr("transformers.modeling_utils.PreTrainedModel.set_attn_implementation", lambda *a, **k: None)
    small_llama().save_pretrained(tmp_path / "llama")
    path = tmp_path / "llama" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | asked))
    found = find_checkpoint(tmp_path / "llama")
    for load in (lambda: load_model(found, dtype=torch.float32, device="cpu"), lambda: check_loadable(found)):
        with pytest.raises(ArgapError, match=r"llama: the checkpoint runs the kernel '.*me/planted' of the hub; allow"):
            load()
    assert not created.exists()


def test_commands_refuse_the_checkpoint(checkpoint: Path, created: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("one two three two three\n")
    score = ("score", checkpoint, "--ref", "attention", "--data", tmp_path / "text.txt", "--out", tmp_path / "runs")
    for command in (
        ("models", "show", checkpoint),
        score,
        ("synthetics", "score", checkpoint, "--length", 32, "--pairs", 2, "--examples", 2, "--out", tmp_path / "mqar"),
    ):
        with pytest.raises(ArgapError, match=REFUSED):
            call(*command)
    assert not created.exists()


def test_training_suites_and_sweeps_refuse_the_module(suite: Path, created: Path, tmp_path: Path) -> None:
    settings = yaml.safe_load(suite.read_text())["train"]
    (tmp_path / "train.yaml").write_text(yaml.safe_dump({**settings, "mixers": [MIXER]}))
    run = {"vocab_size": 32, "train_examples": 16, "validation_examples": 8, "test_examples": 8, "batch_size": 16}
    sweep = {"members": {"mine": {"mixers": [MIXER]}}, "lengths": [16], "widths": [8], "pairs": [2], "lrs": [1e-3]}
    (tmp_path / "sweep.yaml").write_text(yaml.safe_dump({**sweep, "run": {**run, "epochs": 1}}))
    for command in (
        ("train", tmp_path / "train.yaml", "--out", tmp_path / "run", "--device", "cpu"),
        ("suite", "run", suite, "--work", tmp_path / "work", "--out", tmp_path / "result", "--device", "cpu"),
        ("synthetics", "sweep", tmp_path / "sweep.yaml", "--out", tmp_path / "sweep", "--device", "cpu"),
    ):
        with pytest.raises(ArgapError, match=REFUSED):
            call(*command)
    assert not created.exists()
    call("train", tmp_path / "train.yaml", "--out", tmp_path / "run", "--device", "cpu", "--trust-remote-code")
    assert created.exists()
    assert json.loads((tmp_path / "run" / "train.json").read_text())["finished"]["steps"] == 1


def test_the_flag_loads_the_checkpoint(checkpoint: Path, created: Path) -> None:
    result = CliRunner().invoke(app, ["models", "show", str(checkpoint), "--trust-remote-code"])
    assert result.exit_code == 0, result.output
    assert "layer 0     planted:Planted: heads 1" in result.output
    assert created.exists()
    with pytest.raises(ArgapError, match=REFUSED):  # the trust ended with the command
        load_model(find_checkpoint(checkpoint), dtype=torch.float32, device="cpu")
    with trusting():
        loaded = load_model(find_checkpoint(checkpoint), dtype=torch.float32, device="cpu")
    for trusted in (loaded, AutoModelForCausalLM.from_pretrained(checkpoint, trust_remote_code=True)):
        assert type(trusted.model.blocks[0].mixer).__name__ == "Planted"


def test_a_registered_class_needs_no_trust(checkpoint: Path, created: Path) -> None:
    class Mine(Attention):
        pass

    register_mixer(MIXER, Mine)
    loaded = AutoModelForCausalLM.from_pretrained(checkpoint)
    assert isinstance(loaded.model.blocks[0].mixer, Mine)
    assert not created.exists()


def test_a_class_of_the_registry_may_be_named_by_its_module_and_no_other_of_argap() -> None:
    assert registry.resolve("argap.models.mixers.attention:Attention") is Attention
    with pytest.raises(ArgapError, match=r"would import the module 'argap\.demo'"):
        registry.resolve("argap.demo:Anything")


def test_trust_reaches_another_process_and_ends_with_its_call(created: Path) -> None:
    with pytest.raises(ArgapError, match=REFUSED):
        call_with_trust(False, registry.resolve, MIXER)
    assert call_with_trust(True, registry.resolve, MIXER).__name__ == "Planted"
    with trusting(), trusting(False):  # trust only grows
        assert registry.resolve(MIXER).__name__ == "Planted"
    with pytest.raises(ArgapError, match=REFUSED):
        registry.resolve(MIXER)


def test_a_configuration_in_python_needs_trust_too(suite: Path, created: Path, tokenizer) -> None:
    values = {**yaml.safe_load(suite.read_text())["train"], "mixers": [MIXER]}
    with pytest.raises(ArgapError, match=REFUSED):
        build_model(load_config(None, values), tokenizer)
    assert not created.exists()
