"""A mixer's auxiliary loss is added in training and logged separately."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from argap.models import ArgapConfig, ArgapForCausalLM
from argap.runtime.torchrun import Parallel
from argap.train import TrainConfig, load_config, read_log, train
from argap.train.loop import Trainer
from argap.train.records import StepLine
from argap.train.windows import Windows

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
