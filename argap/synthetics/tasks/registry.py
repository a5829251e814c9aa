"""The tasks other than MQAR that a run can train on, by name.

A run sets the length and the number of examples; the task's own configuration sets the rest, including how its test
data differ from its training data.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any

import numpy as np

from argap.errors import ArgapError, within
from argap.files.configs import build
from argap.files.plain_yaml import parse_yaml
from argap.synthetics.tasks import (
    automata,
    brackets,
    context_recall,
    fuzzy_recall,
    induction,
    mad,
    state_tracking,
    strings,
)
from argap.synthetics.tasks.context_recall import ContextRecallConfig
from argap.synthetics.tasks.examples import Examples
from argap.synthetics.tasks.recall import chains, continuous, keyed, tree

SET_BY_RUN = ("examples", "length")
"""Fields of every task configuration that the run sets."""


@dataclass(frozen=True)
class Task:
    """An entry of `TASKS`."""

    config: Any
    """A frozen dataclass with ``examples``, ``length`` and ``vocab_size``."""
    build: Callable[[Any, int], Examples]
    preset: Mapping[str, Any] = field(default_factory=dict)
    """Fields that differ from the configuration's defaults."""
    test: Mapping[str, Any] = field(default_factory=dict)
    """Fields that differ between training and validation or test."""
    valid: Callable[[Any, int], np.ndarray] | None = None
    """Returns the tokens that are correct at each label, bool ``[E, N, V]``; if None, only the label is correct."""
    from_last: bool = False
    """Whether answers are decoded from the last position's hidden state instead of predicted as next tokens."""
    own_position: Callable[[Any], bool] = lambda config: False
    """Whether the label at t is the output at t, instead of at t − 1."""
    longer: Mapping[str, Any] = field(default_factory=dict)
    """Fields that differ in a test at a multiple of the length: training mixes sizes, such a test has the largest."""
    chance: Callable[[Any], float] | None = None
    """Returns the accuracy of the best guess that sees only the token at which it answers; None: not known."""
    bound: float | None = 1.0
    """Accuracy of the best solver that reads the example (and knows the task's fixed facts); None: not known."""

    @property
    def length(self) -> int:
        """Default N."""
        return self.config.length


def _recall_chance(config: ContextRecallConfig) -> float:
    return 1 / (config.vocab_size - config.noise_vocab_size - config.keys)


def _tree_chance(config: tree.TreeConfig) -> float:
    """Guess any head for a parent, and for a child or sibling any leaf or any head, whichever is likelier."""
    leaf = tree.share_of_leaves(config.depth)
    return 2 / config.items * (1 + 2 * max(leaf, 1 - leaf)) / 3


FULL = {"shortest": None}
MOST = {"fewest": None}
of_chains = partial(
    Task, chains.ChainsConfig, chains.build, longer=MOST, chance=lambda c: 1 / (c.symbols - (c.asked == "path"))
)
of_strings = partial(
    Task, strings.StringConfig, strings.build_copy, longer=FULL, chance=lambda c: 1 / (c.vocab_size - 2)
)
of_groups = partial(
    Task,
    state_tracking.StateTrackingConfig,
    state_tracking.build,
    own_position=lambda _: True,
    longer={"asked": "last"},
    chance=lambda c: 1 / c.vocab_size,
)

TASKS: dict[str, Task] = {
    "in_context_recall": Task(ContextRecallConfig, context_recall.build, chance=_recall_chance),
    "noisy_recall": Task(
        ContextRecallConfig,
        context_recall.build,
        {"vocab_size": 32, "noise_vocab_size": 16, "noise": 0.2},
        chance=_recall_chance,
    ),
    "associative_recall": Task(ContextRecallConfig, context_recall.build, {"asked": "last"}, chance=_recall_chance),
    "fuzzy_recall": Task(
        fuzzy_recall.FuzzyRecallConfig,
        fuzzy_recall.build,
        test={"short_keys": False},
        chance=lambda c: 1 / (c.vocab_size - 1 - (c.vocab_size - 1) // 2),
    ),
    "selective_copy": Task(mad.SelectiveCopyConfig, mad.build_selective_copy, chance=lambda c: 1 / (c.vocab_size - 2)),
    "memorization": Task(
        mad.MemorizationConfig,
        mad.build_memorization,
        own_position=lambda config: config.read_at == "insert",
        chance=lambda c: 1 / len(c.facts) if c.read_at == "insert" else 1.0,
    ),
    "compression": Task(
        mad.CompressionConfig, mad.build_compression, from_last=True, chance=lambda c: 1 / (c.vocab_size - 1)
    ),
    "induction": Task(induction.InductionConfig, induction.build, chance=lambda c: 1 / (c.vocab_size - 1)),
    "automata": Task(
        automata.AutomataConfig, automata.build, test={"split": "heldout"}, valid=automata.valid_next, bound=None
    ),
    "compositional_mqar": Task(
        keyed.CompositionalConfig, keyed.build_compositional, longer=MOST, chance=lambda c: 1 / c.part
    ),
    "forgetting_mqar": Task(keyed.ForgettingConfig, keyed.build_forgetting, longer=MOST, chance=lambda c: 1 / c.half),
    "joint_recall": Task(keyed.JointRecallConfig, keyed.build_joint, longer=MOST, chance=lambda c: 0.5 / c.quarter),
    "stacked_mqar": of_chains({"asked": "path", "hops": 2}),
    "multi_hop": of_chains(),
    "continuous_mqar": Task(
        continuous.ContinuousConfig,
        continuous.build,
        longer=MOST,
        own_position=lambda _: True,
        chance=lambda c: 1 / c.vocab_size,
    ),
    "tree_recall": Task(tree.TreeConfig, tree.build, chance=_tree_chance),
    "copy": of_strings(),
    "reverse": of_strings({"order": "reversed"}),
    "palindrome": of_strings({"order": "reversed", "vocab_size": 66}),
    "ngram_lookup": Task(strings.NgramConfig, strings.build_ngram, longer=FULL, chance=lambda c: 1 / c.symbols),
    "phonebook": Task(strings.PhonebookConfig, strings.build_phonebook, longer=FULL, chance=lambda _: 0.1),
    "parity": of_groups({"group": "Z2"}),
    "modular_addition": of_groups({"group": "Z5"}),
    "s3": of_groups({"group": "S3"}),
    "s5": of_groups({"group": "S5"}),
    "a5": of_groups({"group": "A5"}),
    "brackets": Task(brackets.BracketsConfig, brackets.build_brackets, longer=FULL, chance=lambda c: 1 / c.kinds),
    "stack_machine": Task(
        brackets.StackMachineConfig, brackets.build_stack_machine, longer=FULL, chance=lambda c: 1 / c.values
    ),
}


TaskSpec = dict[str, Any]
"""A task as a sweep lists it: its name, and fields by name."""


def parse_task(value: Any) -> TaskSpec:
    """Normalize a task to a mapping of ``name`` and the fields that differ from its preset.

    ``value`` is a name or such a mapping. Raises `ArgapError` for an unknown name.
    """
    given = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = given.get("name")
    if not isinstance(name, str) or name not in TASKS:
        raise ArgapError(f"task {name!r}: unknown; known are {', '.join(TASKS)}; without a task it is mqar")
    return given


def parse_yaml_task(text: str) -> TaskSpec:
    """Apply `parse_task` to a name or mapping in YAML. Raises `ArgapError` for anything else."""
    try:
        given = parse_yaml(text)
    except ArgapError as error:
        raise ArgapError(f"task {text}: expected a name or {{name: ..., KEY: VALUE}} ({error})") from None
    return parse_task(given)


def resolve_task(value: Any, length: int) -> TaskSpec:
    """Return the record of a task in a run of ``length`` tokens: its name and every field of its own configuration.

    Raises `ArgapError` for an unknown name or field, for a field that the run or the split sets, and for inconsistent
    sizes.
    """
    given = parse_task(value)
    name = given.pop("name")
    task = TASKS[name]
    if taken := [key for key in given if key in SET_BY_RUN]:
        raise ArgapError(f"task {name}: {taken[0]} is set by the run, not by the task")
    if taken := [key for key in given if key in task.test]:
        raise ArgapError(
            f"task {name}: {taken[0]} is set by the split; it is {task.test[taken[0]]} in validation and test only"
        )
    known = [f.name for f in fields(task.config) if f.name not in (*SET_BY_RUN, *task.test)]
    if unknown := [str(key) for key in given if key not in known]:
        raise ArgapError(f"task {name}: unknown key {', '.join(unknown)}; known are {', '.join(known)}")
    with within(f"task {name}"):
        config = build(task.config, {**task.preset, **given, "examples": 1, "length": length})
    return {"name": name} | {key: getattr(config, key) for key in known}


def data_config(task: Mapping[str, Any], examples: int, length: int, *, training: bool, longer: bool = False) -> Any:
    """Return the configuration of one data set of a task, given as `resolve_task` returns it.

    ``longer``: of a test at a multiple of the length, which has the largest sizes only.
    """
    entry = TASKS[task["name"]]
    own = {key: value for key, value in task.items() if key != "name"}
    split = {**({} if training else entry.test), **(entry.longer if longer else {})}
    return entry.config(**{**own, **split}, examples=examples, length=length)


def task_label(task: Mapping[str, Any], length: int) -> str:
    """Label a task for tables, given as `resolve_task` returns it: its name and differences from its preset.

    For example ``noisy_recall, noise 0.4, length 256``.
    """
    usual_length = TASKS[task["name"]].length
    usual = {**resolve_task(task["name"], usual_length), "length": usual_length}
    own = {**task, "length": length}
    return ", ".join([task["name"], *(f"{key} {own[key]}" for key in usual if own[key] != usual[key])])
