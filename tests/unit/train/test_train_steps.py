"""What a step takes: which parameters decay, the learning rate, and a mixer's auxiliary loss, logged separately."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from argap.models import ArgapConfig, ArgapForCausalLM
from argap.models.mixers.hyena import Hyena
from argap.runtime.torchrun import Parallel
from argap.train import TrainConfig, load_config, read_log, train
from argap.train.loop import Trainer
from argap.train.optimizer import build_optimizer, learning_rate
from argap.train.records import StepLine
from argap.train.windows import Windows


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
