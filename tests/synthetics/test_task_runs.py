"""Runs and sweeps on the tasks other than MQAR: what a run records, what is asked of it, and that it learns."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from argap.cli import app
from argap.configuration import build
from argap.errors import ArgapError
from argap.reports.task_figures import best_by_task
from argap.synthetics.config import RunConfig
from argap.synthetics.devices import train_on
from argap.synthetics.jobs import run_sweep
from argap.synthetics.loop import train_group
from argap.synthetics.models import MEMBERS, LastVectorDecoder, sinusoids
from argap.synthetics.store import run_path
from argap.synthetics.supervision import stream_seed, supervision
from argap.synthetics.sweep import Sweep, load_sweep
from argap.synthetics.tasks import automata, fuzzy_recall
from argap.synthetics.tasks.automata import AutomataConfig
from argap.synthetics.tasks.examples import IGNORED
from argap.synthetics.tasks.fuzzy_recall import FuzzyRecallConfig
from argap.synthetics.tasks.registry import TASKS
from argap.synthetics.trainer import Trainer

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


def run(name: str, member: str = "attention", **own: Any) -> RunConfig:
    """A run of a few steps: two epochs of four."""
    given = {"length": 32, "width": 16, "train_examples": 64, "validation_examples": 16, "test_examples": 20}
    task = {"name": name} | ({"tokens": 4} if name == "selective_copy" else {}) | own.pop("task", {})
    fields: dict[str, Any] = given | {"lr": 1e-3, "batch_size": 16, "epochs": 2} | own
    return RunConfig(name=member, member=MEMBERS[member], pairs=(), task=task, **fields)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_trained_on_and_its_run_is_known_by_its_record(name):
    config = run(name)
    (result,) = train_group([config], CPU)
    assert result.steps == 8
    record = json.loads(json.dumps(result.as_json()))
    assert set(record["config"]) & {"vocab_size", "alpha", "fill"} == set()
    assert build(RunConfig, record["config"]).key == config.key
    for rows in record["slices"].values():
        right = sum(row["n"] * row["accuracy"] for row in rows)
        assert right / sum(row["n"] for row in rows) == pytest.approx(result.accuracy)


def test_a_run_is_of_its_task_and_of_all_that_the_task_says():
    assert run("noisy_recall").key == run("noisy_recall", task={"noise": 0.2}).key  # the preset's
    assert run("noisy_recall").key != run("noisy_recall", task={"noise": 0.4}).key
    assert run("noisy_recall", task={"noise": 0.4}).task_label == "noisy_recall, noise 0.4, length 32"
    assert run("noisy_recall", length=128).task_label == "noisy_recall"
    assert run("memorization").vocabulary == 256
    assert run("automata").vocabulary == 19


def test_what_was_trained_before_there_were_tasks_is_known_by_its_name():
    """The file's name is a hash of all that decides a run: these are of the committed sweep."""
    sweep = load_sweep(ROOT / "suites" / "mqar" / "figure2-small.yaml")
    folder = ROOT / "results" / "mqar" / "figure2-small"
    records = {path.stem: json.loads(path.read_text())["config"] for path in (folder / "runs").glob("*.json")}
    found = [config for config in sweep.configs() if run_path(folder, config).exists()]
    assert len(found) == len(records) == 120
    assert all(config.as_json() == records[config.key] for config in found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "fuzzy"}, r"task 'fuzzy': unknown; known are in_context_recall, noisy_recall"),
        ({"tokens": 3}, "task noisy_recall: unknown key tokens; known are vocab_size, noise_vocab_size, noise, asked"),
        ({"examples": 3}, "task noisy_recall: examples is set by the run"),
        ({"noise": 2.0}, "task noisy_recall: context recall: noise 2.0 of 16 tokens"),
        ({"name": "fuzzy_recall", "short_keys": True}, "task fuzzy_recall: short_keys is set by the split"),
        ({"name": "selective_copy", "tokens": 16}, "need 33 positions, the length is 32"),
    ],
)
def test_a_task_that_is_unknown_or_does_not_fit_is_one_line(change, said):
    with pytest.raises(ArgapError, match=said) as raised:
        run("noisy_recall", task=change)
    assert "\n" not in str(raised.value)


def test_what_is_mqars_is_refused_for_other_tasks():
    changes: list[dict[str, Any]] = [{"alpha": 0.5}, {"fill": 0}, {"vocab_size": 64}]
    for own in changes:
        with pytest.raises(ArgapError, match="pairs, vocab_size, alpha, fill apply to MQAR only"):
            run("noisy_recall", **own)
    with pytest.raises(ArgapError, match="apply to MQAR only"):
        replace(run("noisy_recall"), pairs=(2,))


def test_fuzzy_recall_is_tested_on_its_longest_keys():
    config = run("fuzzy_recall")
    sizes = {split: set(np.unique(supervision(config, split).slices["tokens"])) - {0} for split in ("train", "test")}
    assert sizes == {"train": {1, 2, 3}, "test": {3}}
    made = fuzzy_recall.build(FuzzyRecallConfig(16, length=32, short_keys=False), stream_seed(0, "validation"))
    assert (supervision(config, "validation").inputs.numpy() == made.inputs).all()


def test_facts_are_the_same_in_all_splits():
    facts = []
    for split in ("train", "validation", "test"):
        made = supervision(run("memorization"), split)
        keys = made.inputs.gather(1, made.positions)
        facts.append(dict(zip(keys.flatten().tolist(), made.targets.flatten().tolist(), strict=True)))
    for key in facts[0].keys() & facts[1].keys() & facts[2].keys():
        assert facts[0][key] == facts[1][key] == facts[2][key]
    assert len(facts[0].keys() & facts[2].keys()) > 100


def test_automata_are_held_out_and_any_symbol_that_may_stand_is_right():
    config = run("automata")
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


def test_compression_is_decoded_from_the_last_vector_and_the_place_alone():
    config = run("compression", length=8)
    trainer = Trainer(config, supervision(config, "train"), CPU)
    made = supervision(config, "test")
    assert (made.inputs.gather(1, made.positions + 1) == made.targets).all()  # each token at its own place
    assert made.positions[0].tolist() == [-1, 0, 1, 2, 3, 4, 5]
    decoder = LastVectorDecoder(16, 16, 8)
    hidden = torch.randn(2, 8, 16)
    places = torch.arange(7).expand(2, -1)
    logits = decoder(hidden, places)
    changed = hidden.clone()
    changed[:, :-1] = 0
    torch.testing.assert_close(decoder(changed, places), logits)
    assert (decoder(hidden.roll(1, 1), places) - logits).abs().min() > 0
    assert (logits[:, 1:] - logits[:, :-1]).abs().max() > 1e-3  # places are told apart
    before = [weight.detach().clone() for weight in trainer.weights]
    trainer.step()
    assert trainer.decoder is not None
    moved = [bool((a != b).any()) for a, b in zip(before, trainer.weights, strict=True)]
    assert all(moved[-len(list(trainer.decoder.parameters())) :])


def test_places_are_sines_and_cosines():
    # Width 4: rates 1 and 1/10,000.
    expected = [[np.sin(2), np.sin(2e-4), np.cos(2), np.cos(2e-4)]]
    np.testing.assert_allclose(sinusoids(3, 4)[2:], expected, rtol=1e-5)
    with pytest.raises(ArgapError, match="width 5"):
        sinusoids(3, 5)


def test_a_delta_net_learns_to_recall_in_context():
    """8 tokens, 32 of them in a row: every answer of a test set, after 192 steps at most."""
    config = run("in_context_recall", "delta_net", task={"vocab_size": 8}, width=32, lr=3e-3, train_examples=1024)
    (result,) = train_group([replace(config, batch_size=64, epochs=12)], CPU)
    assert result.accuracy > 0.98


def test_weights_hold_facts_and_a_vector_holds_tokens():
    easy: dict[str, Any] = {"width": 32, "train_examples": 512, "batch_size": 64}
    (facts,) = train_group([run("memorization", task={"vocab_size": 32}, lr=1e-2, epochs=8, **easy)], CPU)
    assert facts.accuracy > 0.98
    hard = run("compression", "delta_net", task={"vocab_size": 6}, length=4, lr=3e-3, epochs=40, **easy)
    (held,) = train_group([hard], CPU)
    assert held.accuracy > 0.95  # a guess: 0.2


TWO = {
    "members": {"attention": None, "delta_net": None},
    "widths": [8],
    "lrs": [1e-3, 1e-2],
    "tasks": ["memorization", {"name": "induction", "vocab_size": 8, "run": {"length": 8, "train_examples": 48}}],
    "run": {"train_examples": 32, "validation_examples": 8, "test_examples": 8, "batch_size": 16, "epochs": 1},
}


def test_a_sweep_over_tasks_trains_every_member_on_each(tmp_path):
    sweep = build(Sweep, TWO)
    assert [(c.name, c.task_label, c.length, c.train_examples) for c in sweep.configs()[::2]] == [
        ("attention", "memorization", 32, 32),
        ("delta_net", "memorization", 32, 32),
        ("attention", "induction, vocab_size 8, length 8", 8, 48),
        ("delta_net", "induction, vocab_size 8, length 8", 8, 48),
    ]
    runs = run_sweep(sweep, tmp_path, partial(train_on, [CPU]))
    assert len(runs) == 8
    assert runs["task"].tolist()[::4] == ["memorization", "induction, vocab_size 8, length 8"]
    at_two = replace(sweep, lengths=(16, 32), tasks=("memorization",))
    assert [c.task_label for c in at_two.configs()[::4]] == ["memorization, length 16", "memorization"]


def test_a_task_may_be_there_with_several_numbers_of_examples(tmp_path):
    """What the run has for a task alone tells it from the same task: in the table, and in what is best of each."""
    few, more = ({"name": "memorization", "run": {"train_examples": n, "epochs": 2}} for n in (16, 48))
    sweep = build(Sweep, TWO | {"tasks": ["memorization", few, more], "members": {"attention": None}})
    runs = run_sweep(sweep, tmp_path, partial(train_on, [CPU]))
    first, *others = runs["task"].unique().tolist()
    assert first == "memorization"
    assert others == ["memorization, train_examples 16, epochs 2", "memorization, train_examples 48, epochs 2"]
    assert best_by_task(runs)["task"].tolist() == [first, *others]
    assert [config.task_label for config in sweep.configs()] == ["memorization"] * 6  # and so the runs' keys
    alone = replace(sweep, tasks=(few,))
    assert set(alone.task_labels().values()) == {"memorization"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tasks": ["mad"]}, "tasks.yaml: task 'mad': unknown; known are in_context_recall"),
        ({"tasks": [3]}, "tasks.yaml: task 3: unknown"),
        (
            {"tasks": ["induction", {"name": "induction", "vocab_size": 20}]},
            "tasks.yaml: tasks: induction is listed twice",
        ),
        (
            {"tasks": ["memorization", {"name": "memorization", "run": {"train_examples": "32"}}]},
            "tasks.yaml: tasks: memorization is listed twice",
        ),
        ({"tasks": [{"name": "induction", "run": {"lr": 1}}]}, "task induction: run: lr is set by members"),
        ({"tasks": [{"name": "induction", "run": 3}]}, "task induction: run: expected KEY: VALUE lines"),
        ({"pairs": [4]}, "pairs: they apply to MQAR only"),
        ({"run": {"fill": 0}}, "pairs, vocab_size, alpha, fill apply to MQAR only"),
        ({"run": {"task": "induction"}}, "run: task is set by"),
    ],
)
def test_a_sweep_over_tasks_that_is_wrong_is_one_line(change, said, tmp_path):
    path = tmp_path / "tasks.yaml"
    path.write_text(yaml.safe_dump(TWO | change))
    with pytest.raises(ArgapError, match=said):
        load_sweep(path)


def test_a_task_is_trained_on_from_the_command_line(tmp_path):
    sizes = ["train_examples=32", "validation_examples=8", "test_examples=8", "batch_size=16", "epochs=1"]
    flags = [part for size in sizes for part in ("--set", size)]
    task = ["--task", "{name: noisy_recall, noise: 0.4}", "--width", "8", "--lr", "1e-3", "--device", "cpu", "--json"]
    result = CliRunner().invoke(app, ["synthetics", "train", "attention", *task, *flags, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    (told,) = json.loads(result.stdout)
    assert told["config"]["task"]["noise"] == 0.4
    assert told["config"]["length"] == 128
    for text, said in (("mad", "task 'mad': unknown"), ("{name: x", r"task \{name: x: expected a name or")):
        refused = CliRunner().invoke(app, ["synthetics", "train", "attention", "--task", text])
        assert refused.exit_code == 1
        with pytest.raises(ArgapError, match=said):
            raise refused.exception or AssertionError(refused.output)
