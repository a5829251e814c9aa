"""A grid of runs from a YAML file."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch

from argap.configuration import build, read_yaml
from argap.errors import ArgapError
from argap.models.cost import cost
from argap.synthetics.decoder import LastVectorDecoder
from argap.synthetics.protocol import LEARNING_RATES, RunConfig, member_from
from argap.synthetics.tasks import TASKS, named, resolved

SET_BY_AXES = ("name", "member", "width", "length", "pairs", "task", "lr", "seed")
"""Fields of a run that a sweep's own keys set."""
FURTHER = tuple(f.name for f in fields(RunConfig) if f.name not in SET_BY_AXES)
"""Those that ``run`` sets."""


@dataclass(frozen=True)
class Sweep:
    """Every member at every width, length, number of pairs, learning rate and seed; or, in place of pairs, on every
    task."""

    members: Mapping[str, Any]
    """Name to the keys of a `Member` that differ from its default; none: the default."""
    lengths: tuple[int, ...] = ()
    """N; with ``tasks`` by default that of each."""
    widths: tuple[int, ...] = (64, 128, 256, 512)
    pairs: tuple[int, ...] = ()
    """Each on its own; by default a sixteenth of the length."""
    pairs_together: bool = False
    """Train and test on all of ``pairs`` at once, an equal share of the examples each."""
    tasks: tuple[Any, ...] = ()
    """In place of MQAR: names of `argap.synthetics.tasks.TASKS`, or mappings of ``name``, what differs from the task's
    preset, and ``run``: further fields of `RunConfig` for this task alone."""
    lrs: tuple[float, ...] = LEARNING_RATES
    seeds: tuple[int, ...] = (0,)
    run: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of `RunConfig`, the same for all."""
    first_ends: bool = False
    """Whether a group's other learning rates and seeds end where the first solves the task, or are not begun where
    one has. It saves up to half of the time, and leaves what a figure shows, the best learning rate of each group."""
    axis: Literal["width", "pairs", "state_size"] = "width"
    """The figure's horizontal axis."""
    title: str = ""

    def __post_init__(self) -> None:
        if not self.members or not (self.lengths or self.tasks) or not self.widths or not self.lrs or not self.seeds:
            raise ArgapError("members, lengths, widths, lrs and seeds: expected at least one of each")
        for axis in ("lengths", "widths", "pairs", "lrs", "seeds"):
            values = getattr(self, axis)
            if twice := [value for number, value in enumerate(values) if value in values[:number]]:
                raise ArgapError(f"{axis}: {twice[0]} is there twice")
        if taken := [key for key in self.run if key in SET_BY_AXES]:
            raise ArgapError(f"run: {taken[0]} is set by members, widths, lengths, pairs, tasks, lrs or seeds")
        _check_known("run", self.run, FURTHER)
        if self.pairs_together and not self.pairs:
            raise ArgapError("pairs_together: expected a list of pairs")
        if self.tasks and self.pairs:
            raise ArgapError("pairs: MQAR alone has them; a sweep has either pairs or tasks")
        firsts = [group[0] for group in self.groups()]  # the axes being distinct, only tasks may give a run twice
        keys = [first.key for first in firsts]
        if twice := [first for number, first in enumerate(firsts) if first.key in keys[:number]]:
            raise ArgapError(f"tasks: {twice[0].task_label} is there twice")

    def configs(self) -> list[RunConfig]:
        """All runs of the grid, those that train together side by side."""
        return [config for group in self.groups() for config in group]

    def groups(self) -> list[list[RunConfig]]:
        """The runs by width, length with pairs or task, and member: alike but for learning rate and seed; narrow
        models first."""
        return [
            [
                self._run({"name": name, "member": member, "width": width, **case, **each})
                for each in ({"lr": lr, "seed": seed} for seed in self.seeds for lr in self.lrs)
            ]
            for width, case in itertools.product(self.widths, self._cases())
            for name, member in self._members()
        ]

    def _run(self, own: Mapping[str, Any]) -> RunConfig:
        try:
            return build(RunConfig, {**self.run, **own})
        except ArgapError as error:
            if own.keys() <= set(SET_BY_AXES):
                raise
            raise ArgapError(f"task {own['task']['name']}: {error}") from None  # it has fields of its own

    def task_labels(self) -> dict[str, str]:
        """The task of each run in tables, by the run's key: `RunConfig.task_label`, and where tasks of one label differ
        in what the run has for them alone, that too: ``memorization, train_examples 256``."""
        alike: dict[str, list[RunConfig]] = {}
        for config in self.configs():
            alike.setdefault(config.task_label, []).append(config)
        usual = {key: self.run.get(key, getattr(RunConfig, key)) for key in FURTHER}
        labels = {}
        for task, configs in alike.items():
            differing = [key for key in usual if any(getattr(c, key) != getattr(configs[0], key) for c in configs)]
            for config in configs:
                own = {key: getattr(config, key) for key in differing}
                labels[config.key] = ", ".join([task, *(f"{k} {v}" for k, v in own.items() if v != usual[k])])
        return labels

    def _members(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, value in self.members.items():
            yield name, asdict(member_from(name, value))

    def _cases(self) -> Iterator[dict[str, Any]]:
        """Length, task and pairs of a run, and what else the task alone asks for."""
        if self.tasks:
            for given in self.tasks:
                yield from self._task_cases(given)
            return
        for length in self.lengths:
            shares = [self.pairs] if self.pairs_together else [(n,) for n in self.pairs or (max(1, length // 16),)]
            yield from ({"length": length, "task": None, "pairs": pairs} for pairs in shares)

    def _task_cases(self, given: Any) -> Iterator[dict[str, Any]]:
        task = named(given)
        name, run = task["name"], task.pop("run", {})
        if not isinstance(run, Mapping):
            raise ArgapError(f"task {name}: run: expected KEY: VALUE lines, found {run!r}")
        if taken := [key for key in run if key in SET_BY_AXES and key != "length"]:
            raise ArgapError(f"task {name}: run: {taken[0]} is set by members, widths, tasks, lrs or seeds")
        _check_known(f"task {name}: run", run, ("length", *FURTHER))
        lengths = (run["length"],) if "length" in run else self.lengths or (TASKS[name].length,)
        for length in lengths:
            yield {**run, "length": length, "task": resolved(task, length), "pairs": ()}


def _check_known(where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if unknown := [str(key) for key in given if key not in known]:
        raise ArgapError(f"{where}: unknown key {', '.join(unknown)}; known are {', '.join(known)}")


def load_sweep(path: Path) -> Sweep:
    """The sweep of a YAML file, all of whose models and data can be built.

    Raises `ArgapError`, one line that begins with the file's name.
    """
    try:
        sweep = build(Sweep, read_yaml(path))
        check_buildable(sweep)
    except ArgapError as error:
        raise ArgapError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None
    return sweep


def check_buildable(sweep: Sweep) -> None:
    """Build the model of each group without its weights, and the configuration of its data: what does not fit is
    found before the groups ahead of it are trained.

    Raises `ArgapError` with the group's member, task, length and width.
    """
    for first, *_ in sweep.groups():
        try:
            for pairs in first.pairs:
                first.mqar(examples=1, pairs=pairs)
            cost(first.model_config(), first.length)
            if first.from_last:
                with torch.device("meta"):
                    LastVectorDecoder(first.width, first.vocabulary, first.length)
        except ArgapError as error:
            raise ArgapError(f"{first.title}: {error}") from None
