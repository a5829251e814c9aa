"""Small runs and sweeps that the tests of the synthetic tasks share."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from argap.files.atomic import write_json
from argap.files.configs import build
from argap.runtime.jobs import run_on
from argap.synthetics.sweeps.store import TABLE, collect_runs, write_run
from argap.synthetics.sweeps.sweep import Sweep
from argap.synthetics.training.config import RunConfig
from argap.synthetics.training.loop import RunResult
from argap.synthetics.training.models import MEMBERS
from argap.synthetics.training.trainer import LengthAccuracy

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")
HERE = partial(run_on, [CPU])
"""The engine of a sweep in this process."""
TINY = RunConfig(
    name="attention",
    member=MEMBERS["attention"],
    width=8,
    length=16,
    pairs=(2,),
    lr=1e-3,
    vocab_size=32,
    train_examples=64,
    validation_examples=16,
    test_examples=20,
    batch_size=16,
    epochs=2,
)

RUN = {
    "vocab_size": 32,
    "train_examples": 32,
    "validation_examples": 8,
    "test_examples": 8,
    "batch_size": 16,
    "epochs": 1,
}
SMALL = {
    "members": {"attention": None},
    "lengths": [16],
    "widths": [8],
    "pairs": [2],
    "lrs": [1e-3],
    "run": RUN,
}
"""A sweep of one run of two steps."""


def write_results(
    out: Path,
    grid: dict[str, Any],
    accuracy: Callable[[RunConfig], float],
    longer: Callable[[RunConfig, int], float] = lambda config, multiple: 0.0,
) -> None:
    """Write the folder of a sweep of untrained runs with these accuracies on both sets, and at multiples of the length;
    they have width x 1,000 FLOPs and parameters."""
    sweep = build(Sweep, grid)
    write_json(out / "sweep.json", {"sweep": grid})
    (out / TABLE).unlink(missing_ok=True)
    for config in sweep.configs():
        size, score = 1000 * config.width, accuracy(config)
        cost = {"parameters": size, "flops": size, "state_size": size // 10}
        told: dict[str, Any] = {"curve": [], "slices": {}, "stopped": "steps", "group": 1, "device": "CPU"}
        steps = {"best_step": 1, "steps": 1, "seconds": 0.0}
        told["longer"] = tuple(
            LengthAccuracy(config.length * multiple, 100, longer(config, multiple), 0.0)
            for multiple in config.multiples
        )
        write_run(out, RunResult(config=config, accuracy=score, validation_accuracy=score, **steps, **cost, **told))
    collect_runs(sweep, out)


LENGTHS = {
    "compositional_mqar": 96,
    "forgetting_mqar": 80,
    "joint_recall": 84,
    "stacked_mqar": 74,
    "multi_hop": 72,
    "tree_recall": 43,
}
"""The shortest examples of tasks that need more than 32 tokens."""


def task_run(name: str, member: str = "attention", **own: Any) -> RunConfig:
    """A run of a few steps: two epochs of four."""
    given = {
        "length": LENGTHS.get(name, 32),
        "width": 16,
        "train_examples": 64,
        "validation_examples": 16,
        "test_examples": 20,
    }
    task = {"name": name} | ({"tokens": 4} if name == "selective_copy" else {}) | own.pop("task", {})
    fields: dict[str, Any] = given | {"lr": 1e-3, "batch_size": 16, "epochs": 2} | own
    return RunConfig(name=member, member=MEMBERS[member], pairs=(), task=task, **fields)
