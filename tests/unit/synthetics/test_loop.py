"""Training a group of runs: side by side, until solved, interrupted, and on every task."""

import itertools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from argap.cli import app
from argap.errors import ArgapError
from argap.files.configs import build
from argap.synthetics.tasks.registry import TASKS
from argap.synthetics.training import loop
from argap.synthetics.training.config import RunConfig
from argap.synthetics.training.loop import train_group
from argap.synthetics.training.models import MEMBERS, member_from
from argap.synthetics.training.supervision import supervision
from argap.synthetics.training.trainer import Trainer
from tests.builders.sweeps import CPU, TINY, task_run

EXAMPLES = supervision(TINY, "train")


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
    easy = replace(TINY, vocab_size=8, stop_at=1e-9, lr=1e-2)  # any right answer will do
    hard = replace(easy, stop_at=1.0)
    found = {r.config.key: r for r in train_group([easy, hard], CPU)}
    assert (found[hard.key].stopped, found[hard.key].steps) == ("steps", TINY.steps)
    assert (found[easy.key].stopped, found[easy.key].steps) == ("solved", TINY.steps_per_epoch)
    ended = {r.config.key: r for r in train_group([easy, hard], CPU, first_ends=True)}
    assert (ended[hard.key].stopped, ended[hard.key].steps) == ("sibling", TINY.steps_per_epoch)
    assert [result.group for result in (*found.values(), *ended.values())] == [2] * 4


def test_a_run_without_a_goal_takes_all_its_steps():
    (result,) = train_group([replace(TINY, vocab_size=8, stop_at=None, lr=1e-2)], CPU)
    assert (result.stopped, result.steps) == ("steps", TINY.steps)
    assert build(RunConfig, json.loads(json.dumps(result.config.as_json()))) == result.config


@pytest.mark.parametrize(("evaluations", "steps"), [(1, [5]), (2, [2, 4, 5]), (9, [1, 2, 3, 4, 5])])
def test_a_run_is_validated_so_often_in_an_epoch_and_at_its_end(evaluations, steps):
    config = replace(TINY, train_examples=80, epochs=1, evaluations=evaluations)  # 5 steps
    (result,) = train_group([config], CPU)
    assert [step for step, _ in result.curve] == steps


def test_runs_that_are_stopped_have_no_result():
    steps = itertools.count(1)
    assert train_group([TINY], CPU, stop=lambda: next(steps) == TINY.steps) == []
    assert len(train_group([TINY], CPU, stop=lambda: next(steps) == 0)) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler, about torch's own code
def test_compiled_layers_train_alike_and_are_compiled_once_for_all_runs():
    configs = [replace(TINY, member=MEMBERS["base_conv"], lr=lr) for lr in (1e-3, 1e-2)]
    plain, compiled = ([Trainer(config, EXAMPLES, CPU, compiled=c) for config in configs] for c in (False, True))
    counters = torch._dynamo.utils.counters["stats"]
    counters.clear()  # of earlier tests
    for _ in range(4):
        for trainer in (*plain, *compiled):
            trainer.step()
    for one, other in zip(plain, compiled, strict=True):
        torch.testing.assert_close(one.loss, other.loss, rtol=1e-5, atol=0)
        assert (one.correct(EXAMPLES) == other.correct(EXAMPLES)).mean() > 0.99
    assert counters["unique_graphs"] == 2  # a short and a long convolution


@pytest.mark.parametrize("name", TASKS)
def test_every_task_is_trained_on_and_its_run_is_known_by_its_record(name):
    config = task_run(name)
    (result,) = train_group([config], CPU)
    assert result.steps == 8
    record = json.loads(json.dumps(result.as_json()))
    assert set(record["config"]) & {"vocab_size", "alpha", "fill"} == set()
    assert build(RunConfig, record["config"]).key == config.key
    for rows in record["slices"].values():
        right = sum(row["n"] * row["accuracy"] for row in rows)
        assert right / sum(row["n"] for row in rows) == pytest.approx(result.accuracy)


def test_weights_are_tested_at_multiples_of_the_length():
    member = member_from("delta_net", {"mixers": ["delta_net"]})
    config = replace(task_run("copy"), member=member, multiples=(1, 4))
    (result,) = train_group([config], CPU)
    assert [(row.length, row.n) for row in result.longer] == [(32, 20 * 15), (128, 20 * 63)]
    for multiple, row in zip(config.multiples, result.longer, strict=True):
        trainer = Trainer(config, supervision(config, "train"), CPU)
        assert trainer.correct(supervision(config, "test", multiple)).size == row.n
        assert row.whole <= row.accuracy < 0.3
    record = json.loads(json.dumps(result.as_json()))
    assert build(RunConfig, record["config"]) == config
    assert len(record["longer"]) == 2
    plain = replace(config, multiples=())
    assert "multiples" not in plain.as_json()
    assert plain.key != config.key


@pytest.mark.parametrize(
    ("name", "member", "said"),
    [
        ("copy", "attention", "attention: multiples 64; expected .* no learned positions, which are not trained"),
        ("compression", "gla", "gla: multiples 64; expected a task other than mqar and compression"),
        ("ngram_lookup", "gla", "gla: ngram_lookup at 64 x 32: 2040 tokens of 4 symbols repeat most 3-grams"),
    ],
)
def test_multiples_that_cannot_be_tested_are_refused(name: str, member: str, said: str):
    task = {"vocab_size": 6} if name == "ngram_lookup" else {}
    with pytest.raises(ArgapError, match=said):
        task_run(name, member, task=task, multiples=(64,))


def test_vectors_are_recalled():
    """By their products alone, without positions: keys are drawn anew for each example."""
    task = {"vocab_size": 8, "size": 16}
    member = member_from("attention", {"learned_positions": False})
    config = task_run("continuous_mqar", task=task, length=8, width=32, lr=1e-2, train_examples=1024)
    (result,) = train_group([replace(config, member=member, batch_size=64, epochs=8)], CPU)
    assert result.accuracy > 0.9  # a guess: 0.125


def test_a_delta_net_learns_to_recall_in_context():
    """8 tokens, 32 of them in a row: every answer of a test set, after 192 steps at most, with one head and the short
    convolution of DeltaNet's language models. (Without it, as the member has it, 192 steps are too few.)"""
    config = task_run("in_context_recall", "delta_net", task={"vocab_size": 8}, width=32, lr=3e-3, train_examples=1024)
    member = member_from("delta_net", {"mixers": [{"name": "delta_net", "heads": 1}]})
    (result,) = train_group([replace(config, member=member, batch_size=64, epochs=12)], CPU)
    assert result.accuracy > 0.98


def test_weights_hold_facts_and_a_vector_holds_tokens():
    easy: dict[str, Any] = {"width": 32, "train_examples": 512, "batch_size": 64}
    at_key = {"vocab_size": 32, "read_at": "key"}  # at the marker, 64 steps are too few
    (facts,) = train_group([task_run("memorization", task=at_key, lr=1e-2, epochs=8, **easy)], CPU)
    assert facts.accuracy > 0.98
    hard = task_run("compression", "delta_net", task={"vocab_size": 6}, length=4, lr=3e-3, epochs=40, **easy)
    member = member_from("delta_net", {"mixers": [{"name": "delta_net", "heads": 1}]})
    (held,) = train_group([replace(hard, member=member)], CPU)
    assert held.accuracy > 0.95  # a guess: 0.2


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


SIZES = {"train_examples": 32, "validation_examples": 8, "test_examples": 8, "batch_size": 16, "epochs": 1}


NEVER = 120.0


Slow = Callable[[Callable[[], None]], list[str]]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    """Makes examples take `NEVER`, calls what is given when they are begun, and lists the splits that were made."""
    made: list[str] = []
    over = threading.Event()

    def patched(begun: Callable[[], None]) -> list[str]:
        supervision = loop.supervision

        def slowly(config: RunConfig, split: str):
            if split == "train":
                begun()
            over.wait(NEVER)
            made.append(split)
            return supervision(config, split)

        monkeypatch.setattr(loop, "supervision", slowly)
        return made

    yield patched
    over.set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_examples_are_made_ends_the_command(number: signal.Signals, slow: Slow, tmp_path) -> None:
    made = slow(lambda: os.kill(os.getpid(), number))
    sizes = [part for key, value in SIZES.items() for part in ("--set", f"{key}={value}")]
    flags = ["--task", "memorization", "--width", "8", "--lr", "1e-3", "--device", "cpu", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["synthetics", "train", "attention", *flags, *sizes])
    assert result.exit_code == 130, result.output
    assert made == []
    assert list(tmp_path.iterdir()) == []


def test_what_making_examples_raises_is_raised() -> None:
    one = {"symbols": 1, "alphabet": (1, 1), "edges": (1, 1), "states": (1, 1), "self_loops": True}
    task = {"name": "automata", **one}
    config = RunConfig("attention", MEMBERS["attention"], 8, 16, (), lr=1e-3, task=task, **SIZES)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgapError, match="no language of the split heldout"):
        loop.train_group([config], torch.device("cpu"))
