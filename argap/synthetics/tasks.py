"""The tasks that a run trains on in place of multi-query associative recall, by name.

A run says which and how long, and how many examples; the task's own configuration says the rest. Where a task is
tested on something else than it is trained on, that is stated here.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import yaml

from argap.configuration import build, one_line
from argap.errors import ArgapError
from argap.synthetics import (
    automata,
    compression,
    context_recall,
    fuzzy_recall,
    induction,
    memorization,
    selective_copy,
)
from argap.synthetics.automata import AutomataConfig
from argap.synthetics.compression import CompressionConfig
from argap.synthetics.context_recall import ContextRecallConfig
from argap.synthetics.examples import Examples
from argap.synthetics.fuzzy_recall import FuzzyRecallConfig
from argap.synthetics.induction import InductionConfig
from argap.synthetics.memorization import MemorizationConfig
from argap.synthetics.selective_copy import SelectiveCopyConfig

BY_RUN = ("examples", "length")
"""Fields of every task that the run sets."""


@dataclass(frozen=True)
class Task:
    """One of `TASKS`."""

    config: Any
    """A frozen dataclass with ``examples``, ``length`` and ``vocab_size``."""
    build: Callable[[Any, int], Examples]
    preset: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the configuration's defaults."""
    test: Mapping[str, Any] = field(default_factory=dict)
    """What validation and test examples differ in from those of training."""
    valid: Callable[[Any, int], np.ndarray] | None = None
    """Which tokens are right at each label, bool ``[E, N, V]``; None: the label alone."""
    from_last: bool = False
    """Whether the answers are decoded from the last position's vector, and are no next tokens."""

    @property
    def length(self) -> int:
        """N of a run that names none: the default of the configuration's field."""
        defaults: dict[str, Any] = {each.name: each.default for each in fields(self.config)}
        return defaults["length"]


TASKS: dict[str, Task] = {
    "in_context_recall": Task(ContextRecallConfig, context_recall.build),
    "noisy_recall": Task(
        ContextRecallConfig, context_recall.build, {"vocab_size": 32, "noise_vocab_size": 16, "noise": 0.2}
    ),
    "associative_recall": Task(ContextRecallConfig, context_recall.build, {"asked": "last"}),
    "fuzzy_recall": Task(FuzzyRecallConfig, fuzzy_recall.build, test={"short_keys": False}),
    "selective_copy": Task(SelectiveCopyConfig, selective_copy.build),
    "memorization": Task(MemorizationConfig, memorization.build),
    "compression": Task(CompressionConfig, compression.build, from_last=True),
    "induction": Task(InductionConfig, induction.build),
    "automata": Task(AutomataConfig, automata.build, test={"split": "heldout"}, valid=automata.valid_next),
}


def named(value: Any) -> dict[str, Any]:
    """A task by its name, or by a mapping of ``name`` and what differs from its preset, as such a mapping.

    Raises `ArgapError` for an unknown name.
    """
    given = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = given.get("name")
    if not isinstance(name, str) or name not in TASKS:
        raise ArgapError(f"task {name!r}: unknown; known are {', '.join(TASKS)}; without a task it is mqar")
    return given


def from_text(text: str) -> dict[str, Any]:
    """`named`, of a name or a mapping in YAML, as a command line has it. Raises `ArgapError` where it is neither."""
    try:
        return named(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ArgapError(f"task {text}: expected a name or {{name: ..., KEY: VALUE}} ({one_line(error)})") from None


def resolved(value: Any, length: int) -> dict[str, Any]:
    """A task as a run of so many tokens records it: its name and every field of its configuration that is its own.

    Raises `ArgapError` for an unknown name or field, for a field that the run sets, and for sizes that do not fit.
    """
    given = named(value)
    name = given.pop("name")
    task = TASKS[name]
    if taken := [key for key in given if key in BY_RUN]:
        raise ArgapError(f"task {name}: {taken[0]} is set by the run, not by the task")
    if taken := [key for key in given if key in task.test]:
        raise ArgapError(f"task {name}: {taken[0]} is set by the split, it is {task.test[taken[0]]} in the test alone")
    known = [f.name for f in fields(task.config) if f.name not in (*BY_RUN, *task.test)]
    if unknown := [str(key) for key in given if key not in known]:
        raise ArgapError(f"task {name}: unknown key {', '.join(unknown)}; known are {', '.join(known)}")
    try:
        config = build(task.config, {**task.preset, **given, "examples": 1, "length": length})
    except ArgapError as error:
        raise ArgapError(f"task {name}: {error}") from None
    return {"name": name} | {key: getattr(config, key) for key in known}


def data_config(task: Mapping[str, Any], examples: int, length: int, *, training: bool) -> Any:
    """The configuration of one data set of a `resolved` task."""
    kind = TASKS[task["name"]]
    own = {key: value for key, value in task.items() if key != "name"}
    return kind.config(**own, **({} if training else kind.test), examples=examples, length=length)


def label(task: Mapping[str, Any], length: int) -> str:
    """The name of a `resolved` task, and what is not as its preset has it: ``noisy_recall, noise 0.4, length 256``."""
    usual_length = TASKS[task["name"]].length
    usual = {**resolved(task["name"], usual_length), "length": usual_length}
    own = {**task, "length": length}
    return ", ".join([task["name"], *(f"{key} {own[key]}" for key in usual if own[key] != usual[key])])
