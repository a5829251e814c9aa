"""Score published checkpoint series, to follow recall over the training of models trained by others.

Instead of training, a YAML file lists the checkpoints of each model: local folders or hub revisions. All are scored as
by `argap score`, against the reference's last checkpoint, so reports, slices and views can open the result; its rows
also give the trajectory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pandas as pd

from argap.errors import ArgapError, within
from argap.files.configs import Tokens, build, check_ranges
from argap.files.parquet import write_parquet
from argap.files.plain_yaml import read_yaml
from argap.files.resumable import plain_name
from argap.records import EvaluationSpec, Gap
from argap.scoring.config import BY_MODEL, ScoreConfig
from argap.scoring.per_model import PerModel
from argap.suite.trajectory import COLUMNS

if TYPE_CHECKING:
    from argap.runtime.torchrun import Parallel

STEP = "{step}"
"""Placeholder of the step in a series' ``checkpoint``."""


@dataclass(frozen=True)
class Series:
    """The checkpoints of one model along its training."""

    tokens_per_step: Tokens
    """Training tokens per step; models are compared at equal tokens."""
    checkpoint: str | None = None
    """A folder or hub id with ``{step}`` in it: ``EleutherAI/pythia-160m@step{step}``."""
    steps: tuple[int, ...] = ()
    """Steps to fill in."""
    checkpoints: Mapping[Any, Any] = field(default_factory=dict)
    """Instead of both: the checkpoint of each step."""
    tokenizer: str | None = None
    dtype: str | None = None
    bos: str | None = None
    max_length: int | None = None
    """Settings for these checkpoints, as in `argap score`."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if (self.checkpoint is None) == (not self.checkpoints):
            raise ArgapError("expected either checkpoint and steps, or checkpoints")
        if self.checkpoint is not None and (STEP not in self.checkpoint or not self.steps):
            raise ArgapError(f"checkpoint: expected {STEP} in it, and steps to fill in; found {self.checkpoint!r}")
        if self.checkpoints and self.steps:
            raise ArgapError("steps: checkpoints name them already")
        for step, source in self.checkpoints.items():
            if isinstance(step, bool) or not isinstance(step, int) or step < 0 or not isinstance(source, str):
                raise ArgapError(f"checkpoints: expected STEP: CHECKPOINT lines, found {step!r}: {source!r}")
        if len(set(self.steps)) < len(self.steps) or min(self.steps, default=0) < 0:
            raise ArgapError(f"steps: expected different numbers from 0, found {', '.join(map(str, self.steps))}")

    @property
    def by_step(self) -> dict[int, str]:
        """Return the checkpoint of each step, in order."""
        template = self.checkpoint
        given = self.checkpoints if template is None else {n: template.replace(STEP, str(n)) for n in self.steps}
        return {int(step): str(given[step]) for step in sorted(given)}


@dataclass(frozen=True)
class SeriesFile:
    """The contents of the YAML file."""

    reference: str
    """The series that the others are compared with."""
    series: Mapping[Any, Any]
    """`Series` by name."""
    evaluation: EvaluationSpec
    """The text that every checkpoint is scored on."""
    index: str | None = None
    """Bigram index of the training text; None: every repeated bigram is a hit."""

    def __post_init__(self) -> None:
        if not self.evaluation.data:
            raise ArgapError("evaluation: data: missing")
        for name in self.series:
            plain_name("series:", name)
            self.of(name)
        if self.reference not in self.series:
            raise ArgapError(f"reference: {self.reference!r} is not a series; series are {', '.join(self.series)}")

    def of(self, name: str) -> Series:
        """Return the series called ``name``. Raises `ArgapError` for invalid fields."""
        given = self.series[name]
        if not isinstance(given, Mapping):
            raise ArgapError(f"series: {name}: expected KEY: VALUE lines, found {given!r}")
        with within(f"series: {name}"):
            return build(Series, given)

    @property
    def checkpoints(self) -> dict[str, tuple[Series, str]]:
        """Return the series and the checkpoint of every row of the result, by row name."""
        known = {name: self.of(name) for name in self.series}
        every = [(name, each, step) for name, each in known.items() for step in each.by_step]
        return {model_name(name, step): (each, each.by_step[step]) for name, each, step in every}

    def over(self, config: ScoreConfig) -> ScoreConfig:
        """Return ``config`` with the text, the index, and each row's own options."""
        given = {row: series for row, (series, _) in self.checkpoints.items()}

        def of(option: str) -> PerModel:
            values = {row: getattr(series, option) for row, series in given.items()}
            return PerModel(None, {row: value for row, value in values.items() if value is not None})

        by_model = {option: of(option) for option in BY_MODEL}
        return msgspec.structs.replace(config, text=self.evaluation, index=self.index, **by_model)


def model_name(series: str, step: int) -> str:
    """Return the name of a checkpoint's row and run."""
    return f"{series} step-{step}"


def load_series(path: Path) -> SeriesFile:
    """Read a file of series. Raises `ArgapError`, one line that starts with the file's name."""
    values = read_yaml(path)
    with within(path):
        return build(SeriesFile, values)


def score_series(
    given: SeriesFile,
    out: Path,
    config: ScoreConfig,
    *,
    parallel: "Parallel | None",
) -> tuple[Gap, pd.DataFrame]:
    """Score every checkpoint not scored yet, and write the result with ``trajectory.parquet`` to ``out``.

    ``parallel``: this process among those of ``torchrun``. Returns ``gap.json`` and the trajectory. Raises as
    `argap.results.pipeline.score_models`.
    """
    from argap.results.pipeline import score_models

    sources = {name: f"{name}={source}" for name, (_, source) in given.checkpoints.items()}
    last = max(given.of(given.reference).by_step)
    reference = sources.pop(model_name(given.reference, last))
    gap = score_models(list(sources.values()), reference, out, given.over(config), parallel=parallel)
    trajectory = trajectory_of(gap, given)
    if parallel is None or parallel.is_main:
        write_parquet(out / "trajectory.parquet", trajectory)
    return gap, trajectory


def trajectory_of(gap: Gap, given: SeriesFile) -> pd.DataFrame:
    """Return one row per checkpoint with `argap.suite.trajectory.COLUMNS`, from the rows of the result.

    ``n`` counts the result's unit (tokens or bytes); NLL is in nats per unit.
    """
    rows: list[tuple[Any, ...]] = []
    for name in given.series:
        series = given.of(name)
        for step in series.by_step:
            on = [part[model_name(name, step)] for part in (gap.on_hits, gap.on_other)]
            slices = [value for each in on for value in (each.n, np.nan if each.nll is None else each.nll)]
            rows.append((name, step, step * series.tokens_per_step, *slices))
    return pd.DataFrame(rows, columns=list(COLUMNS))
