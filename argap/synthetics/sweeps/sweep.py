"""A sweep: a grid of runs, read from a YAML file and checked before anything is trained."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import torch

from argap.errors import ArgapError, within
from argap.files.configs import build
from argap.files.plain_yaml import read_yaml
from argap.files.resumable import plain_name
from argap.models.cost import cost
from argap.synthetics.tasks.registry import TASKS, parse_task, resolve_task
from argap.synthetics.training.config import LEARNING_RATES, RunConfig, default_pairs
from argap.synthetics.training.models import LastVectorDecoder, member_from

SET_BY_AXES = ("name", "member", "width", "length", "pairs", "task", "lr", "seed")
"""Fields of a run that the sweep's own keys set."""
OTHER_FIELDS = tuple(f.name for f in fields(RunConfig) if f.name not in SET_BY_AXES)
"""Fields that ``run`` may set."""


@dataclass(frozen=True)
class Sweep:
    """Every member at every width, length, number of KV pairs (or task), learning rate and seed."""

    members: Mapping[Any, Any]
    """Name to the fields of a `Member` that differ from its default, or None; once checked, to all its fields."""
    lengths: tuple[int, ...] = ()
    """N; with ``tasks``, the default is each task's own."""
    widths: tuple[int, ...] = (64, 128, 256, 512)
    pairs: tuple[int, ...] = ()
    """D, a run for each; by default N / 16."""
    pairs_together: bool = False
    """Train and test each run on all of ``pairs`` at once, with equal numbers of examples."""
    tasks: tuple[Any, ...] = ()
    """Tasks that replace MQAR: names in `argap.synthetics.tasks.registry.TASKS`, or mappings of ``name``, the fields
    that differ from its preset, and ``run``, the fields of `RunConfig` to set for this task only."""
    lrs: tuple[float, ...] = LEARNING_RATES
    seeds: tuple[int, ...] = (0,)
    run: Mapping[str, Any] = field(default_factory=dict)
    """Other fields of `RunConfig`, the same for all runs."""
    first_ends: bool = False
    """End a group (all its learning rates and seeds) as soon as its first run solves the task; skip a group in which
    one already has. This saves up to half the time and keeps the figure, which shows each group's best run."""
    axis: Literal["width", "pairs", "state_size"] = "width"
    """Horizontal axis of the figure."""
    title: str = ""

    def __post_init__(self) -> None:
        if not all((self.members, self.lengths or self.tasks, self.widths, self.lrs, self.seeds)):
            raise ArgapError("members, lengths, widths, lrs and seeds: expected at least one of each")
        for name in self.members:
            plain_name("members:", name)
        members = {name: asdict(member_from(name, value)) for name, value in self.members.items()}
        object.__setattr__(self, "members", members)
        for axis in ("lengths", "widths", "pairs", "lrs", "seeds"):
            values = getattr(self, axis)
            if twice := [value for number, value in enumerate(values) if value in values[:number]]:
                raise ArgapError(f"{axis}: {twice[0]} is listed twice")
        if taken := [key for key in self.run if key in SET_BY_AXES]:
            raise ArgapError(f"run: {taken[0]} is set by members, widths, lengths, pairs, tasks, lrs or seeds")
        _check_known("run", self.run, OTHER_FIELDS)
        if self.pairs_together and not self.pairs:
            raise ArgapError("pairs_together: expected a list of pairs")
        if self.tasks and self.pairs:
            raise ArgapError("pairs: they apply to MQAR only; a sweep has either pairs or tasks")
        firsts = [group[0] for group in self.groups()]  # axes are distinct, so only tasks can repeat a run
        keys = [first.key for first in firsts]
        if twice := [first for number, first in enumerate(firsts) if first.key in keys[:number]]:
            raise ArgapError(f"tasks: {twice[0].task_label} is listed twice")

    def configs(self) -> list[RunConfig]:
        """List all runs of the grid, group by group."""
        return [config for group in self.groups() for config in group]

    def groups(self) -> list[list[RunConfig]]:
        """List the runs in groups that train side by side: they differ only in learning rate and seed.

        Narrow models come first.
        """
        groups = []
        for width, case in itertools.product(self.widths, self._cases()):
            for name, member in self.members.items():
                own = {"name": name, "member": member, "width": width, **case}
                groups.append([self._run({**own, "lr": lr, "seed": seed}) for seed in self.seeds for lr in self.lrs])
        return groups

    def _run(self, own: Mapping[str, Any]) -> RunConfig:
        try:
            return build(RunConfig, {**self.run, **own})
        except ArgapError as error:
            if own.keys() <= set(SET_BY_AXES):
                raise
            raise ArgapError(f"task {own['task']['name']}: {error}") from None  # a task's own fields may be wrong

    def task_labels(self) -> dict[str, str]:
        """Return the label of each run's task in tables, by run key.

        Tasks with the same `RunConfig.task_label` are distinguished by their fields of the run, as in ``memorization,
        train_examples 256``.
        """
        alike: dict[str, list[RunConfig]] = {}
        for config in self.configs():
            alike.setdefault(config.task_label, []).append(config)
        usual = {key: self.run.get(key, getattr(RunConfig, key)) for key in OTHER_FIELDS}
        labels = {}
        for task, configs in alike.items():
            differing = [key for key in usual if any(getattr(c, key) != getattr(configs[0], key) for c in configs)]
            for config in configs:
                own = {key: getattr(config, key) for key in differing}
                labels[config.key] = ", ".join([task, *(f"{k} {v}" for k, v in own.items() if v != usual[k])])
        return labels

    def _cases(self) -> Iterator[dict[str, object]]:
        """Yield length, task and pairs of a run, with the fields that only this task sets."""
        if self.tasks:
            for given in self.tasks:
                yield from self._task_cases(given)
            return
        for length in self.lengths:
            cases = [self.pairs] if self.pairs_together else [(n,) for n in self.pairs or default_pairs(length)]
            yield from ({"length": length, "task": None, "pairs": pairs} for pairs in cases)

    def _task_cases(self, given: Any) -> Iterator[dict[str, object]]:
        task = parse_task(given)
        name, run = task["name"], task.pop("run", {})
        if not isinstance(run, Mapping):
            raise ArgapError(f"task {name}: run: expected KEY: VALUE lines, found {run!r}")
        if taken := [key for key in run if key in SET_BY_AXES and key != "length"]:
            raise ArgapError(f"task {name}: run: {taken[0]} is set by members, widths, tasks, lrs or seeds")
        _check_known(f"task {name}: run", run, ("length", *OTHER_FIELDS))
        lengths = (run["length"],) if "length" in run else self.lengths or (TASKS[name].length,)
        for length in lengths:
            yield {**run, "length": length, "task": resolve_task(task, length), "pairs": ()}


def _check_known(where: str, given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if unknown := [str(key) for key in given if key not in known]:
        raise ArgapError(f"{where}: unknown key {', '.join(unknown)}; known are {', '.join(known)}")


def load_sweep(path: Path) -> Sweep:
    """Read a sweep from a YAML file and check that its models and data can be built.

    Raises a one-line `ArgapError` that starts with the file's name.
    """
    values = read_yaml(path)
    with within(path):
        sweep = build(Sweep, values)
        check_buildable(sweep)
    return sweep


def check_buildable(sweep: Sweep) -> None:
    """Build the model of each group on the meta device and the configuration of its data, before any training.

    Raises `ArgapError` with the group's member, task, length and width.
    """
    for first, *_ in sweep.groups():
        with within(first.title):
            for pairs in first.pairs:
                first.mqar(examples=1, pairs=pairs)
            cost(first.model_config(), first.length)
            if first.from_last:
                with torch.device("meta"):
                    LastVectorDecoder(first.width, first.vocabulary, first.length)
