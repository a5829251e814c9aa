"""Accuracy against length: what a sweep's runs get right at multiples of the length they are trained on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from argap.synthetics.sweeps.store import read_results, read_sweep
from argap.synthetics.tasks.registry import TASKS
from argap.synthetics.training.loop import RunResult
from argap.synthetics.training.models import Member

ATTENTION = ("attention", "gated_attention", "mla", "nsa", "selected_attention")
FIXED_SIGN = ("mamba", "mamba2", "gla", "retnet", "linear_attention", "lightning_attention", "mlstm", "hgrn2")
DELTA_RULE = ("delta_net", "gated_delta_net", "kda")
HELD = 0.5
"""A model generalises to a length if its accuracy is at least half-way from a guess to no error."""
FAR = 4
"""The multiple of the length at which separations are looked for."""


class LengthRow(NamedTuple):
    """Accuracy of one model on one task at one length."""

    task: str
    model: str
    family: str
    """The model's `family`."""
    trained: int
    """Length in training."""
    tested: int
    seeds: int
    accuracy: float
    """Mean over seeds, each with the learning rate of its best validation accuracy."""
    lowest: float
    highest: float
    """Range over seeds."""
    whole: float
    """Mean fraction of examples without an error."""
    chance: float
    """Accuracy of a guess; NaN if not known."""


def accuracy_by_length(out: Path) -> list[LengthRow]:
    """Read the accuracy of a sweep's finished runs at every tested length, by task, model and length."""
    sweep, results = read_sweep(out), read_results(out)
    labels, several = sweep.task_labels(), len(sweep.widths) > 1
    groups: dict[tuple[str, str], dict[int, RunResult]] = {}
    for config in sweep.configs():
        result = results.get(config.key)
        if result is None or not result.longer:
            continue
        model = f"{config.name}, width {config.width}" if several else config.name
        of_seed = groups.setdefault((labels[config.key], model), {})
        best = of_seed.get(config.seed)
        if best is None or result.validation_accuracy > best.validation_accuracy:  # the first listed rate wins a tie
            of_seed[config.seed] = result
    rank = {task: k for k, task in enumerate(dict.fromkeys(labels.values()))}
    rows = [_rows(task, model, list(of_seed.values())) for (task, model), of_seed in groups.items()]
    return sorted((row for each in rows for row in each), key=lambda row: rank[row.task])


def _rows(task: str, model: str, results: Sequence[RunResult]) -> list[LengthRow]:
    config = results[0].config
    assert config.task is not None
    chance = TASKS[config.task["name"]].chance
    guess = float("nan") if chance is None else chance(config.data("test"))
    rows = []
    for at in zip(*(result.longer for result in results), strict=True):
        right = [each.accuracy for each in at]
        whole = fmean(each.whole for each in at)
        of_seeds = len(at), fmean(right), min(right), max(right), whole
        rows.append(LengthRow(task, model, family(config.member), config.length, at[0].length, *of_seeds, guess))
    return rows


def family(member: Member) -> str:
    """Return what is known of a model's transitions.

    ``attention``; ``hybrid`` (with other layers); ``reflections`` (a delta rule whose β reaches 2 in some layer, so
    that eigenvalues may be −1); ``positive`` (recurrences whose eigenvalues are between 0 and 1); or ``other``.
    """
    specs = [spec if isinstance(spec, Mapping) else {"name": spec} for spec in member.mixers]
    attends = [spec["name"] in ATTENTION for spec in specs]
    if any(attends):
        return "attention" if all(attends) else "hybrid"
    if any(spec.get("negative_eigenvalues", False) for spec in specs):
        return "reflections"
    return "positive" if all(spec["name"] in (*FIXED_SIGN, *DELTA_RULE) for spec in specs) else "other"


class Separation(NamedTuple):
    """A known difference between families of models."""

    task: str
    family: str
    generalises: bool
    """Whether some model of the family is expected to generalise to `FAR` times the length; if not, none is."""
    source: str


NEGATIVE = "arXiv 2411.12537"
COPYING = "arXiv 2402.01032"
SEPARATIONS = (
    *(
        Separation(task, kind, kind == "reflections", NEGATIVE)
        for task in ("parity", "s3")
        for kind in ("attention", "positive", "reflections")
    ),
    Separation("copy", "positive", False, COPYING),
    Separation("copy", "attention", True, COPYING),
)


class Outcome(NamedTuple):
    """What a sweep shows of a separation."""

    expected: Separation
    model: str
    """The best model of the family at `FAR` times the length."""
    accuracy: float
    """Its accuracy there."""
    chance: float

    @property
    def appears(self) -> bool:
        """Whether that model generalises, or fails to, as expected."""
        return (self.accuracy - self.chance >= HELD * (1 - self.chance)) == self.expected.generalises


def separations(rows: Sequence[LengthRow]) -> list[Outcome]:
    """Compare rows of `accuracy_by_length` with `SEPARATIONS`; skip those that a sweep has no model for."""
    outcomes = []
    far = [row for row in rows if row.tested == FAR * row.trained]
    for each in SEPARATIONS:  # by the task's name, whatever differs from its preset
        fit = [row for row in far if row.task.split(",")[0] == each.task and row.family == each.family]
        if fit:
            best = max(fit, key=lambda row: row.accuracy)
            outcomes.append(Outcome(each, best.model, best.accuracy, best.chance))
    return outcomes
