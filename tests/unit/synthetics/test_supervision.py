"""The supervised positions of a run's examples, its splits, and the order of its batches."""

from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from argap.synthetics.tasks import automata, fuzzy_recall
from argap.synthetics.tasks.automata import AutomataConfig
from argap.synthetics.tasks.examples import IGNORED, Examples
from argap.synthetics.tasks.fuzzy_recall import FuzzyRecallConfig
from argap.synthetics.training.supervision import batch_order, stream_seed, supervise, supervision
from argap.synthetics.training.trainer import Trainer
from tests.builders.sweeps import CPU, TINY, task_run


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
