"""Accuracy against length: what a sweep's runs get right at multiples of the length they are trained on."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from argap.synthetics.sweeps.selection import best_by_validation
from argap.synthetics.sweeps.store import read_results, read_sweep
from argap.synthetics.tasks.registry import TASKS
from argap.synthetics.training.models import Member

COLUMNS = ("task", "model", "family", "trained", "tested", "seeds", "accuracy", "lowest", "highest", "whole", "chance")
"""Columns of `accuracy_by_length`."""
ATTENTION = ("attention", "gated_attention", "mla", "selected_attention")
FIXED_SIGN = ("mamba", "mamba2", "gla", "retnet", "linear_attention", "lightning_attention", "mlstm", "hgrn2")
DELTA_RULE = ("delta_net", "gated_delta_net", "kda")
HELD = 0.5
"""A model generalises to a length if its accuracy is at least half-way from a guess to no error."""
FAR = 4
"""The multiple of the length at which separations are looked for."""


def accuracy_by_length(out: Path) -> pd.DataFrame:
    """Read the accuracy of a sweep's finished runs at every tested length, one row per task, model and length.

    Each seed counts with the learning rate of its best validation accuracy. ``accuracy`` is the mean over ``seeds``,
    ``lowest`` and ``highest`` their range, ``whole`` the mean fraction of examples without an error, ``chance`` the
    accuracy of a guess (NaN if not known), ``family`` the model's `family`. Without tested multiples it is empty.
    """
    sweep, results = read_sweep(out), read_results(out)
    labels, several = sweep.task_labels(), len(sweep.widths) > 1
    rows = []
    for config in sweep.configs():
        result = results.get(config.key)
        if result is None or config.task is None:
            continue
        chance = TASKS[config.task["name"]].chance
        own = {
            "task": labels[config.key],
            "model": f"{config.name}, width {config.width}" if several else config.name,
            "family": family(config.member),
            "trained": config.length,
            "seed": config.seed,
            "lr": config.lr,
            "validation_accuracy": result.validation_accuracy,
            "chance": float("nan") if chance is None else chance(config.data("test")),
        }
        rows += [own | {"tested": row.length, "accuracy": row.accuracy, "whole": row.whole} for row in result.longer]
    if not rows:
        return pd.DataFrame(columns=list(COLUMNS))
    keys = ["task", "model", "family", "trained", "tested", "chance"]
    best = best_by_validation(pd.DataFrame(rows), ["task", "model", "tested", "seed"]).sort_index()
    groups = best.groupby(keys, sort=False, dropna=False)
    found = groups.agg(
        seeds=("accuracy", "count"),
        lowest=("accuracy", "min"),
        highest=("accuracy", "max"),
        accuracy=("accuracy", "mean"),
        whole=("whole", "mean"),
    )
    return found.reset_index()[list(COLUMNS)]


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


def separations(lengths: pd.DataFrame) -> list[Outcome]:
    """Compare the rows of `accuracy_by_length` with `SEPARATIONS`; skip those that a sweep has no model for."""
    outcomes = []
    far = lengths[lengths["tested"] == FAR * lengths["trained"]]
    names = far["task"].str.split(",").str[0]  # whatever differs from the task's preset
    for each in SEPARATIONS:
        rows = far[(names == each.task) & (far["family"] == each.family)]
        if not rows.empty:
            best = rows.sort_values(by="accuracy", ascending=False, kind="stable").iloc[0]
            outcomes.append(Outcome(each, str(best["model"]), float(best["accuracy"]), float(best["chance"])))
    return outcomes
