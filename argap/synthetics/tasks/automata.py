"""In-context language learning: each example is drawn from its own regular language, given by a random automaton.

The defaults follow RegBench (arXiv 2401.12973, section 3; berlino/seq_icl, src/dataloaders/dfa.py): 10 to 20 strings
per example, no transition from a state to itself, and no two from a state to the same one. The published code draws
every range without its upper end. The rule that holds out languages is ours.

Legend: E examples, N tokens, V vocabulary.
"""

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from msgspec import Meta

from argap.errors import ArgapError
from argap.files.configs import Count
from argap.synthetics.tasks.examples import IGNORED, Examples, TaskConfig, generator

HELD_OUT = 8
"""One language in eight is held out for validation and test."""
DRAWS = 4096
"""Automata tried per example. If languages are plentiful, all of them fall into training with probability
(7/8)^4096."""

Transitions = tuple[dict[int, int], ...]
"""Maps each symbol to the next state, for every state; state 0 is the initial one."""


@dataclass(frozen=True)
class AutomataConfig(TaskConfig):
    """One data set. Raises `ArgapError` for invalid ranges."""

    length: Annotated[int, Meta(ge=2)] = 512
    symbols: int = 18
    """Number of symbols. The vocabulary has one more token, which separates strings."""
    split: Literal["train", "heldout"] = "train"
    """The splits share no language, whatever the seeds. Validation and test both use ``heldout`` with their own seeds,
    so they may share languages."""
    states: tuple[int, int] = (4, 12)
    """Minimum and maximum number of states before the automaton is minimized."""
    alphabet: tuple[int, int] = (4, 18)
    """Minimum and maximum number of symbols in a language."""
    edges: tuple[int, int] = (1, 4)
    """Minimum and maximum number of transitions from a state; all are equally likely."""
    longest: Count = 50
    """Maximum length of a string in symbols; all lengths from 1 are equally likely."""
    strings: tuple[int, int] | None = (10, 20)
    """Minimum and maximum number of strings in an example; separators fill the rest, and a longer example is cut. If
    None, strings fill the whole length."""
    self_loops: bool = False
    """Draw the target of every transition independently, so that a state may lead to itself, or to another state by
    several symbols. Otherwise a state leads to distinct other states, and has at most as many transitions as there are
    other states."""

    def __post_init__(self) -> None:
        super().__post_init__()
        ranges = {"states": self.states, "alphabet": self.alphabet, "edges": self.edges}
        for name, (low, high) in (ranges | ({} if self.strings is None else {"strings": self.strings})).items():
            if not 1 <= low <= high:
                raise ArgapError(f"{name} {low} to {high}; expected a minimum of at least 1 and a maximum no smaller")
        if not self.self_loops and self.states[0] < 2:
            raise ArgapError(f"states {self.states[0]} to {self.states[1]}; expected at least 2 without `self_loops`")
        if self.alphabet[1] > self.symbols or self.edges[1] > self.alphabet[0]:
            raise ArgapError(
                f"{self.edges[1]} edges from {self.alphabet[0]} to {self.alphabet[1]} of {self.symbols} "
                "symbols; expected no more edges than symbols"
            )

    @property
    def vocab_size(self) -> int:
        """V: the symbols and the separator, which is the last token."""
        return self.symbols + 1


def build(config: AutomataConfig, seed: int) -> Examples:
    """Build the examples of a seed: strings, each after a separator, then separators to the end.

    Every symbol is labelled; separators are not, since a string may end anywhere. Often several symbols are
    possible at a label: count every one that `valid_next` allows as correct. ``slices["edges"]`` is the number
    of possible symbols. ``slices["seen"]`` is 1 + how often the string so far was followed by another symbol
    earlier in the example: above 1, the answer can be copied from the context.
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
    """Return the tokens that are correct at each label of `build`, bool ``[E, N, V]``."""
    allowed = np.zeros((config.examples, config.length, config.vocab_size), dtype=bool)
    for row, (automaton, walk) in enumerate(_examples(config, seed)):
        for t, (state, token) in enumerate(walk):
            if token != config.symbols:
                allowed[row, t, list(automaton[state])] = True
    return allowed


def draw_automaton(rng: np.random.Generator, config: AutomataConfig) -> Transitions:
    """Draw a minimized random automaton of the configuration's split.

    Raises `ArgapError` if `DRAWS` automata in a row belong to the other split: narrow ranges have few languages.
    """
    for _ in range(DRAWS):
        states, letters = (rng.integers(low, high + 1) for low, high in (config.states, config.alphabet))
        alphabet = rng.permutation(config.symbols)[:letters]
        drawn = []
        for state in range(states):
            count = rng.integers(config.edges[0], config.edges[1] + 1)
            symbols = rng.permutation(alphabet)[:count]
            if config.self_loops:
                targets = rng.integers(0, states, count)
            else:
                others = rng.permutation(states - 1)[:count]
                targets = others + (others >= state)
            drawn.append(dict(zip(symbols.tolist(), targets.tolist(), strict=False)))
        automaton = minimize(tuple(drawn))
        if is_held_out(automaton) == (config.split == "heldout"):
            return automaton
    raise ArgapError(
        f"automata: no language of the split {config.split} in {DRAWS:,} automata with {_range(config.states)} states, "
        f"{_range(config.alphabet)} of {config.symbols} symbols and {_range(config.edges)} edges; expected wider ranges"
    )


def minimize(automaton: Transitions) -> Transitions:
    """Minimize an automaton and number its states in the order in which they are reached.

    Two automata have the same language exactly if their results are equal.
    """
    group = [0] * len(automaton)
    while True:  # split groups until their states agree on the groups that they lead to (Moore's algorithm)
        signatures = [tuple(sorted((symbol, group[to]) for symbol, to in edges.items())) for edges in automaton]
        numbers = {signature: number for number, signature in enumerate(dict.fromkeys(signatures))}
        refined = [numbers[signature] for signature in signatures]
        if len(numbers) == len(set(group)):
            break
        group = refined
    order, reached = {group[0]: 0}, [0]
    for state in reached:
        for _, to in sorted(automaton[state].items()):
            if group[to] not in order:
                order[group[to]] = len(order)
                reached.append(to)
    return tuple({symbol: order[group[to]] for symbol, to in sorted(automaton[state].items())} for state in reached)


def is_held_out(automaton: Transitions) -> bool:
    """Return whether a language belongs to validation and test, decided by the hash of its minimized automaton."""
    text = repr([sorted(ways.items()) for ways in automaton])
    return hashlib.sha256(text.encode()).digest()[0] % HELD_OUT == 0


def _range(ends: tuple[int, int]) -> str:
    return f"{ends[0]} to {ends[1]}"


def _within(rng: np.random.Generator, ends: tuple[int, int]) -> int:
    return int(rng.integers(ends[0], ends[1] + 1))


def _examples(config: AutomataConfig, seed: int) -> Iterator[tuple[Transitions, list[tuple[int, int]]]]:
    """Yield each example as its automaton and a walk through it: every token with the state before it."""
    rng = generator(seed)
    for _ in range(config.examples):
        automaton = draw_automaton(rng, config)
        ways = [list(each) for each in automaton]
        walk: list[tuple[int, int]] = []
        strings = itertools.repeat(None) if config.strings is None else range(_within(rng, config.strings))
        for _ in strings:
            if len(walk) >= config.length:
                break
            walk.append((0, config.symbols))
            state = 0
            for chance in rng.random(rng.integers(1, config.longest + 1)):
                symbol = ways[state][int(chance * len(ways[state]))]
                walk.append((state, symbol))
                state = automaton[state][symbol]
        yield automaton, walk[: config.length]
