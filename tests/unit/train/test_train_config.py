"""Configuration and what a step takes: precedence, errors that list valid keys, decay, rates, an auxiliary loss."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from argap.errors import ArgapError
from argap.files.configs import check_field
from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.mixers.hyena import Hyena
from argap.runtime.torchrun import Parallel
from argap.train import read_log, train
from argap.train.config import DataSource, TrainConfig, load_config, parse_settings
from argap.train.loop import Trainer, Windows
from argap.train.optimizer import build_optimizer, learning_rate
from argap.train.records import StepLine

FILE = """
tokenizer: some/tokenizer
architecture: attention
data:
  - some/folder
  - {path: other, repeat: 3}
steps: 1000
lr: 1e-3
betas: [0.9, 0.99]
compile: true
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(FILE)
    return path


def test_the_file_overrides_defaults(file: Path) -> None:
    config = load_config(file, {})
    assert config.data == (DataSource("some/folder"), DataSource("other", repeat=3))
    assert config.lr == 1e-3  # YAML 1.1 reads 1e-3 as text
    assert config.betas == (0.9, 0.99)
    assert config.compile == "true"
    assert config.seq_len == TrainConfig.seq_len == 1024
    assert config.total_steps == 1000


def test_flags_override_the_file(file: Path) -> None:
    config = load_config(file, parse_settings(["lr=3e-4", "grad_clip=null", "betas=[0.8, 0.9]"]) | {"seed": 3})
    assert (config.lr, config.grad_clip, config.betas, config.seed) == (3e-4, None, (0.8, 0.9), 3)


def test_flag_for_one_alternative_replaces_the_other(file: Path) -> None:
    config = load_config(file, {"tokens": 100_000, "batch_size": 3, "seq_len": 16})
    assert config.steps is None
    assert config.total_steps == 2084  # 100,000 / 48 = 2083.3
    assert load_config(file, {"mixers": ["attention"]}).architecture is None


def test_json_round_trip(file: Path) -> None:
    config = load_config(file, {})
    values = config.as_json()
    assert values["data"][1] == {"path": "other", "repeat": 3, "text_column": "text"}
    assert load_config(None, values) == config


@pytest.mark.parametrize(("steps", "warmup"), [(1, 0), (20, 2), (99, 9), (100, 100), (1000, 100)])
def test_the_default_warm_up_fits_the_steps(file: Path, steps: int, warmup: int) -> None:
    config = load_config(file, {"steps": steps})
    assert config.warmup_steps == config.as_json()["warmup_steps"] == warmup
    assert load_config(file, {"steps": steps, "warmup_steps": 1}).warmup_steps == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FILE + "learning_rate: 3", "unknown key learning_rate; known are tokenizer, data, architecture"),
        (FILE.replace("repeat: 3", "times: 2"), "unknown key times; known are path, repeat, text_column"),
        (FILE.replace("steps: 1000", "tokens: 9\nsteps: 1000"), "exactly one of steps and tokens"),
        (FILE.replace("steps: 1000", ""), "exactly one of steps and tokens"),
        (FILE + "mixers: [attention]", "exactly one of architecture and mixers"),
        (FILE.replace("tokenizer: some/tokenizer", ""), "tokenizer: missing"),
        (FILE.replace("lr: 1e-3", "lr: fast"), "lr: expected a number, found 'fast'"),
        (FILE.replace("lr: 1e-3", "lr: .nan"), "lr: expected above 0, at most 1e+30, found nan"),
        (FILE + "seq_len: 10.5", "seq_len: expected a whole number, found 10.5"),
        (FILE + "seq_len: true", "seq_len: expected a whole number, found True"),
        (FILE + "seq_len: 0", "seq_len: expected 1 to 16,777,216, found 0"),
        (FILE + "batch_size: 1000000000", "batch_size: expected 1 to 1,048,576, found 1000000000"),
        (FILE + "seq_len: 100000000000", "seq_len: expected 1 to 16,777,216, found 100000000000"),
        (
            FILE + f"seed: {2**64}",
            "seed: expected 0 to 9,223,372,036,854,775,807, found 18446744073709551616",
        ),
        (FILE + "grad_clip: .inf", "grad_clip: expected above 0, at most 1e+30, found inf"),
        (FILE.replace("repeat: 3", "repeat: 0"), "repeat: expected 1 to 1,000,000,000, found 0"),
        (FILE + "dtype: float64", "dtype: expected auto or bfloat16 or float32, found 'float64'"),
        (FILE.replace("[0.9, 0.99]", "[0.9]"), "betas: expected a list of length 2"),
        (FILE.replace("[0.9, 0.99]", "[0.9, 1.0]"), "betas: expected two numbers from 0 to below 1"),
        (FILE + "stop_after: 1001", "stop_after: 1001 exceeds the run's 1000 steps"),
        (FILE + "warmup_steps: 1001", "warmup_steps: 1001 exceeds the run's 1000 steps"),
        (FILE + "model: 3", "model: expected KEY: VALUE lines, found 3"),
        ("data: [unclosed", "not readable as YAML"),
        ("just text", "expected KEY: VALUE lines, found str"),
    ],
)
def test_errors_are_one_line_starting_with_the_file(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ArgapError) as caught:
        load_config(path, {})
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert message in line
    assert "\n" not in line


def test_a_number_beyond_float64_is_refused() -> None:
    with pytest.raises(ArgapError, match=r"^lr: expected above 0, at most 1e\+30, found 1000"):
        check_field(TrainConfig, "lr", 10**400, "lr")


def test_a_missing_file_and_bad_settings(tmp_path: Path) -> None:
    with pytest.raises(ArgapError, match=r"none\.yaml: not readable \(No such file or directory\)"):
        load_config(tmp_path / "none.yaml", {})
    with pytest.raises(ArgapError, match="--set lr: expected KEY=VALUE"):
        parse_settings(["lr"])
    with pytest.raises(ArgapError, match="the value is not valid YAML"):
        parse_settings(["betas=[0.9"])


def config(**values) -> TrainConfig:
    base = {"tokenizer": "t", "data": ["d"], "architecture": "attention", "steps": 110, "warmup_steps": 10}
    return load_config(None, base | values)


def test_schedule_by_hand() -> None:
    schedule = config(lr=1.0, min_lr_ratio=0.2)
    assert learning_rate(0, schedule) == pytest.approx(0.1)
    assert learning_rate(9, schedule) == pytest.approx(1.0)
    assert learning_rate(59, schedule) == pytest.approx(0.6)  # half-way: the mean of 1 and 0.2
    assert learning_rate(109, schedule) == pytest.approx(0.2)
    # A quarter of the way: 0.2 + 0.8 · (1 + cos 45°) / 2
    assert learning_rate(34, schedule) == pytest.approx(0.2 + 0.4 * (1 + math.sqrt(0.5)))


def test_schedule_that_is_all_warm_up() -> None:
    schedule = config(lr=1.0, steps=10)
    assert [learning_rate(s, schedule) for s in (0, 9)] == pytest.approx([0.1, 1.0])


def test_hyenas_filters_and_skips_do_not_decay() -> None:
    """The authors register a filter's parameters with a weight decay of 0 (safari, src/models/sequence/hyena.py)."""
    mixer = Hyena(8, 16, order=3)
    decayed, others = build_optimizer(mixer, config(weight_decay=0.3), torch.device("cpu")).param_groups
    assert {id(p) for p in decayed["params"]} == {
        id(p) for p in (mixer.projection.weight, mixer.short.weight, mixer.out.weight)
    }
    kept = {id(p) for p in others["params"]}
    assert {id(p) for p in (mixer.skip, *mixer.filter.parameters())} <= kept


def test_only_matrices_decay() -> None:
    model = nn.ModuleDict({"embed": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    model["head"].weight = model["embed"].weight
    model["proj"], model["norm"] = nn.Linear(3, 3), nn.LayerNorm(3)
    marked = nn.Linear(3, 3, bias=False)
    marked.weight._no_weight_decay = True  # pyright: ignore[reportAttributeAccessIssue]
    model["state"] = marked
    model["wide"] = nn.Module()
    model["wide"].bias = nn.Parameter(torch.zeros(5, 3))  # definition 4.1 of Zoology has biases [N, d]
    decayed, others = build_optimizer(model, config(weight_decay=0.3), torch.device("cpu")).param_groups
    assert [p is model["proj"].weight for p in decayed["params"]] == [True]
    assert decayed["weight_decay"] == 0.3
    assert others["weight_decay"] == 0.0
    assert len(others["params"]) == len(list(model.parameters())) - 1


LEARNED = {"name": "selected_attention", "select": "learned", "k": 2, "noise": 0.0}


def toy(values: dict, **changes) -> TrainConfig:
    plain = {key: value for key, value in values.items() if key != "architecture"}
    return load_config(None, plain | {"mixers": [LEARNED, "attention"]} | changes)


@pytest.mark.parametrize("micro", [8, 2])
def test_the_gradient_is_of_the_sum_of_losses(toy_values: dict, micro: int) -> None:
    torch.manual_seed(0)
    described = ArgapConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, mixers=[LEARNED, "attention"])
    model = ArgapForCausalLM(described).train()
    windows = Windows(np.arange(2000, dtype=np.uint16) % 61, 16, 0)
    batch = torch.from_numpy(windows.in_training_order(0, 8))
    found = model(batch[:, :-1])
    nll = F.cross_entropy(found.logits.flatten(0, 1), batch[:, 1:].flatten())
    (nll + found.auxiliary_loss).backward()
    both = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm().item()
    model.zero_grad(set_to_none=True)

    trainer = Trainer(model, toy(toy_values, micro_batch_size=micro), Parallel(0, 1, torch.device("cpu")))
    loss, norm, auxiliary = trainer.step(windows, 0).tolist()
    assert loss == pytest.approx(nll.item(), rel=1e-5)
    assert auxiliary == pytest.approx(found.auxiliary_loss.item(), rel=1e-5)
    assert norm == pytest.approx(both, rel=1e-4)


def test_the_auxiliary_loss_is_logged_and_falls(toy_values: dict, tmp_path: Path) -> None:
    record = train(toy(toy_values, eval_data=toy_values["data"]), tmp_path, device="cpu")
    lines = [line for line in read_log(tmp_path / "log.jsonl") if isinstance(line, StepLine)]
    # Scores start near ½: 16 of them sum to 8, 6 more than k = 2.
    first, last = lines[0], lines[-1]
    assert first.auxiliary_loss is not None
    assert last.auxiliary_loss is not None
    assert 0.2 < first.auxiliary_loss < 0.4
    assert last.auxiliary_loss < first.auxiliary_loss - 0.1
    assert last.loss < first.loss - 0.5
    assert record.finished is not None
    assert record.finished.eval_loss == pytest.approx(last.loss, abs=0.5)  # without the other


def test_a_mixer_without_an_auxiliary_loss_is_normed_once() -> None:
    described = ArgapConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, mixers=[LEARNED, "attention"])
    model = ArgapForCausalLM(described).train()
    calls = []
    for block in model.model.blocks:
        block.mixer_norm.register_forward_hook(lambda module, *_: calls.append(module))
    model(torch.zeros(1, 5, dtype=torch.int64))
    assert [calls.count(block.mixer_norm) for block in model.model.blocks] == [2, 1]
