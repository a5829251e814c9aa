"""Languages of random automata: drawn, told apart, held out, and predictable from what was read."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from argap.errors import ArgapError
from argap.synthetics.tasks.automata import (
    HELD_OUT,
    AutomataConfig,
    Transitions,
    build,
    draw_automaton,
    is_held_out,
    minimize,
    valid_next,
)
from argap.synthetics.tasks.examples import IGNORED


def language(automaton: Transitions, symbols: int, longest: int) -> set[tuple[int, ...]]:
    """All strings of ``longest`` symbols that it can walk."""
    found = set()
    for word in product(range(symbols), repeat=longest):
        state: int | None = 0
        for symbol in word:
            state = None if state is None else automaton[state].get(symbol)
        if state is not None:
            found.add(word)
    return found


OLD: dict[str, Any] = {"strings": None, "self_loops": True}
"""Strings up to the end of the example, and transitions with independent targets."""


def test_an_example_has_ten_to_twenty_strings_of_an_automaton_without_self_loops() -> None:
    """RegBench's: section 3 of arXiv 2401.12973 and its code."""
    config = AutomataConfig(300, longest=10)
    found = build(config, 5)
    separators = found.inputs == config.symbols
    strings = (separators[:, :-1] & ~separators[:, 1:]).sum(axis=1)
    assert set(strings.tolist()) == set(range(10, 21))
    padding = np.diff(separators.astype(int), axis=1, append=1)
    for row in range(len(found.inputs)):
        last = int(np.flatnonzero(~separators[row])[-1])
        assert separators[row, last + 1 :].all()
        assert (found.labels[row, last + 1 :] == IGNORED).all()
        assert padding[row, last] == 1
    rng = np.random.default_rng(0)
    for _ in range(100):
        # Minimization may merge states, but never makes a state without two ways to itself out of distinct ones.
        drawn = draw_automaton(rng, AutomataConfig(1, states=(12, 12)))
        assert all(0 < len(ways) <= 4 for ways in drawn)


def test_transitions_lead_to_distinct_other_states(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("argap.synthetics.tasks.automata.minimize", lambda drawn: drawn)
    rng = np.random.default_rng(1)
    config = AutomataConfig(1, states=(2, 5), edges=(1, 4))
    reached: dict[int, set[int]] = {}
    for _ in range(400):
        drawn = draw_automaton(rng, config)
        for state, ways in enumerate(drawn):
            targets = list(ways.values())
            assert state not in targets
            assert len(set(targets)) == len(targets)
            if len(drawn) == 5:
                reached.setdefault(state, set()).update(targets)
    assert reached == {state: set(range(5)) - {state} for state in range(5)}
    old = [draw_automaton(rng, AutomataConfig(1, states=(2, 5), **OLD)) for _ in range(50)]
    assert any(state in ways.values() for drawn in old for state, ways in enumerate(drawn))


def test_a_string_seen_before_tells_what_may_follow() -> None:
    """An oracle that reads the example alone is always right where ``seen`` says so."""
    config = AutomataConfig(60, length=200, longest=20, **OLD)
    found, allowed = build(config, 4), valid_next(config, 4)
    read = 0
    for row, tokens in enumerate(found.inputs.tolist()):
        followed: dict[tuple[int, ...], list[int]] = {}
        prefix: tuple[int, ...] = ()
        for t, token in enumerate(tokens):
            if token == config.symbols:
                prefix = ()
                assert found.labels[row, t] == IGNORED
                assert found.slices["seen"][row, t] == 0
                assert not allowed[row, t].any()
                continue
            before = followed.setdefault(prefix, [])
            assert found.slices["seen"][row, t] == len(before) + 1
            if before:
                read += 1
                assert allowed[row, t, before[0]]
                if found.slices["edges"][row, t] == 1:
                    assert before[0] == token
            assert found.labels[row, t] == token
            assert allowed[row, t, token]
            assert allowed[row, t].sum() == found.slices["edges"][row, t]
            before.append(token)
            prefix = (*prefix, token)
        assert tokens[0] == config.symbols
    assert read > 1000


def test_the_smallest_form_has_the_language_and_is_unique() -> None:
    config = AutomataConfig(1, symbols=3, states=(1, 4), alphabet=(3, 3), edges=(1, 3), **OLD)
    rng = np.random.default_rng(1)
    by_language: dict[frozenset, Transitions] = {}
    for _ in range(150):
        drawn = tuple(
            {int(s): int(rng.integers(0, 4)) for s in rng.permutation(3)[: rng.integers(1, 4)]} for _ in range(4)
        )
        small = minimize(drawn)
        assert len(small) <= 4
        assert minimize(small) == small
        # Two automata of four states at most differ within 4 + 4 symbols; 7 tell those apart that differ.
        words = frozenset(language(drawn, 3, 7))
        assert language(small, 3, 7) == words
        assert by_language.setdefault(words, small) == small
    assert len(by_language) > 30
    assert draw_automaton(rng, config)


def test_equivalent_states_are_merged() -> None:
    # 1 and 2 both go on with 5 to 0; 3 is out of reach.
    assert minimize(({7: 1, 8: 2}, {5: 0}, {5: 0}, {7: 3})) == ({7: 1, 8: 1}, {5: 0})
    assert minimize(({1: 1}, {1: 2}, {1: 0})) == ({1: 0},)  # one symbol for ever


def test_no_language_is_in_both_splits() -> None:
    sizes = {"symbols": 4, "states": (2, 3), "alphabet": (2, 4), "edges": (1, 2)}
    drawn = {
        split: {
            str(draw_automaton(rng, AutomataConfig(1, split=split, **sizes)))  # pyright: ignore[reportArgumentType]
            for rng in [np.random.default_rng(0)]
            for _ in range(400)
        }
        for split in ("train", "heldout")
    }
    assert not drawn["train"] & drawn["heldout"]
    config = AutomataConfig(1)
    rng = np.random.default_rng(2)
    assert not any(is_held_out(draw_automaton(rng, config)) for _ in range(50))
    assert all(is_held_out(draw_automaton(rng, AutomataConfig(1, split="heldout"))) for _ in range(20))
    assert 2 <= HELD_OUT <= 20


def test_ranges_without_a_language_of_the_split_are_refused() -> None:
    """Of one symbol there is one language, and its hash puts it in training."""
    sizes = {"symbols": 1, "alphabet": (1, 1), "edges": (1, 1), "states": (1, 1), "self_loops": True}
    assert (build(AutomataConfig(2, length=4, **sizes), 0).labels[:, 1] == 0).all()
    said = "no language of the split heldout in 4,096 automata with 1 to 1 states, 1 to 1 of 1 symbols and 1 to 1 edges"
    with pytest.raises(ArgapError, match=said):
        build(AutomataConfig(2, length=4, split="heldout", **sizes), 0)


def test_sizes_are_those_asked_for() -> None:
    config = AutomataConfig(40, length=300, states=(3, 5), alphabet=(4, 6), edges=(2, 3), longest=7, **OLD)
    found, allowed = build(config, 0), valid_next(config, 0)
    edges = found.slices["edges"]
    assert set(np.unique(edges)) <= {0, 2, 3}
    assert (allowed.any(axis=1).sum(axis=1) <= 6).all()  # symbols of an example
    for tokens in found.inputs:
        cuts = np.flatnonzero(tokens == config.symbols)
        assert np.diff(cuts).max() <= 8
        assert np.diff(cuts).min() >= 2


def test_all_edges_are_equally_likely() -> None:
    config = AutomataConfig(1, length=40_000, edges=(4, 4), states=(1, 1), alphabet=(4, 4), longest=9, **OLD)
    found = build(config, 3)
    counts = np.unique(found.labels[found.labels != IGNORED], return_counts=True)[1]
    assert len(counts) == 4
    assert abs(counts / counts.sum() - 0.25).max() < 0.01


def test_a_seed_fixes_the_data() -> None:
    config = AutomataConfig(5, length=24)
    assert np.array_equal(build(config, 1).inputs, build(config, 1).inputs)
    assert not np.array_equal(build(config, 1).inputs, build(config, 2).inputs)
    old = AutomataConfig(5, length=24, **OLD)
    assert build(old, 0).inputs[0, :12].tolist() == [18, 1, 8, 12, 12, 10, 10, 8, 8, 8, 8, 12]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"states": (3, 2)}, "states 3 to 2; expected a minimum of at least 1"),
        ({"alphabet": (4, 19)}, "4 edges from 4 to 19 of 18 symbols"),
        ({"states": (1, 4)}, "states 1 to 4; expected at least 2 without `self_loops`"),
        ({"strings": (3, 2)}, "strings 3 to 2; expected a minimum of at least 1"),
        ({"edges": (1, 5)}, "5 edges from 4 to 18 of 18 symbols"),
        ({"length": 1}, "length: expected at least 2, found 1"),
    ],
)
def test_invalid_ranges_are_refused(options: dict, said: str) -> None:
    with pytest.raises(ArgapError, match=said):
        AutomataConfig(**{"examples": 1, **options})
