"""In-context language learning: each example is written in a language of its own, that of a random automaton
(RegBench, arXiv 2401.12973; the ranges of sizes follow it, the way to hold languages out is ours).

Legend: E examples, N tokens, V vocabulary.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from argap.errors import ArgapError
from argap.synthetics.examples import IGNORED, Examples, generator

HELD_OUT = 8
"""One language in so many is held out, for validation and test alike."""
DRAWS = 4096
"""Automata tried for one example: where languages are many, none of them is held out with chance (7/8)^4096."""

Transitions = tuple[dict[int, int], ...]
"""For each state the state that each symbol leads to; the first state is the start."""


@dataclass(frozen=True)
class AutomataConfig:
    """One data set. Raises `ArgapError` for ranges that are none."""

    examples: int
    length: int = 512
    symbols: int = 18
    """The vocabulary has one token more, which separates strings."""
    split: Literal["train", "heldout"] = "train"
    """No language of one is in the other, whatever the seeds. Validation and test both have ``heldout``, each from
    seeds of its own: a language may be in both."""
    states: tuple[int, int] = (4, 12)
    """Fewest and most, before states that cannot be told apart are made one."""
    alphabet: tuple[int, int] = (4, 18)
    """Fewest and most symbols of a language."""
    edges: tuple[int, int] = (1, 4)
    """Fewest and most ways on from a state, all equally likely."""
    longest: int = 50
    """Symbols of the longest string; all lengths from 1 are alike."""

    def __post_init__(self) -> None:
        for name, (low, high) in (("states", self.states), ("alphabet", self.alphabet), ("edges", self.edges)):
            if not 1 <= low <= high:
                raise ArgapError(f"{name} {low} to {high}; expected 1 or more, the fewest first")
        if self.alphabet[1] > self.symbols or self.edges[1] > self.alphabet[0]:
            raise ArgapError(
                f"{self.edges[1]} edges from {self.alphabet[0]} to {self.alphabet[1]} of {self.symbols} "
                "symbols; expected no more edges than symbols"
            )
        if self.examples < 1:
            raise ArgapError(f"{self.examples} examples; expected at least 1")
        if self.length < 2 or self.longest < 1:
            raise ArgapError(
                f"length {self.length}, longest {self.longest}; expected a length from 2, strings from 1 symbol"
            )

    @property
    def vocab_size(self) -> int:
        """V: the symbols and the separator, which is the last."""
        return self.symbols + 1


def build(config: AutomataConfig, seed: int) -> Examples:
    """The examples of a seed: the separator, a string, the separator, a string, until the example is full.

    Every symbol is labelled, separators are not (a string may end anywhere). As the answer is often one of
    several, count as right what `valid_next` allows. ``slices["edges"]`` is how many symbols could stand
    there, ``slices["seen"]`` how often the string so far stood in the example before and went on, plus 1:
    above 1 the answer can be read off.
    """
    separator = config.symbols
    inputs = np.full((config.examples, config.length), separator, dtype=np.int32)
    edges, seen = np.zeros_like(inputs), np.zeros_like(inputs)
    for row, (automaton, walk) in enumerate(_examples(config, seed)):
        prefix, count = (), {}
        for t, (state, token) in enumerate(walk):
            inputs[row, t] = token
            if token == separator:
                prefix = ()
                continue
            edges[row, t] = len(automaton[state])
            seen[row, t] = count[prefix] = count.get(prefix, 0) + 1
            prefix = (*prefix, token)
    labels = np.where(edges > 0, inputs, IGNORED).astype(np.int32)
    return Examples(inputs, labels, {"edges": edges, "seen": seen})


def valid_next(config: AutomataConfig, seed: int) -> np.ndarray:
    """Which tokens may stand at each label of `build`, bool ``[E, N, V]``."""
    allowed = np.zeros((config.examples, config.length, config.vocab_size), dtype=bool)
    for row, (automaton, walk) in enumerate(_examples(config, seed)):
        for t, (state, token) in enumerate(walk):
            if token != config.symbols:
                allowed[row, t, list(automaton[state])] = True
    return allowed


def draw_automaton(rng: np.random.Generator, config: AutomataConfig) -> Transitions:
    """A random automaton of the configuration's split, in its smallest form.

    Raises `ArgapError` where `DRAWS` of them are all of the other split: narrow ranges have few languages.
    """
    for _ in range(DRAWS):
        states, letters = (rng.integers(low, high + 1) for low, high in (config.states, config.alphabet))
        alphabet = rng.permutation(config.symbols)[:letters]
        drawn = []
        for _ in range(states):
            ways = rng.integers(config.edges[0], config.edges[1] + 1)
            symbols, targets = rng.permutation(alphabet)[:ways], rng.integers(0, states, ways)
            drawn.append(dict(zip(symbols.tolist(), targets.tolist(), strict=True)))
        automaton = smallest(tuple(drawn))
        if held_out(automaton) == (config.split == "heldout"):
            return automaton
    raise ArgapError(
        f"automata: no language of the split {config.split} in {DRAWS:,} automata of {_range(config.states)} states, "
        f"{_range(config.alphabet)} of {config.symbols} symbols and {_range(config.edges)} edges; expected wider ranges"
    )


def smallest(automaton: Transitions) -> Transitions:
    """The automaton of the same language with the fewest states, in the order in which they are reached: two
    automata have one language exactly where this is equal."""
    kind = [0] * len(automaton)
    while True:  # states differ where their ways on lead to states that differ (Moore)
        signs = [tuple(sorted((symbol, kind[to]) for symbol, to in ways.items())) for ways in automaton]
        numbered = {sign: number for number, sign in enumerate(dict.fromkeys(signs))}
        refined = [numbered[sign] for sign in signs]
        if len(numbered) == len(set(kind)):
            break
        kind = refined
    order, found = {kind[0]: 0}, [0]
    for state in found:
        for _, to in sorted(automaton[state].items()):
            if kind[to] not in order:
                order[kind[to]] = len(order)
                found.append(to)
    return tuple({symbol: order[kind[to]] for symbol, to in sorted(automaton[state].items())} for state in found)


def held_out(automaton: Transitions) -> bool:
    """Whether a language, given by its smallest automaton, is for validation and test: its hash decides."""
    text = repr([sorted(ways.items()) for ways in automaton])
    return hashlib.sha256(text.encode()).digest()[0] % HELD_OUT == 0


def _range(ends: tuple[int, int]) -> str:
    return f"{ends[0]} to {ends[1]}"


def _examples(config: AutomataConfig, seed: int) -> Iterator[tuple[Transitions, list[tuple[int, int]]]]:
    """Of each example the automaton, and for each token the state before it."""
    rng = generator(seed)
    for _ in range(config.examples):
        automaton = draw_automaton(rng, config)
        ways = [list(each) for each in automaton]
        walk: list[tuple[int, int]] = []
        while len(walk) < config.length:
            walk.append((0, config.symbols))
            state = 0
            for chance in rng.random(rng.integers(1, config.longest + 1)):
                symbol = ways[state][int(chance * len(ways[state]))]
                walk.append((state, symbol))
                state = automaton[state][symbol]
        yield automaton, walk[: config.length]
