"""Find a suite's files in the work folder, and which models are finished.

``tokens/`` holds packed tokens, shared by models with the same data. Each size has ``SIZE/index/``, the index of its
training text. Each model has ``SIZE/NAME/`` (checkpoint and log), ``SIZE/runs/NAME/`` (log-probs),
``SIZE/trajectories/NAME/step-N/`` (log-probs of intermediate checkpoints, if all were kept), ``SIZE/mqar/NAME.json``
(MQAR scores, if the suite asks for them) and ``SIZE/rates/NAME/lr-RATE/`` (its short trainings, `argap.suite.rates`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec

from argap.errors import MismatchError
from argap.files.regular import is_there
from argap.records import Record
from argap.results import in_place
from argap.suite.config import Entry, Suite
from argap.synthetics.pretrained.records import PretrainedScores, read_scores
from argap.tokens.runs import Run, read_run
from argap.train.config import TrainConfig
from argap.train.log import read_log, read_steps
from argap.train.records import TrainRecord, read_train
from argap.train.tokens import check_text

MAY_DIFFER = ("micro_batch_size",)
"""Training fields that split a batch but do not change the result."""
NOT_ALWAYS = ("trajectory.parquet", "mqar.json")
"""Files of a result that not every suite has."""
AGAIN = "remove the file and run `argap suite run` again"


@dataclass(frozen=True)
class Layout:
    """Paths in the work folder."""

    work: Path

    @classmethod
    def of(cls, name: str, work: Path | None = None) -> Self:
        """Return the paths in ``work``; None: in the default work folder of the suite called ``name``."""
        return cls(work or Path("runs") / name)

    def index(self, size: str) -> Path:
        return self.work / size / "index"

    @property
    def tokens(self) -> Path:
        return self.work / "tokens"

    def checkpoint(self, entry: Entry) -> Path:
        return self.work / entry.size / entry.name

    def run(self, entry: Entry) -> Path:
        return self.work / entry.size / "runs" / entry.name

    def trajectory(self, entry: Entry) -> Path:
        return self.work / entry.size / "trajectories" / entry.name

    def rate(self, entry: Entry, lr: float) -> Path:
        return self.work / entry.size / "rates" / entry.name / f"lr-{lr:g}"

    def mqar(self, entry: Entry) -> Path:
        return self.work / entry.size / "mqar" / f"{entry.name}.json"


def open_finished(folder: Path) -> Run | None:
    """Open the run in ``folder``; None if it is not finished. Raises `FormatError` if its record is damaged."""
    if not is_there(folder / "run.json"):
        return None
    run = read_run(folder)
    return None if run.finished is None else run


def trajectory(entry: Entry, layout: Layout) -> dict[int, Run]:
    """Return a member's scored checkpoints by step, the finished model last; empty if only that was scored."""
    from argap.train.checkpoint import checkpoints

    folders = checkpoints(layout.trajectory(entry))
    runs = {int(folder.name.removeprefix("step-")): open_finished(folder) for folder in folders}
    scored = {step: run for step, run in runs.items() if run is not None}
    last = open_finished(layout.run(entry))
    return scored | {entry.config.total_steps: last} if scored and last else {}


def finished_runs(suite: Suite, size: str, layout: Layout) -> dict[str, Run]:
    """Return the finished runs of a size's models, by name."""
    runs = {entry.name: open_finished(layout.run(entry)) for entry in suite.entries(size)}
    return {name: run for name, run in runs.items() if run is not None}


def scored_as(entry: Entry, layout: Layout, run: Path) -> str:
    """Return the name of the model of which ``run`` has the scores: a member, or one of its checkpoints."""
    return entry.name if run == layout.run(entry) else f"{entry.name} {run.name}"


def check_finished(entry: Entry, layout: Layout, fingerprint: str) -> None:
    """Raise `MismatchError` if a finished member does not match the suite.

    Its training configuration must equal the suite's, and its runs must be of it and its checkpoints, on the evaluation
    set with this ``fingerprint``.
    """
    folder = layout.checkpoint(entry)
    remedy = f"choose another `work`, or remove {folder}, {layout.run(entry)} and {layout.index(entry.size)}"
    record = read_train(folder)
    check_trained(entry.config, record, folder, remedy)
    _check_log(folder / "log.jsonl", record, remedy)
    runs = [open_finished(layout.run(entry)), *trajectory(entry, layout).values()]
    for run in (run for run in runs if run is not None):
        remedy = f"choose another `work`, or remove {run.folder}"
        if run.record.model != (name := scored_as(entry, layout, run.folder)):
            raise MismatchError(f"{run.folder}: scores of {run.record.model}, expected those of {name}; {remedy}")
        scored = run.record.evaluation.fingerprint
        if scored != fingerprint:
            found = f"scored on evaluation set {scored[:12]}, the suite's is {fingerprint[:12]}"
            raise MismatchError(f"{run.folder}: {found}; {remedy}")


def _check_log(path: Path, record: TrainRecord, remedy: str) -> None:
    """Raise `MismatchError` if a log does not end as the training of ``record`` did."""
    steps = read_steps(path)
    if steps and record.finished and repr(steps[-1].loss) != repr(record.finished.loss):  # NaN equals nothing
        found = f"ends with a loss of {steps[-1].loss}, the training with {record.finished.loss}"
        raise MismatchError(f"{path}: {found}; {remedy}")


def check_trained(
    config: TrainConfig, record: TrainRecord, found: object, remedy: str, *, asks: str = "the suite has"
) -> None:
    """Raise `MismatchError` if a model was not trained as ``config`` says, or its text has changed since.

    ``found``: where its record is. ``asks``: who wants ``config``, for the message.
    """
    trained, expected = record.config, config.as_json()
    for key in sorted(trained.keys() & expected.keys() - set(MAY_DIFFER)):
        if trained[key] != expected[key]:
            raise MismatchError(f"{found}: trained with {key} {trained[key]}, {asks} {expected[key]}; {remedy}")
    check_text(record, found, remedy)


def read_recall(suite: Suite, path: Path) -> PretrainedScores:
    """Read the recall of pairs in ``path``. Raises `MismatchError` if it was measured on another test."""
    found = read_scores(path)
    for key, asked in ({} if suite.mqar is None else msgspec.structs.asdict(suite.mqar)).items():
        if (own := getattr(found, key)) != asked:
            raise MismatchError(f"{path}: recall of pairs with {key} {own!r}, the suite's mqar has {asked!r}; {AGAIN}")
    return found


def steps_done(entry: Entry, layout: Layout) -> int:
    """Return the optimizer steps finished, according to the member's log."""
    return max((line.step for line in read_log(layout.checkpoint(entry) / "log.jsonl")), default=0)


class Status(Record, frozen=True):
    """Progress of one model of a suite."""

    size: str
    name: str
    steps: int
    """Optimizer steps finished."""
    total_steps: int
    scored: bool

    def __str__(self) -> str:
        if self.scored:
            return "scored"
        if not self.steps:
            return "not started"
        return "trained" if self.steps >= self.total_steps else f"step {self.steps:,} of {self.total_steps:,}"


def statuses(suite: Suite, layout: Layout, sizes: Sequence[str] = ()) -> list[Status]:
    """Return the progress of each model, in training order."""
    entries = [entry for size in sizes or suite.sizes for entry in suite.entries(size)]
    runs = [open_finished(layout.run(entry)) for entry in entries]
    return [
        Status(entry.size, entry.name, steps_done(entry, layout), entry.config.total_steps, run is not None)
        for entry, run in zip(entries, runs, strict=True)
    ]


def put_in_place(folder: Path) -> None:
    """Replace the result of a size by a new one that is complete (`argap.results.in_place`)."""
    in_place.put_in_place(folder, NOT_ALWAYS)
