"""The supervised positions and batches of a run; a training step, validation, and the CUDA graph of several runs."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
import torch

from argap.models import ArgapForCausalLM
from argap.synthetics.tasks import automata, fuzzy_recall
from argap.synthetics.tasks.automata import AutomataConfig
from argap.synthetics.tasks.examples import IGNORED, Examples
from argap.synthetics.tasks.fuzzy_recall import FuzzyRecallConfig
from argap.synthetics.training.config import learning_rate
from argap.synthetics.training.loop import TrainerGroup
from argap.synthetics.training.models import MEMBERS
from argap.synthetics.training.supervision import Supervision, batch_order, stream_seed, supervise, supervision
from argap.synthetics.training.trainer import Trainer, accuracy_by_slice
from tests.builders.sweeps import CPU, TINY, task_run


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
    longer = replace(task_run("s3", "gla"), multiples=(2,), lr=1e-3)
    beyond = Trainer(longer, supervision(longer, "train"), CPU)
    for step in range(2):
        beyond.validate(supervision(longer, "validation"), step)
    assert beyond.best_step == 1  # the last of equals, if they are tested on longer examples
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


def test_the_supervised_positions_of_an_example_are_in_order():
    # Labels 7 at position 3 and 9 at 5; then 8 at 2 alone: asked at the position before each.
    labels = np.full((2, 6), IGNORED, dtype=np.int32)
    labels[0, 3], labels[0, 5], labels[1, 2] = 7, 9, 8
    distance = np.where(labels == IGNORED, 0, labels * 10).astype(np.int32)
    asked = supervise(Examples(np.zeros((2, 6), dtype=np.int32), labels, {"distance": distance}))
    assert asked.positions.tolist() == [[2, 4], [1, 0]]
    assert asked.targets.tolist() == [[7, 9], [8, IGNORED]]
    assert asked.slices["distance"].tolist() == [[70, 90], [80, 0]]


def test_several_numbers_of_pairs_share_the_examples():
    made = supervision(replace(TINY, pairs=(1, 2, 4)), "test")  # 20 examples: 7, 7 and 6
    counts = (made.targets != IGNORED).sum(dim=1).tolist()
    assert counts == [1] * 7 + [2] * 7 + [4] * 6
    assert made.slices["pairs"].max(axis=1).tolist() == counts


def test_fewer_examples_than_numbers_of_pairs_are_those_of_the_first():
    made = supervision(replace(TINY, pairs=(1, 2, 4), test_examples=2), "test")
    assert (made.targets != IGNORED).sum(dim=1).tolist() == [1, 2]


def test_streams_of_all_seeds_are_65536_apart():
    seeds = [stream_seed(seed, name) for seed in range(3) for name in ("train", "validation", "test", "order")]
    assert seeds == [65_536 * number for number in range(12)]


def test_the_splits_and_seeds_differ_and_a_seed_repeats():
    same, again = supervision(TINY, "validation"), supervision(TINY, "validation")
    assert torch.equal(same.inputs, again.inputs)
    for other in (supervision(TINY, "test"), supervision(replace(TINY, seed=1), "validation")):
        assert not torch.equal(same.inputs, other.inputs[: len(same.inputs)])


def test_every_epoch_sees_every_example_once_in_its_own_order():
    plan = batch_order(TINY).reshape(2, 64)
    assert all(sorted(epoch.tolist()) == list(range(64)) for epoch in plan)
    assert not torch.equal(plan[0], plan[1])


def test_fuzzy_recall_is_tested_on_its_longest_keys():
    config = task_run("fuzzy_recall")
    sizes = {split: set(np.unique(supervision(config, split).slices["tokens"])) - {0} for split in ("train", "test")}
    assert sizes == {"train": {1, 2, 3}, "test": {3}}
    made = fuzzy_recall.build(FuzzyRecallConfig(16, length=32, short_keys=False), stream_seed(0, "validation"))
    assert (supervision(config, "validation").inputs.numpy() == made.inputs).all()


def test_memorized_values_are_read_at_the_marker_after_the_key():
    """In mad-lab the targets are not shifted: the output at the marker, which does not show the key, is the answer."""
    made = supervision(task_run("memorization"), "test")
    assert made.positions[0].tolist() == list(range(1, 32, 2))
    assert (made.inputs.gather(1, made.positions) == 255).all()
    without_mixing = supervision(task_run("memorization", task={"read_at": "key"}), "test")
    assert (without_mixing.inputs.gather(1, without_mixing.positions) < 127).all()
    assert torch.equal(made.targets, without_mixing.targets)
    assert task_run("memorization").key != task_run("memorization", task={"read_at": "key"}).key


def test_the_layout_of_the_public_code_can_be_trained():
    ours = replace(TINY, length=32, pairs=(4,))
    theirs = replace(ours, layout="zoology")
    assert "layout" not in ours.as_json()  # runs from before the field keep their hashes
    assert theirs.key != ours.key
    made = supervision(theirs, "test")
    answers = made.inputs.gather(1, made.positions + 1)
    assert (answers != made.targets).any()  # the value does not follow its query
    assert (supervision(ours, "test").inputs.gather(1, supervision(ours, "test").positions + 1) == made.targets).any()
    trainer = Trainer(theirs, supervision(theirs, "train"), CPU)
    trainer.step()
    assert torch.isfinite(trainer.loss)


def test_facts_are_the_same_in_all_splits():
    facts = []
    for split in ("train", "validation", "test"):
        made = supervision(task_run("memorization"), split)
        keys = made.inputs.gather(1, made.positions - 1)  # the marker's position, less one
        facts.append(dict(zip(keys.flatten().tolist(), made.targets.flatten().tolist(), strict=True)))
    for key in facts[0].keys() & facts[1].keys() & facts[2].keys():
        assert facts[0][key] == facts[1][key] == facts[2][key]
    assert len(facts[0].keys() & facts[2].keys()) > 100


def test_automata_are_held_out_and_any_symbol_that_may_stand_is_right():
    config = task_run("automata")
    parts: dict[str, Literal["train", "heldout"]] = {"train": "train", "validation": "heldout", "test": "heldout"}
    for split, part in parts.items():
        data = AutomataConfig(config.examples(split), length=32, split=part)
        seed = stream_seed(0, split)
        made = supervision(config, split)
        assert (made.inputs.numpy() == automata.build(data, seed).inputs).all()
        assert (made.valid is None) == (split == "train")
    test = supervision(config, "test")
    assert test.valid is not None
    trainer = Trainer(config, supervision(config, "train"), CPU)
    given = trainer.logits(test.inputs, test.positions).argmax(dim=-1)
    asked = test.targets != IGNORED
    allowed = automata.valid_next(AutomataConfig(20, length=32, split="heldout"), stream_seed(0, "test"))
    rows = torch.arange(20)[:, None].expand_as(given)
    expected = torch.from_numpy(allowed)[rows, test.positions + 1, given]
    right = torch.from_numpy(trainer.correct(test))
    assert torch.equal(right[asked], expected[asked])
    assert (right & asked).sum() > ((given == test.targets) & asked).sum()
