"""The tasks other than MQAR that a run can train on, by name.

A run sets the length and the number of examples; the task's own configuration sets the rest, including how its test
data differ from its training data.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from argap.errors import ArgapError, within
from argap.files.configs import build
from argap.files.plain_yaml import parse_yaml
from argap.synthetics.tasks import (
    automata,
    compression,
    context_recall,
    fuzzy_recall,
    induction,
    memorization,
    selective_copy,
)
from argap.synthetics.tasks.context_recall import ContextRecallConfig
from argap.synthetics.tasks.examples import Examples

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

    @property
    def length(self) -> int:
        """Default N."""
        return self.config.length


TASKS: dict[str, Task] = {
    "in_context_recall": Task(ContextRecallConfig, context_recall.build),
    "noisy_recall": Task(
        ContextRecallConfig, context_recall.build, {"vocab_size": 32, "noise_vocab_size": 16, "noise": 0.2}
    ),
    "associative_recall": Task(ContextRecallConfig, context_recall.build, {"asked": "last"}),
    "fuzzy_recall": Task(fuzzy_recall.FuzzyRecallConfig, fuzzy_recall.build, test={"short_keys": False}),
    "selective_copy": Task(selective_copy.SelectiveCopyConfig, selective_copy.build),
    "memorization": Task(
        memorization.MemorizationConfig, memorization.build, own_position=lambda config: config.read_at == "insert"
    ),
    "compression": Task(compression.CompressionConfig, compression.build, from_last=True),
    "induction": Task(induction.InductionConfig, induction.build),
    "automata": Task(automata.AutomataConfig, automata.build, test={"split": "heldout"}, valid=automata.valid_next),
}


def parse_task(value: Any) -> dict[str, Any]:
    """Normalize a task to a mapping of ``name`` and the fields that differ from its preset.

    ``value`` is a name or such a mapping. Raises `ArgapError` for an unknown name.
    """
    given = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = given.get("name")
    if not isinstance(name, str) or name not in TASKS:
        raise ArgapError(f"task {name!r}: unknown; known are {', '.join(TASKS)}; without a task it is mqar")
    return given


def parse_yaml_task(text: str) -> dict[str, Any]:
    """Apply `parse_task` to a name or mapping in YAML. Raises `ArgapError` for anything else."""
    try:
        given = parse_yaml(text)
    except ArgapError as error:
        raise ArgapError(f"task {text}: expected a name or {{name: ..., KEY: VALUE}} ({error})") from None
    return parse_task(given)


def resolve_task(value: Any, length: int) -> dict[str, Any]:
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


def data_config(task: Mapping[str, Any], examples: int, length: int, *, training: bool) -> Any:
    """Return the configuration of one data set of a task, given as `resolve_task` returns it."""
    entry = TASKS[task["name"]]
    own = {key: value for key, value in task.items() if key != "name"}
    return entry.config(**own, **({} if training else entry.test), examples=examples, length=length)


def task_label(task: Mapping[str, Any], length: int) -> str:
    """Label a task for tables, given as `resolve_task` returns it: its name and differences from its preset.

    For example ``noisy_recall, noise 0.4, length 256``.
    """
    usual_length = TASKS[task["name"]].length
    usual = {**resolve_task(task["name"], usual_length), "length": usual_length}
    own = {**task, "length": length}
    return ", ".join([task["name"], *(f"{key} {own[key]}" for key in usual if own[key] != usual[key])])
