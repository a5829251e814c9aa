"""Every task's answers follow from its inputs: an oracle of a few lines is always right."""

import hashlib
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest

from argap.errors import ArgapError
from argap.synthetics.tasks import context_recall, fuzzy_recall, induction
from argap.synthetics.tasks.context_recall import ContextRecallConfig
from argap.synthetics.tasks.examples import IGNORED, Examples
from argap.synthetics.tasks.fuzzy_recall import FuzzyRecallConfig
from argap.synthetics.tasks.induction import InductionConfig
from argap.synthetics.tasks.mad import (
    CompressionConfig,
    MemorizationConfig,
    SelectiveCopyConfig,
    build_compression,
    build_memorization,
    build_selective_copy,
)
from argap.synthetics.tasks.registry import TASKS as BY_NAME
from argap.synthetics.tasks.registry import resolve_task

Oracle = Callable[[list[int], int, Any], int]
"""The tokens before the label, all tokens of the example's length, and the configuration, to the answer."""


def in_context(before: list[int], length: int, config: ContextRecallConfig) -> int:
    pairs = dict(zip(before[::2], before[1::2], strict=False))
    return pairs[before[-1]]


def what_followed(before: list[int], length: int, config: InductionConfig) -> int:
    assert before[-1] == config.vocab_size - 1
    return before[before.index(before[-1]) + 1]


def copied(before: list[int], length: int, config: SelectiveCopyConfig) -> int:
    blank, copy = config.vocab_size - 2, config.vocab_size - 1
    start = before.index(copy)
    return [token for token in before[:start] if token != blank][len(before) - start - 1]


def known_fact(before: list[int], length: int, config: MemorizationConfig) -> int:
    return int(config.facts[before[-1]])


def fuzzy(before: list[int], length: int, config: FuzzyRecallConfig) -> int:
    half = (config.vocab_size - 1) // 2
    runs: list[list[int]] = []
    for token in before:
        if token == config.vocab_size - 1:  # padding
            continue
        if not runs or (token < half) != (runs[-1][0] < half):
            runs.append([])
        runs[-1].append(token)
    said = [] if len(runs) % 2 else runs.pop()  # of the value, so far
    earlier = {tuple(key): value for key, value in zip(runs[:-1:2], runs[1::2], strict=True)}
    return earlier[tuple(runs[-1])][len(said)]


ORACLES: dict[type, tuple[Any, Oracle]] = {
    ContextRecallConfig: (context_recall.build, in_context),
    InductionConfig: (induction.build, what_followed),
    SelectiveCopyConfig: (build_selective_copy, copied),
    MemorizationConfig: (build_memorization, known_fact),
    FuzzyRecallConfig: (fuzzy_recall.build, fuzzy),
}
NOISY = ContextRecallConfig(200, vocab_size=32, noise_vocab_size=16, noise=0.2)
TASKS: dict[str, tuple[Any, str]] = {
    "in-context recall": (ContextRecallConfig(200), "aa817ed5ccb4f15b"),
    "noisy recall": (NOISY, "917bbf2b9250f591"),
    "associative recall": (ContextRecallConfig(200, length=20, vocab_size=21, asked="last"), "2ee8f56e64907dfe"),
    "shortest recall": (ContextRecallConfig(50, length=4, vocab_size=6), "a4e53d9e774d0313"),
    "induction heads": (InductionConfig(300), "73fd58e95603d4c7"),
    "shortest induction": (InductionConfig(50, length=4, vocab_size=6), "12eabc7b4ee6e3a5"),
    "selective copy": (SelectiveCopyConfig(100), "d79be99e183f9ae8"),
    "full copy": (SelectiveCopyConfig(100, length=9, tokens=4, vocab_size=6), "2411fa458ddc6c88"),
    "memorization": (MemorizationConfig(100), "e3a873937b78a2b1"),
    "fuzzy recall": (FuzzyRecallConfig(200), "d56dc17c3ae288d2"),
    "padded on the right": (FuzzyRecallConfig(200, padding="right"), "4227025facad44e0"),
    "full keys": (FuzzyRecallConfig(200, longest=2, short_keys=False, padding="right"), "1df9da72587ea13d"),
    "shortest fuzzy recall": (FuzzyRecallConfig(200, length=12, vocab_size=7, padding="right"), "42f3768cfb064006"),
}


def digest(found: Examples) -> str:
    parts = (found.inputs, found.labels, *found.slices.values())
    return hashlib.sha256(b"".join(x.astype("<i4").tobytes() for x in parts)).hexdigest()[:16]


@pytest.mark.parametrize("name", TASKS)
def test_an_oracle_is_always_right(name: str) -> None:
    config, golden = TASKS[name]
    build, oracle = ORACLES[type(config)]
    found = build(config, 3)
    assert found.inputs.shape == found.labels.shape == (config.examples, config.length)
    assert found.inputs.min() >= 0
    assert found.inputs.max() < config.vocab_size
    asked = found.labels != IGNORED
    assert asked.any(axis=1).all()  # every example asks
    assert not asked[:, 0].any()
    predicted = np.full_like(found.labels, -1)
    for row, t in zip(*np.nonzero(asked), strict=True):
        predicted[row, t] = oracle(found.inputs[row, :t].tolist(), config.length, config)
    assert (predicted == found.labels)[asked].all()
    for kind in found.slices.values():
        assert ((kind > 0) == asked).all()
    assert digest(found) == golden


@pytest.mark.parametrize("name", TASKS)
def test_another_seed_is_other_data(name: str) -> None:
    config, _ = TASKS[name]
    build, _ = ORACLES[type(config)]
    assert digest(build(config, 0)) != digest(build(config, 1))


def test_recall_asks_for_every_key_that_came_before() -> None:
    config = ContextRecallConfig(300, length=40, vocab_size=24, noise_vocab_size=8, noise=0.3)
    found = context_recall.build(config, 5)
    noise = 0
    for tokens, labels, occurrences in zip(
        found.inputs.tolist(), found.labels.tolist(), found.slices["occurrences"].tolist(), strict=True
    ):
        seen: dict[int, int] = {}
        means: dict[int, int] = {}
        for t in range(0, 40, 2):
            key, value = tokens[t], tokens[t + 1]
            if key >= 16:
                noise += 1
                assert value >= 16
                assert labels[t + 1] == IGNORED
                continue
            assert key < 8 <= value < 16
            assert means.setdefault(key, value) == value
            assert labels[t + 1] == (value if key in seen else IGNORED)
            assert occurrences[t + 1] == seen.get(key, 0)
            seen[key] = seen.get(key, 0) + 1
            assert labels[t] == IGNORED
    # 20 pairs, of which the last and one other are never noise.
    assert noise / (300 * 20) == pytest.approx(0.3 * 18 / 20, abs=0.02)


def test_the_last_key_is_any_of_those_that_came() -> None:
    """Each of the distinct ones alike, however often it came."""
    config = ContextRecallConfig(20_000, length=8, vocab_size=4, asked="last")
    found = context_recall.build(config, 1)
    # Of the two keys, 0 came twice and 1 once: the last is 0 as often as 1.
    both = (found.inputs[:, 0:6:2] == 0).sum(axis=1) == 2
    assert found.inputs[both, 6].mean() == pytest.approx(0.5, abs=0.02)


def test_copied_tokens_stand_anywhere() -> None:
    config = SelectiveCopyConfig(20_000, length=13, tokens=2, vocab_size=4)
    found = build_selective_copy(config, 2)
    places = found.inputs[:, :10] < 2
    assert (places.sum(axis=1) == 2).all()
    assert abs(places.mean(axis=0) - 0.2).max() < 0.015
    assert (found.inputs[:, 10] == 3).all()
    assert (found.inputs[:, 11:] == 2).all()  # blanks: the answer is not shown


def test_facts_are_the_same_for_every_seed_of_examples() -> None:
    config = MemorizationConfig(50, vocab_size=20)
    assert len(set(config.facts)) == 9
    assert set(config.facts) <= set(range(9, 19))
    assert (MemorizationConfig(50, vocab_size=20, facts_seed=1).facts != config.facts).any()
    for seed in (0, 1):
        found = build_memorization(config, seed)
        keys, values = found.inputs[:, ::2], found.labels[:, 1::2]
        assert all(config.facts[key] == value for key, value in zip(keys.flat, values.flat, strict=True))
        assert (found.inputs[:, 1::2] == 19).all()


def test_compression_asks_for_the_input_itself() -> None:
    found = build_compression(CompressionConfig(100), 0)
    assert (found.inputs[:, -1] == 15).all()
    assert (found.inputs[:, :-1] < 15).all()
    assert (found.labels[:, :-1] == found.inputs[:, :-1]).all()
    assert (found.labels[:, -1] == IGNORED).all()
    assert found.slices["position"][7].tolist() == [*range(1, 32), 0]
    assert digest(found) == "f288a552e5321174"


def test_fuzzy_keys_have_the_lengths_asked_for() -> None:
    for short, sizes in ((True, {1, 2, 3}), (False, {3})):
        sides: list[tuple[Literal["left", "right"], int, int]] = [("left", 0, -1), ("right", -1, 1)]
        for padding, end, sign in sides:
            found = fuzzy_recall.build(FuzzyRecallConfig(300, short_keys=short, padding=padding), 0)
            assert set(np.unique(found.slices["tokens"])) - {0} == sizes
            filled = found.inputs == 15
            assert filled[:, end].any()  # filled up at this end, never inside
            assert (sign * np.diff(filled.astype(int), axis=1) >= 0).all()
            if padding == "left":
                assert (found.labels[:, -1] != IGNORED).all()  # as in MAD, an example ends with its last answer


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ContextRecallConfig(1, length=5), "length 5; expected an even number of at least 4"),
        (
            lambda: ContextRecallConfig(1, vocab_size=5, noise_vocab_size=4),
            "noise_vocab_size 4; expected at least 0 noise tokens",
        ),
        (lambda: ContextRecallConfig(1, noise_vocab_size=-4), "noise_vocab_size -4; expected at least 0 noise tokens"),
        (lambda: ContextRecallConfig(1, noise=0.2), "noise 0.2 of 0 tokens"),
        (lambda: ContextRecallConfig(1, noise_vocab_size=4, noise=1.0), "noise 1.0 of 4 tokens"),
        (lambda: MemorizationConfig(1, length=5), "length 5; expected an even number"),
        (lambda: InductionConfig(1, length=3), "length: expected at least 4, found 3"),
        (lambda: SelectiveCopyConfig(1, length=32), "need 33 positions, the length is 32"),
        (lambda: SelectiveCopyConfig(1, tokens=0), "tokens: expected 1 to 1,000,000,000, found 0"),
        (lambda: MemorizationConfig(1, facts_seed=-1), "facts_seed: expected 0 to .*, found -1"),
        (lambda: CompressionConfig(1, vocab_size=2), "vocab_size: expected at least 3, found 2"),
        (lambda: FuzzyRecallConfig(1, longest=0), "longest 0, vocab_size 16; expected keys of at least 1 token"),
        (lambda: FuzzyRecallConfig(1, length=11), "need 12 tokens, the length is 11"),
        (lambda: FuzzyRecallConfig(1, vocab_size=6), "longest 3, vocab_size 6; expected .* at least vocab_size 7"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ArgapError, match=said):
        make()


@pytest.mark.parametrize("name", BY_NAME)
def test_a_data_set_has_an_example(name: str) -> None:
    with pytest.raises(ArgapError, match=r"^examples: expected 1 to 1,000,000,000, found 0"):
        BY_NAME[name].config(0)


def test_the_smallest_sizes_can_be_built() -> None:
    one_key = ContextRecallConfig(5, length=4, vocab_size=3, noise_vocab_size=1, noise=0.5)
    assert (context_recall.build(one_key, 0).inputs == [0, 1, 0, 1]).all()
    one_token = FuzzyRecallConfig(5, length=4, longest=1, vocab_size=3)
    assert (fuzzy_recall.build(one_token, 0).inputs == [0, 1, 0, 1]).all()
    assert MemorizationConfig(1, vocab_size=3).facts.tolist() == [1]
    assert len(MemorizationConfig(1, vocab_size=21).facts) == 10  # of 20 tokens, half are keys


@pytest.mark.parametrize("name", BY_NAME)
def test_a_length_that_does_not_fit_is_told_once_and_in_the_words_of_the_run(name: str) -> None:
    """Its configuration is tried with an example of one's own, which nobody asked for."""
    with pytest.raises(ArgapError) as raised:
        resolve_task(name, -8)
    before, _, said = str(raised.value).partition(": ")
    assert before == f"task {name}"
    assert "length" in said
    assert "-8" in said
    for word in ("example", name.replace("_", " "), "context recall"):
        assert word not in said


def test_a_task_has_the_length_of_its_configuration_by_default() -> None:
    assert [BY_NAME[name].length for name in ("memorization", "noisy_recall", "automata")] == [32, 128, 512]


def test_an_unknown_task_is_told_that_mqar_has_no_name() -> None:
    with pytest.raises(
        ArgapError, match=r"'mqar': unknown; known are in_context_recall, .*; without a task it is mqar"
    ):
        resolve_task("mqar", 64)
