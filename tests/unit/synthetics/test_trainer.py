"""A training step, validation, accuracy by slice, and the CUDA graph of several runs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from argap.models import ArgapForCausalLM
from argap.synthetics.tasks.examples import IGNORED
from argap.synthetics.training.config import learning_rate
from argap.synthetics.training.cuda_graph import TrainerGroup
from argap.synthetics.training.models import MEMBERS
from argap.synthetics.training.supervision import Supervision, batch_order, supervision
from argap.synthetics.training.trainer import Trainer, accuracy_by_slice
from tests.builders.sweeps import CPU, TINY


def test_a_step_is_adamw_on_the_loss_of_the_labels():
    """Against the plain model: its own loss with labels, torch's AdamW with a number as its rate."""
    config = replace(TINY, lr=0.03)
    train = supervision(config, "train")
    trainer = Trainer(config, train, CPU)
    torch.manual_seed(config.seed)
    plain = ArgapForCausalLM(config.model_config())
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1.0, weight_decay=0.1)
    for step in range(3):
        trainer.step()
        rows = batch_order(config)[step]
        labels = torch.full((16, 16), IGNORED)
        labels.scatter_(1, train.positions[rows] + 1, train.targets[rows])
        optimizer.param_groups[0]["lr"] = learning_rate(step, config)
        loss = plain(train.inputs[rows].long(), labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.testing.assert_close(trainer.loss, loss.detach())
    for mine, theirs in zip(trainer.model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


def test_the_weights_that_were_best_are_tested():
    trainer = Trainer(replace(TINY, lr=1e-2), supervision(TINY, "train"), CPU)
    validation = supervision(TINY, "validation")
    trainer.validate(validation, 0)
    trainer.validate(validation, 1)
    assert trainer.best_step == 0  # the first of equals
    assert trainer.curve == [(0, trainer.best), (1, trainer.best)]
    kept = [weight.clone() for weight in trainer.model.parameters()]
    trainer.best = 1.0  # nothing will be better
    for _ in range(3):
        trainer.step()
    trainer.validate(validation, 3)
    assert trainer.best_step == 0
    trainer.restore_best()
    assert all(torch.equal(a, b) for a, b in zip(kept, trainer.model.parameters(), strict=True))


def test_answers_do_not_depend_on_how_many_are_scored_at_once(monkeypatch):
    test = supervision(TINY, "test")
    scored = Trainer(TINY, supervision(TINY, "train"), CPU)
    whole = scored.correct(test)
    assert whole.shape == (20, 2)
    monkeypatch.setattr(
        "argap.synthetics.training.trainer.TOKENS_PER_BATCH", 3 * TINY.length
    )  # 20 examples: 6 times 3, and 2
    assert (scored.correct(test) == whole).all()
    monkeypatch.setattr("argap.synthetics.training.trainer.TOKENS_PER_BATCH", 1)
    assert (scored.correct(test) == whole).all()


def test_accuracy_by_slice_partitions_the_answers():
    made = supervision(replace(TINY, pairs=(1, 2)), "test")
    right = np.random.default_rng(0).random(made.targets.shape) < 0.5
    asked = (made.targets != IGNORED).numpy()
    for rows in accuracy_by_slice(right, made).values():
        assert sum(row.n for row in rows) == asked.sum()
        assert sum(row.n * row.accuracy for row in rows) == pytest.approx(right[asked].sum())


def test_distances_are_binned_by_powers_of_two_and_other_slices_by_value():
    targets = torch.tensor([[7, 7, 7], [7, 7, IGNORED]])
    slices = {"distance": np.array([[1, 3, 2], [4, 7, 0]]), "pairs": np.array([[3, 3, 3], [5, 5, 0]])}
    data = Supervision(torch.zeros(2, 3), torch.zeros(2, 3), targets, slices)
    found = accuracy_by_slice(np.array([[True, True, False], [False, False, True]]), data)
    rows = {name: [(row.value, row.n, row.accuracy) for row in rows] for name, rows in found.items()}
    assert rows == {"distance": [(1, 1, 1.0), (2, 2, 0.5), (4, 2, 0.0)], "pairs": [(3, 3, 2 / 3), (5, 2, 0.0)]}


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["attention", "base_conv", "hyena", "delta_net", "based"])
def test_one_graph_of_several_models_trains_each_as_it_trains_alone(name):
    """Captured, on streams side by side, against kernel by kernel on one: the same losses, step for step."""
    gpu = torch.device("cuda")
    base = replace(TINY, name=name, member=MEMBERS[name], width=32, epochs=5)
    configs = [base, replace(base, lr=1e-2), replace(base, seed=1)]

    def losses(group, captures):
        together = TrainerGroup([Trainer(config, supervision(config, "train").to(gpu), gpu) for config in group])
        together.use_graph = captures
        found = []
        for _ in range(base.steps):
            together.step()
            found.append([float(trainer.loss) for trainer in together.trainers])
        assert (together.graph is not None) == captures
        return np.array(found)

    side_by_side = losses(configs, captures=True)
    alone = np.concatenate([losses([config], captures=False) for config in configs], axis=1)
    np.testing.assert_allclose(side_by_side, alone, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["base_conv", "hyena"])
def test_a_model_is_validated_as_its_graph_has_made_it(name):
    """A replay changes weights unseen by torch: what a model keeps of its long filters must not outlive it."""
    gpu = torch.device("cuda")
    config = replace(TINY, name=name, member=MEMBERS[name], width=32, length=64, lr=1e-2, epochs=5)
    test = supervision(config, "test").to(gpu)
    trainer = Trainer(config, supervision(config, "train").to(gpu), gpu)
    together = TrainerGroup([trainer])
    for _ in range(config.steps):
        together.step()
        now = trainer.logits(test.inputs, test.positions).detach()
        with torch.no_grad():
            torch.testing.assert_close(trainer.logits(test.inputs, test.positions), now, rtol=1e-2, atol=1e-2)
    assert together.graph is not None
