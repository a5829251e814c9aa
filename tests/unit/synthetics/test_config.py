"""The configuration of a run: the paper's protocol, the tasks, and what is refused."""

import json
import math
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from argap.errors import ArgapError
from argap.files.configs import build
from argap.synthetics.sweeps.sweep import Sweep
from argap.synthetics.training.config import LEARNING_RATES, RunConfig, learning_rate
from tests.builders.sweeps import SMALL, TINY, task_run


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
    # Three tenths of 8 steps are rounded up to 3.
    np.testing.assert_allclose([learning_rate(k, replace(config, warmup=0.3)) for k in range(4)], [1 / 3, 2 / 3, 1, 1])
    assert learning_rate(7, replace(config, warmup=0.99)) == 1


def test_a_config_survives_json():

    again = build(RunConfig, json.loads(json.dumps(asdict(TINY))))
    assert again.key == TINY.key
    assert replace(TINY, lr=2e-3).key != TINY.key


def test_a_key_tells_the_run_and_is_the_name_of_a_file():
    of_a_class = replace(TINY, name="mixers.own:My_Mixer", pairs=(1, 2))
    assert of_a_class.key.startswith("mixers-own-My_Mixer-n16-d1-2-w8-lr1.0e-03-s0-")
    assert task_run("noisy_recall", seed=3).key.startswith("attention-n32-noisy-recall-w16-lr1.0e-03-s3-")


def test_a_run_is_of_its_task_and_of_all_that_the_task_says():
    assert task_run("noisy_recall").key == task_run("noisy_recall", task={"noise": 0.2}).key  # the preset's
    assert task_run("noisy_recall").key != task_run("noisy_recall", task={"noise": 0.4}).key
    assert task_run("noisy_recall", task={"noise": 0.4}).task_label == "noisy_recall, noise 0.4, length 32"
    assert task_run("noisy_recall", length=128).task_label == "noisy_recall"
    assert task_run("memorization").vocabulary == 256
    assert task_run("automata").vocabulary == 19


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
        task_run("noisy_recall", task=change)
    assert "\n" not in str(raised.value)


def test_what_is_mqars_is_refused_for_other_tasks():
    changes: list[dict[str, Any]] = [{"alpha": 0.5}, {"fill": 0}, {"vocab_size": 64}, {"layout": "zoology"}]
    for own in changes:
        with pytest.raises(ArgapError, match="pairs, vocab_size, alpha, fill, layout apply to MQAR only"):
            task_run("noisy_recall", **own)
    with pytest.raises(ArgapError, match="apply to MQAR only"):
        replace(task_run("noisy_recall"), pairs=(2,))


def test_a_run_needs_a_batch_of_examples_and_they_fit_in_memory():
    assert replace(TINY, train_examples=16).steps == 2
    with pytest.raises(ArgapError, match="attention: 15 training examples; expected at least one batch, 16"):
        replace(TINY, train_examples=15)
    assert replace(TINY, length=256, test_examples=2**26).test_examples == 2**26
    with pytest.raises(ArgapError, match="attention: test: 67,108,865 examples of length 256 are 17,179"):
        replace(TINY, length=256, test_examples=2**26 + 1)


def test_a_run_has_pairs_or_a_task():
    (config,) = build(Sweep, SMALL).configs()
    with pytest.raises(ArgapError, match="attention: no pairs; expected at least one number of KV pairs, or a task"):
        replace(config, pairs=())
