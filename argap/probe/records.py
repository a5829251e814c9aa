"""What ``argap probe`` was asked and found: ``probe.json`` and ``layers.json``, read without torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from argap.errors import ArgapError
from argap.files.configs import Seed, check_ranges, parse_numbers
from argap.probe.kits import FORMS, Form
from argap.probe.tasks import TASKS, check_load
from argap.records import Count, Interval, Record, RunIdentity, read_record

FORMAT = 1
Prompts = Annotated[int, msgspec.Meta(ge=2, le=10**6)]
Shots = Annotated[int, msgspec.Meta(ge=0, le=64)]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Condition(Record, frozen=True):
    """What the prompts of one row have in common."""

    task: str
    form: Form
    load: Count
    """What it counts depends on the task (`argap.probe.tasks.Task.load`)."""
    length: Count = 0
    """Tokens or words of facts and filler; 0: facts alone."""


class ProbeSpec(Record, frozen=True, omit_defaults=False):
    """The prompts of a probe. In text they are the same for every model, in tokens for every tokenizer."""

    tasks: tuple[str, ...] = tuple(TASKS)
    forms: tuple[Form, ...] = FORMS
    loads: dict[str, tuple[Count, ...]] = msgspec.field(default_factory=dict)
    """By task, where they are not the task's own."""
    lengths: tuple[Count, ...] = (0,)
    prompts: Prompts = 100
    """Per condition."""
    shots: Shots = 2
    """Solved questions before the one that is scored, for a model that was never told the format."""
    seed: Seed = 0

    def __post_init__(self) -> None:
        check_ranges(self)
        if unknown := [name for name in (*self.tasks, *self.loads) if name not in TASKS]:
            raise ArgapError(f"`tasks` {unknown[0]}: unknown; known are {', '.join(TASKS)}")
        for name, loads in self.loads.items():
            for load in loads:
                check_load(name, load, self.shots)
        if not self.conditions():
            raise ArgapError(
                f"`forms` {', '.join(self.forms) or '(none)'}: no task of {', '.join(self.tasks) or '(none)'} has "
                f"these; expected some of {', '.join(FORMS)}"
            )

    def conditions(self) -> list[Condition]:
        """Return the rows of the grid; a task that needs no filler has one length."""
        found: dict[Condition, None] = {}
        for name in self.tasks:
            task = TASKS[name]
            for form in filter(self.forms.__contains__, task.forms):
                for length in self.lengths if task.fills else (0,):
                    for load in self.loads.get(name, task.loads):
                        found[Condition(name, form, load, length)] = None
        return list(found)


class Scores(Record, frozen=True, kw_only=True):
    """Means over answers, with 95% intervals over prompts."""

    prompts: Count
    answers: Count
    accuracy: Share
    """Of whole answers: every token is the most probable one, so greedy decoding would write it."""
    accuracy_ci95: Interval
    """Wilson's."""
    nll: float
    """Nats per answer."""
    nll_ci95: Interval | None
    """Student-t; None for a single prompt."""
    token_nll: float
    """Nats per token of the answers."""
    token_accuracy: Share
    chance: Share
    """Accuracy of picking a candidate in the prompt at random."""
    decoys: Share | None = None
    """Share of answers whose first wrong token begins another answer that the prompt suggests; None without any."""
    control_nll: float | None = None
    """Nats per token of the same tokens where nothing predicts them. Its difference to `token_nll` is the induction
    score."""


class ProbeRow(Scores, frozen=True, kw_only=True):
    """One model under one condition."""

    model: str
    task: str
    form: Form
    load: Count
    length: Count
    tokens: float
    """Mean number of tokens of a prompt."""
    distance: float
    """Mean distance of the answers from what tells them, in tokens."""


class DistanceRow(Scores, frozen=True, kw_only=True):
    """One model on the answers of a task at some distance, whatever their load and length."""

    model: str
    task: str
    form: Form
    low: Count
    """Distances from ``low`` to 2·``low`` − 1."""


class ProbeResult(ProbeSpec, frozen=True, kw_only=True):
    """``probe.json``."""

    format: int
    rows: tuple[ProbeRow, ...]
    distances: tuple[DistanceRow, ...]
    prompts_sha256: dict[str, str]
    """By model: SHA-256 over the token ids and bounds of its prompts."""
    bos: dict[str, str]
    """By model: the token before each prompt, where there is one."""
    device: dict[str, str]
    dtype: dict[str, str]
    versions: dict[str, str]
    git: str | None

    @property
    def models(self) -> list[str]:
        """The models' names in the order of the rows."""
        return list(dict.fromkeys(row.model for row in self.rows))


class LayerRow(Record, frozen=True):
    """One layer of one model."""

    model: str
    layer: Count
    mixer: str
    """Class of the layer's mixer."""
    heads: tuple[Share, ...] | None
    """Induction score of each head: mean attention to the token after the earlier occurrence. None without weights."""
    previous: tuple[Share, ...] | None
    """Mean attention of each head to the previous token, from the same positions."""
    effect: float
    """By how much zeroing the mixer's output raises the NLL of the answers, nats per token."""
    effect_ci95: Interval


class LayersOfModel(Record, frozen=True):
    """``layers.json`` of one model's folder, which a later call with the same identity reads."""

    format: int
    identity: RunIdentity
    nll: float
    rows: tuple[LayerRow, ...]


class LayersResult(Record, frozen=True):
    """``layers.json``: which layers copy, on random tokens repeated once."""

    format: int
    period: Count
    prompts: Count
    seed: Seed
    rows: tuple[LayerRow, ...]
    nll: dict[str, float]
    """By model: NLL of the answers with every layer, nats per token."""
    uniform: float
    """Attention to one token if all visible ones had the same, averaged over the answers."""
    versions: dict[str, str]
    git: str | None

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(row.model for row in self.rows))


def read_probe(path: Path) -> ProbeResult:
    """Read ``probe.json``. Raises `FormatError` for a missing or broken file."""
    return read_record(path, ProbeResult, newest=FORMAT)


def read_layers(path: Path) -> LayersResult:
    """Read ``layers.json``. Raises `FormatError` for a missing or broken file."""
    return read_record(path, LayersResult, newest=FORMAT)


def by_task(rows: tuple[ProbeRow, ...]) -> dict[tuple[str, Form, int], list[ProbeRow]]:
    """Group rows by task, form and length, in order: the panels of a figure."""
    found: dict[tuple[str, Form, int], list[ProbeRow]] = {}
    for row in rows:
        found.setdefault((row.task, row.form, row.length), []).append(row)
    return found


def parse_loads(entries: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Parse entries such as ``phonebook=4,16``. Raises `ArgapError` for anything else."""
    loads = {}
    for entry in entries:
        name, equals, numbers = entry.partition("=")
        if not equals or name not in TASKS:
            raise ArgapError(f"`load` {entry}: expected TASK=N,... with a task of {', '.join(TASKS)}")
        loads[name] = parse_numbers("load", numbers)
    return loads
