"""Tasks beyond pairs of key and value: programs that read an example give every label; nothing else does."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from argap.errors import ArgapError
from argap.synthetics.tasks.brackets import BracketsConfig, StackMachineConfig
from argap.synthetics.tasks.examples import IGNORED, Examples
from argap.synthetics.tasks.recall.chains import ChainsConfig
from argap.synthetics.tasks.recall.continuous import ContinuousConfig
from argap.synthetics.tasks.recall.keyed import CompositionalConfig, ForgettingConfig, JointRecallConfig
from argap.synthetics.tasks.recall.tree import TreeConfig, draw_tree, relatives, share_of_leaves
from argap.synthetics.tasks.registry import TASKS, Task, data_config, resolve_task
from argap.synthetics.tasks.state_tracking import StateTrackingConfig, group_elements, products, tokens
from argap.synthetics.tasks.strings import NgramConfig, PhonebookConfig, StringConfig
from tests.builders.sweeps import LENGTHS


def compositional(before: list[int], config: CompositionalConfig) -> int:
    """The value after the first occurrence of the two tokens at the end."""
    at = next(t for t, pair in enumerate(pairwise(before)) if list(pair) == before[-2:])
    return before[at + 2]


def forgetting(before: list[int], config: ForgettingConfig) -> int:
    """The value after the last earlier occurrence of the key."""
    return before[max(t for t, token in enumerate(before[:-1]) if token == before[-1]) + 1]


def joint(before: list[int], config: JointRecallConfig) -> int:
    """The value of the key in the block that the context opens."""
    block = before[before.index(before[-2]) + 1 :]
    return block[block.index(before[-1]) + 1]


def chains(before: list[int], config: ChainsConfig) -> int:
    """Follow pairs from the token asked for: all pairs come before the first question."""
    if config.asked == "path":
        start, hops = before[-1], 1
    else:
        start, hops = before[-2], before[-1] - config.symbols + 1
    firsts: dict[int, int] = {}
    for key, value in zip(before[::2], before[1::2], strict=False):
        if key in firsts:
            break
        firsts[key] = value
    for _ in range(hops):
        start = firsts[start]
    return start


def tree(before: list[int], config: TreeConfig) -> int:
    """Parse the sentence by its heads: each is followed by its two dependents."""
    parent, children = {}, {}

    def parse(at: int, above: int | None) -> int:
        item = before[at]
        if above is not None:
            parent[item] = above
            children.setdefault(above, []).append(item)
        at += 1
        for _ in range(2 if item in config.heads else 0):
            at = parse(at, item)
        return at

    parse(0, None)
    item, relation = before[-2], before[-1] - config.items
    if relation == 0:
        return parent[item]
    if relation == 1:
        return children[item][0]
    return next(other for other in children[parent[item]] if other != item)


def string(before: list[int], config: StringConfig) -> int:
    ask = before.index(config.vocab_size - 2)
    done = len(before) - ask - 1
    return before[done] if config.order == "forward" else before[ask - 1 - done]


def ngram(before: list[int], config: NgramConfig) -> int:
    at, n = before.index(config.symbols), config.ngram
    if config.question == "suffix":
        text, asked = before[:at], before[at + 1 :]
        gram, done = asked[:n], len(asked) - n
    else:
        end = before.index(config.symbols, at + 1)
        gram, text, done = before[:at], before[at + 1 : end], len(before) - end - 1
    starts = [k for k in range(len(text) - n + 1) if text[k : k + n] == gram]
    assert len(starts) == 1
    return text[starts[0] + n + done]


def phonebook(before: list[int], config: PhonebookConfig) -> int:
    ask = len(before) - 1 - before[::-1].index(config.vocab_size - 2)
    asked = before[ask + 1 :]
    width, name = config.name_tokens + config.digits + 1, asked[: config.name_tokens]
    for start in range(0, before.index(config.vocab_size - 2), width):
        if before[start : start + len(name)] == name:
            return before[start + len(asked)]
    raise AssertionError(name)


def product(before: list[int], config: StateTrackingConfig) -> int:
    """Move things one permutation after the other."""
    elements = group_elements(config.group)
    places = list(range(len(elements[0])))
    for token in before:
        places = [elements[token][place] for place in places]
    return elements.index(tuple(places))


def bracket(before: list[int], config: BracketsConfig) -> int:
    stack = []
    for token in before:
        if token < config.kinds:
            stack.append(token)
        else:
            assert stack.pop() == token - config.kinds
    return stack[-1] + config.kinds


def stack(before: list[int], config: StackMachineConfig) -> int:
    stacks: list[list[int]] = [[] for _ in range(config.stacks)]
    for operation, value in zip(before[:-1:2], before[1::2], strict=True):
        if operation < config.stacks:
            stacks[operation].append(value)
        else:
            assert stacks[operation - config.stacks].pop() == value
    return stacks[before[-1] - config.stacks][-1]


Solver = Callable[[list[int], Any], int]
SOLVERS: dict[str, Solver] = {
    "compositional_mqar": compositional,
    "forgetting_mqar": forgetting,
    "joint_recall": joint,
    "stacked_mqar": chains,
    "multi_hop": chains,
    "tree_recall": tree,
    "copy": string,
    "reverse": string,
    "palindrome": string,
    "ngram_lookup": ngram,
    "phonebook": phonebook,
    **dict.fromkeys(("parity", "modular_addition", "s3", "s5", "a5"), product),
    "brackets": bracket,
    "stack_machine": stack,
}
"""The tokens up to the one at which the answer is read, and the configuration, to the answer."""
OTHERS = {
    "a fixed number of pairs": ("forgetting_mqar", {"fewest": None, "pairs": 4, "updates": 9}, 34),
    "one part each": ("compositional_mqar", {"grid": 1, "fewest": 1, "vocab_size": 4}, 6),
    "one context": ("joint_recall", {"contexts": 1, "keys": 1, "vocab_size": 5}, 6),
    "one hop": ("multi_hop", {"chains": 1, "fewest": 1, "hops": 1, "vocab_size": 4}, 5),
    "one head": ("tree_recall", {"depth": 1, "vocab_size": 8, "questions": 2}, 9),
    "one symbol": ("copy", {"shortest": None}, 3),
    "before the string": ("ngram_lookup", {"question": "prefix", "shortest": 7}, 40),
    "a string without room": ("ngram_lookup", {"ngram": 1, "answer": 1, "shortest": 2}, 5),
    "several names": ("phonebook", {"questions": 3, "shortest": 3, "vocab_size": 23}, 64),
    "swaps": ("s5", {"elements": "swaps"}, 20),
    "the last product": ("a5", {"asked": "last"}, 9),
    "depth two": ("brackets", {"depth": 2, "kinds": 2, "shortest": None}, 33),
    "one stack": ("stack_machine", {"stacks": 1, "depth": 1, "vocab_size": 5}, 5),
}
CASES = {name: (name, {}, LENGTHS.get(name, 40)) for name in SOLVERS} | OTHERS


def made(name: str, own: dict[str, Any], length: int, examples: int, seed: int = 3) -> tuple[Task, Any, Examples]:
    config = data_config(resolve_task({"name": name, **own}, length), examples, length, training=True)
    return TASKS[name], config, TASKS[name].build(config, seed)


@pytest.mark.parametrize("case", CASES)
def test_a_program_that_reads_the_example_gives_every_label(case: str) -> None:
    name, own, length = CASES[case]
    task, config, found = made(name, own, length, 1000)
    assert found.inputs.shape == found.labels.shape == (1000, length)
    assert 0 <= found.inputs.min() <= found.inputs.max() < config.vocab_size
    asked = found.labels != IGNORED
    assert asked.any(axis=1).all()  # every example asks
    assert not asked[:, 0].any()
    read = int(task.own_position(config))
    for tokens_of, labels in zip(found.inputs.tolist(), found.labels.tolist(), strict=True):
        for t in (t for t, label in enumerate(labels) if label != IGNORED):
            assert SOLVERS[name](tokens_of[: t + read], config) == labels[t]
            assert read or tokens_of[t] == labels[t]  # text contains its own next token
    if "distance" in found.slices:  # from the answer in the context; in a tree, from the item
        rows, at = np.nonzero(asked)
        back = at - found.slices["distance"][rows, at] - (name == "tree_recall")
        same = found.inputs[rows, at - 2] if name == "tree_recall" else found.labels[rows, at]
        assert (found.inputs[rows, back] == same - (config.kinds if name == "brackets" else 0)).all()
    for values in found.slices.values():
        assert ((values > 0) == asked).all()
        assert values.dtype == np.int32
    again, other = (task.build(config, seed) for seed in (3, 4))
    assert (again.inputs == found.inputs).all()
    assert case.startswith("one ") or (other.inputs != found.inputs).any()


def test_vectors_are_found_by_the_nearest_key() -> None:
    config = ContinuousConfig(1000, noise=0.3)
    found = TASKS["continuous_mqar"].build(config, 5)
    values, right, all_asked = config.values, 0, 0
    np.testing.assert_allclose(np.linalg.norm(values, axis=1), 1, rtol=1e-5)
    for vectors, labels, distance in zip(found.inputs, found.labels, found.slices["distance"], strict=True):
        asked = np.flatnonzero(labels != IGNORED)
        pairs = len(asked)
        assert asked.tolist() == list(range(pairs, 2 * pairs))
        assert sorted((asked - distance[asked]).tolist()) == list(range(pairs))
        assert (vectors[asked, config.size :] == 0).all()  # the value is not given
        assert (vectors[2 * pairs :] == 0).all()
        keys, stored = np.split(vectors[:pairs], 2, axis=1)
        nearest = (vectors[asked, : config.size] @ keys.T).argmax(axis=1)
        answers = (stored[nearest] @ values.T).argmax(axis=1)
        right, all_asked = right + (answers == labels[asked]).sum(), all_asked + pairs
    assert right / all_asked > 0.99
    exact = TASKS["continuous_mqar"].build(ContinuousConfig(10), 5)
    assert np.isclose(np.linalg.norm(exact.inputs[:, :1, :32], axis=2), 1).all()


@pytest.mark.parametrize("name", [name for name, task in TASKS.items() if task.chance and not task.from_last])
def test_the_token_at_which_an_answer_is_read_tells_no_more_than_chance(name: str) -> None:
    """The best label for each token, learned from half of the examples, is right in the others as often as stated."""
    task, config, found = made(name, {}, TASKS[name].length, 8000)
    rows, at = np.nonzero(found.labels != IGNORED)
    answers = found.labels[rows, at]
    vectors = found.inputs.ndim == 3
    seen = np.zeros_like(answers) if vectors else found.inputs[rows, at - (not task.own_position(config))]
    votes = np.zeros((config.vocab_size, config.vocab_size))
    learned = rows < 4000
    np.add.at(votes, (seen[learned], answers[learned]), 1)
    right = votes.argmax(axis=1)[seen[~learned]] == answers[~learned]
    assert task.chance is not None
    chance = task.chance(config)
    # Answers of one example depend on each other (phone numbers aside): at most as if there were one for each.
    deviation = (chance * (1 - chance) / min(len(right), 4 * 4000)) ** 0.5
    assert right.mean() == pytest.approx(chance, abs=4 * deviation)
    assert task.bound == 1


def test_products_of_three_things_worked_by_hand() -> None:
    """(0 1) then (1 2), in places 0 1 2: thing 0 goes to 1 and on to 2, thing 1 to 0, thing 2 to 1."""
    elements = group_elements("S3")
    first, then = elements.index((1, 0, 2)), elements.index((0, 2, 1))
    assert elements[products("S3")[first, then]] == (2, 0, 1)
    assert elements[products("S3")[then, first]] == (1, 2, 0)  # the order matters
    assert products("Z2").tolist() == [[0, 1], [1, 0]]
    assert [len(group_elements(group)) for group in ("Z7", "S5", "A5")] == [7, 120, 60]
    assert len(tokens(StateTrackingConfig(1, group="S5", elements="swaps"))) == 11  # 10 exchanges and the identity
    for group in ("S5", "A5"):
        table = products(group)
        assert (np.sort(table, axis=0) == np.arange(len(table))[:, None]).all()
        assert (table != table.T).any()


def test_a_tree_worked_by_hand() -> None:
    """Heads 0 (of 1 and 4) and 1 (of 2 and 3): 0 [1 [2 3]] 4."""
    parent, child, sibling = relatives(np.array([-1, 0, 1, 1, 0])).tolist()
    assert parent == [-1, 0, 1, 1, 0]
    assert child == [1, 2, -1, -1, -1]
    assert sibling == [-1, 4, 3, 2, 1]
    # Depth 2: one head and two leaves (¼), two heads with 3 leaves of 4 dependents (½), 3 heads with 4 of 6 (¼).
    assert share_of_leaves(1) == 1
    assert share_of_leaves(2) == pytest.approx(1 / 4 + 3 / 4 / 2 + 4 / 6 / 4)
    rng = np.random.default_rng(0)
    depths = [draw_tree(rng, 3)[0] for _ in range(200)]
    assert {len(depth) for depth in depths} == {3, 5, 7, 9, 11, 13, 15}
    assert max(depth.max() for depth in depths) == 3


def test_sizes_are_mixed_in_training_and_full_in_longer_tests() -> None:
    for name, task in TASKS.items():
        if not task.longer or "asked" in task.longer:
            continue
        mixed = made(name, {}, task.length, 1000)[2].slices
        record = resolve_task(name, task.length)
        longer = data_config(record, 200, 2 * task.length, training=False, longer=True)
        full = task.build(longer, 0)
        for size in mixed.keys() & {"size", "pairs", "contexts"}:
            most = full.slices[size].max()
            assert set(np.unique(full.slices[size])) == {0, most}
            assert len(np.unique(mixed[size])) >= 4
            assert np.unique(mixed[size])[1] < most / 2
        assert full.inputs.shape[:2] == (200, 2 * task.length)
    last = data_config(resolve_task("s3", 64), 50, 512, training=False, longer=True)
    assert (TASKS["s3"].build(last, 0).labels[:, :-1] == IGNORED).all()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: CompositionalConfig(1, length=95), "16 keys of two parts, .* need 96 tokens, the length is 95"),
        (lambda: CompositionalConfig(1, vocab_size=48), "16 values .* vocabulary of at least 49 tokens, it has 48"),
        (lambda: CompositionalConfig(1, fewest=5), "fewest: from 5 to 4; expected 1 to 4"),
        (lambda: ForgettingConfig(1, length=79), "24 writes and 16 questions need 80 tokens, the length is 79"),
        (lambda: ForgettingConfig(1, vocab_size=48), "24 writes to 16 keys need .* at least 49 tokens, it has 48"),
        (lambda: JointRecallConfig(1, length=83), "4 contexts of 4 keys, .* need 84 tokens, the length is 83"),
        (lambda: JointRecallConfig(1, vocab_size=32), "4 keys under 4 contexts .* at least 33 tokens, it has 32"),
        (lambda: ChainsConfig(1, length=71), "8 chains of 4 tokens .* need 72 tokens, the length is 71"),
        (
            lambda: ChainsConfig(1, vocab_size=35, asked="path"),
            "8 chains of 4 tokens .* 36 tokens, it has",
        ),
        (lambda: ContinuousConfig(1, vocab_size=15), "16 pairs need as many values, `vocab_size` is 15"),
        (
            lambda: ContinuousConfig(10**6, length=4096, vocab_size=2048),
            "are 262,144,000,000 numbers; expected at most 17,179,869,184",
        ),
        (lambda: TreeConfig(1, length=42), "31 items and 4 questions need 43 tokens, the length is 42"),
        (
            lambda: TreeConfig(1, vocab_size=35),
            "sentences of 31 items need a vocabulary of at least 36 tokens, it has 35",
        ),
        (lambda: StringConfig(1, length=2), "need 3 tokens, the length is 2"),
        (lambda: StringConfig(1, length=40, shortest=20), "need 41 tokens, the length is 40"),
        (lambda: NgramConfig(1, length=14), "a string that has both need 15 tokens, the length is 14"),
        (lambda: NgramConfig(1, length=400, vocab_size=6), "392 tokens of 4 symbols .*; expected at most 256 tokens"),
        (lambda: NgramConfig(1, shortest=6), "shortest: from 6 to 120; expected 7 to 120"),
        (lambda: PhonebookConfig(1, length=13), "1 entries and as many questions need 14 tokens, the length is 13"),
        (lambda: PhonebookConfig(1, vocab_size=18), "17 names of 2 tokens from 5; expected at most half of the 25"),
        (lambda: PhonebookConfig(1, questions=2), "shortest: from 1 to 16; expected 2 to 16"),
        (lambda: StateTrackingConfig(1, group="S7"), "group 'S7'; expected Z2 to Z720, S2 to S6, or A3 to A6"),
        (lambda: StateTrackingConfig(1, group="Z1"), "group 'Z1'; expected Z2"),
        (lambda: StateTrackingConfig(1, group="A5", elements="swaps"), "swaps of A5; expected a group Sn"),
        (lambda: BracketsConfig(1, shortest=130), "shortest: from 130 to 128; expected 4 to 128"),
        (lambda: StackMachineConfig(1, vocab_size=10), "4 stacks and 2 values need .* at least 11 tokens, it has 10"),
        (lambda: StackMachineConfig(1, shortest=1), "shortest: from 1 to 64; expected 2 to 64"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_numbers(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ArgapError, match=said) as raised:
        make()
    assert "\n" not in str(raised.value)
