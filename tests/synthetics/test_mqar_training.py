"""Training on recall: the protocol, the questions, one run, several side by side, a sweep that goes on."""

import itertools
import json
import math
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from argap.errors import ArgapError
from argap.models import ArgapForCausalLM
from argap.synthetics.config import LEARNING_RATES, RunConfig, learning_rate
from argap.synthetics.cuda_graph import TrainerGroup
from argap.synthetics.devices import train_on
from argap.synthetics.jobs import run_sweep
from argap.synthetics.loop import train_group
from argap.synthetics.models import MEMBERS, member_from
from argap.synthetics.selection import best_runs, smallest_solving
from argap.synthetics.store import read_runs
from argap.synthetics.supervision import batch_order, supervise, supervision
from argap.synthetics.sweep import load_sweep
from argap.synthetics.tasks.examples import IGNORED, Examples
from argap.synthetics.trainer import Trainer, accuracy_by_slice

CPU = torch.device("cpu")
HERE = partial(train_on, [CPU])
TINY = RunConfig(
    name="attention",
    member=MEMBERS["attention"],
    width=8,
    length=16,
    pairs=(2,),
    lr=1e-3,
    vocab_size=32,
    train_examples=64,
    validation_examples=16,
    test_examples=20,
    batch_size=16,
    epochs=2,
)


def test_the_learning_rates_are_the_papers():
    np.testing.assert_allclose(LEARNING_RATES, np.logspace(-4, -2, 4), rtol=1e-12)


@pytest.mark.parametrize(
    ("length", "width", "batch"), [(64, 64, 64), (128, 128, 64), (256, 64, 16), (64, 256, 16), (512, 64, 8)]
)
def test_the_batch_is_smaller_for_long_and_wide_models(length, width, batch):
    assert replace(TINY, length=length, width=width, batch_size=None).examples_per_step == batch


def test_the_rate_rises_for_a_tenth_and_falls_to_nothing():
    # 2 epochs of 4 steps, warm-up half of them: 1/4, 2/4, 3/4, 1, then cos from 1 at step 4 to ~0 after step 7.
    config = replace(TINY, warmup=0.5, lr=1.0)
    rates = [learning_rate(step, config) for step in range(8)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    np.testing.assert_allclose(rates[4:], [0.5 * (1 + math.cos(math.pi * k / 4)) for k in range(4)])


def test_a_members_name_is_a_preset_or_a_mixer_and_unknown_keys_are_named():
    assert member_from("attention").learned_positions
    assert member_from("argap.models.gla:GLA").mixers == ("argap.models.gla:GLA",)
    assert member_from("hyena", {"mlp": True}).mlp
    with pytest.raises(ArgapError, match=r"hyena: unknown key layers; known are mixers"):
        member_from("hyena", {"layers": 2})


def test_the_questions_of_an_example_are_its_labels_in_order():
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


def test_the_splits_and_seeds_differ_and_a_seed_repeats():
    same, again = supervision(TINY, "validation"), supervision(TINY, "validation")
    assert torch.equal(same.inputs, again.inputs)
    for other in (supervision(TINY, "test"), supervision(replace(TINY, seed=1), "validation")):
        assert not torch.equal(same.inputs, other.inputs[: len(same.inputs)])


def test_every_epoch_sees_every_example_once_in_its_own_order():
    plan = batch_order(TINY).reshape(2, 64)
    assert all(sorted(epoch.tolist()) == list(range(64)) for epoch in plan)
    assert not torch.equal(plan[0], plan[1])


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


def test_side_by_side_is_as_alone_and_the_seed_repeats():
    configs = [TINY, replace(TINY, lr=1e-2), replace(TINY, seed=3)]
    together = {r.config.key: r for r in train_group(configs, CPU)}
    for config in configs:
        (alone,) = train_group([config], CPU)
        same = together[config.key]
        assert (alone.curve, alone.accuracy, alone.slices) == (same.curve, same.accuracy, same.slices)
    with pytest.raises(ArgapError, match="the same steps"):
        train_group([TINY, replace(TINY, epochs=3)], CPU)


def test_a_solved_run_stops_and_with_first_ends_so_do_the_others():
    easy = replace(TINY, stop_at=1e-9, lr=1e-2)  # any right answer will do
    hard = replace(TINY, stop_at=1.0)
    found = {r.config.key: r for r in train_group([easy, hard], CPU)}
    assert found[hard.key].stopped == "steps"
    assert found[hard.key].steps == TINY.steps
    if found[easy.key].validation_accuracy:
        assert found[easy.key].stopped == "solved"
        ended = {r.config.key: r for r in train_group([easy, hard], CPU, first_ends=True)}
        assert ended[hard.key].stopped == "sibling"
        assert ended[hard.key].steps == ended[easy.key].steps


def test_the_weights_that_were_best_are_tested():
    trainer = Trainer(replace(TINY, lr=1e-2), supervision(TINY, "train"), CPU)
    validation = supervision(TINY, "validation")
    trainer.validate(validation, 0)
    kept = [weight.clone() for weight in trainer.model.parameters()]
    trainer.best = 1.0  # nothing will be better
    for _ in range(3):
        trainer.step()
    trainer.validate(validation, 3)
    assert trainer.best_step == 0
    trainer.restore_best()
    assert all(torch.equal(a, b) for a, b in zip(kept, trainer.model.parameters(), strict=True))


def test_a_member_may_have_more_layers_and_a_task_a_fill_token():
    four = replace(TINY, member=member_from("attention", {"mixers": ["attention", "base_conv"] * 2}), fill=3)
    assert four.model_config().num_hidden_layers == 4
    assert TINY.model_config().num_hidden_layers == 2
    inputs = supervision(four, "train").inputs
    assert ((inputs == 3).sum(dim=1) == 16 - 4 * 2).all()  # all but two pairs and their second occurrences


def test_accuracy_by_slice_partitions_the_answers():
    made = supervision(replace(TINY, pairs=(1, 2)), "test")
    right = np.random.default_rng(0).random(made.targets.shape) < 0.5
    asked = (made.targets != IGNORED).numpy()
    for rows in accuracy_by_slice(right, made).values():
        assert sum(row.n for row in rows) == asked.sum()
        assert sum(row.n * row.accuracy for row in rows) == pytest.approx(right[asked].sum())


@pytest.fixture(scope="module")
def sweep_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("sweep") / "tiny.yaml"
    run = {"vocab_size": 32, "train_examples": 32, "validation_examples": 8, "test_examples": 8, "batch_size": 16}
    asked = {"members": {"attention": None, "base_conv": {"mlp": True}}, "lengths": [16], "widths": [8, 16]}
    path.write_text(yaml.safe_dump({**asked, "pairs": [2], "lrs": [1e-3, 1e-2], "run": {**run, "epochs": 1}}))
    return path


def test_a_sweep_goes_on_where_it_stopped(sweep_file, tmp_path):
    sweep = load_sweep(sweep_file)
    first = run_sweep(sweep, tmp_path, HERE, stop=lambda: len(list(tmp_path.glob("runs/*"))) == 2)
    assert len(first) == 2
    written = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    whole = run_sweep(sweep, tmp_path, HERE)
    assert len(whole) == len(sweep.configs()) == 8
    assert all(path.stat().st_mtime_ns == when for path, when in written.items())
    assert read_runs(tmp_path).to_dict() == whole.to_dict()
    record = json.loads(next(iter(written)).read_text())
    assert set(record["slices"]) == {"distance", "pairs"}


def test_a_group_that_one_run_solved_is_not_gone_on_with(sweep_file, tmp_path):
    """Where the first to solve the task ends the group, a rate that is added later is not trained."""
    sweep = replace(load_sweep(sweep_file), first_ends=True, lrs=(1e-3,))
    run_sweep(sweep, tmp_path, HERE)
    solved = sorted((tmp_path / "runs").iterdir())[0]
    solved.write_text(json.dumps(json.loads(solved.read_text()) | {"stopped": "solved"}))
    whole = run_sweep(replace(sweep, lrs=(1e-3, 1e-2)), tmp_path, HERE)
    groups = whole.groupby(["name", "width"])["stopped"].agg(["count", lambda stopped: "solved" in set(stopped)])
    assert sorted(groups.to_numpy().tolist()) == [[1, True], [2, False], [2, False], [2, False]]


def test_a_sweep_file_that_is_wrong_is_one_line(tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text("members: {attention: }\nlengths: [64]\nrun: {width: 3}\n")
    with pytest.raises(ArgapError, match=r"wrong.yaml: run: width is set by members"):
        load_sweep(path)


def test_the_published_sweeps_can_be_read_and_built():
    from argap.models.cost import cost

    for path in sorted((Path(__file__).parents[2] / "suites" / "mqar").glob("*.yaml")):
        for config in load_sweep(path).configs()[:: len(LEARNING_RATES)][-8:]:
            assert cost(config.model_config(), config.length).flops > 0, path


def test_to_solve_takes_the_least_of_the_solved():
    # Two widths solve the task, the narrower with the larger state; the best run is chosen by validation.
    columns = ["name", "length", "pairs", "width", "lr", "validation_accuracy", "accuracy", "flops", "state_size"]
    rows = [
        ("a", 64, "4", 64, 1e-3, 0.90, 1.000, 10, 100),  # not chosen: another rate validates better
        ("a", 64, "4", 64, 1e-2, 0.95, 0.960, 10, 100),
        ("a", 64, "4", 128, 1e-3, 1.00, 0.995, 20, 300),
        ("a", 64, "4", 256, 1e-3, 1.00, 0.999, 40, 200),
        ("b", 64, "4", 64, 1e-3, 0.50, 0.500, 5, 50),
    ]
    runs = pd.DataFrame(rows, columns=pd.Index(columns)).assign(parameters=7)
    assert best_runs(runs)["accuracy"].tolist() == [0.960, 0.995, 0.999, 0.500]
    solved = smallest_solving(runs).set_index("name")
    assert solved.loc["a", ["width", "flops", "state_size"]].tolist() == [128, 20, 200]
    assert solved.loc["b", ["width", "flops"]].isna().all()
    assert solved.loc["b", "best"] == 0.5


def test_a_config_survives_json():
    from argap.configuration import build

    again = build(RunConfig, json.loads(json.dumps(asdict(TINY))))
    assert again.key == TINY.key
    assert replace(TINY, lr=2e-3).key != TINY.key


@pytest.mark.slow
def test_attention_recalls_on_a_cpu():
    """N = 64, D = 4, width 64: more than 99% of a test set, in less than 5 minutes of two cores.

    From 256 tokens in place of 8,192: what a model learns of every single token takes the time.
    """
    config = RunConfig(
        name="attention",
        member=MEMBERS["attention"],
        width=64,
        length=64,
        pairs=(4,),
        lr=3e-3,
        vocab_size=256,
        train_examples=32_000,
        test_examples=1_000,
        batch_size=64,
        epochs=8,
        evaluations=4,
        stop_at=0.998,
    )
    (result,) = train_group([config], CPU)
    assert result.accuracy > 0.99


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


def test_runs_that_are_stopped_have_no_result():
    steps = itertools.count(1)
    assert train_group([TINY], CPU, stop=lambda: next(steps) == TINY.steps) == []
    assert len(train_group([TINY], CPU, stop=lambda: next(steps) == 0)) == 1
