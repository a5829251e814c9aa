"""Which parameters decay, and the learning rate at the corners of its schedule."""

import math

import pytest
import torch
from torch import nn

from argap.models.mixers.hyena import Hyena
from argap.train.config import TrainConfig, load_config
from argap.train.optimizer import build_optimizer, learning_rate


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
