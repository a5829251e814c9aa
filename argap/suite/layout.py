"""Where a suite's files are below the work folder, and which models are finished.

``tokens/`` (packed, shared by all that have them alike), and for each size ``SIZE/index/`` of its training text,
``SIZE/NAME/`` (a trained checkpoint and its log), ``SIZE/runs/NAME/`` (its log-probs),
``SIZE/trajectories/NAME/step-N/`` (those of its checkpoints on the way, where it keeps all of them) and
``SIZE/mqar/NAME.json`` (its recall of pairs, where the suite asks for it).
"""

from dataclasses import dataclass
from pathlib import Path

from argap.atomic import read_json
from argap.errors import ArgapError, FormatError, MismatchError
from argap.runs import Run, open_run
from argap.suite.config import Entry
from argap.train.log import read_log

MAY_DIFFER = ("micro_batch_size",)
"""Fields of a training configuration that decide how a batch is cut, not the trained weights."""


@dataclass(frozen=True)
class Layout:
    """Folders and files below the work folder."""

    work: Path

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

    def mqar(self, entry: Entry) -> Path:
        return self.work / entry.size / "mqar" / f"{entry.name}.json"


def open_finished(folder: Path) -> Run | None:
    """The run in ``folder``, None where it is not finished."""
    try:
        return open_run(folder)
    except (ArgapError, FormatError):
        return None


def finished_run(entry: Entry, layout: Layout) -> Run | None:
    """The run of a member that is trained and scored; None where it is not."""
    return open_finished(layout.run(entry))


def trajectory(entry: Entry, layout: Layout) -> dict[int, Run]:
    """The runs of a member's intermediate checkpoints by step, in order, the finished model last; empty where only the
    last was scored."""
    from argap.train.checkpoint import checkpoints

    folders = checkpoints(layout.trajectory(entry))
    runs = {int(folder.name.removeprefix("step-")): open_finished(folder) for folder in folders}
    scored = {step: run for step, run in runs.items() if run is not None}
    last = finished_run(entry, layout)
    return scored | {entry.config.total_steps: last} if scored and last else {}


def check_finished(entry: Entry, layout: Layout, fingerprint: str) -> None:
    """Raise `MismatchError` where a finished member was trained by another configuration than the suite has now, or it
    or a checkpoint of it was scored on another evaluation set than that of ``fingerprint``."""
    folder = layout.checkpoint(entry)
    trained, asked = read_json(folder / "train.json")["config"], entry.config.as_json()
    for key in sorted(trained.keys() & asked.keys() - set(MAY_DIFFER)):
        if trained[key] != asked[key]:
            raise MismatchError(
                f"{folder}: trained with {key} {trained[key]}, the suite has {asked[key]}; name another `work`, or "
                f"remove {folder} and {layout.run(entry)}"
            )
    runs = [finished_run(entry, layout), *trajectory(entry, layout).values()]
    for run in (run for run in runs if run is not None):
        scored = run.record.evaluation.fingerprint
        if scored != fingerprint:
            raise MismatchError(
                f"{run.folder}: scored on evaluation set {scored[:12]}, the suite's is {fingerprint[:12]}; name "
                f"another `work`, or remove {run.folder}"
            )


def steps_done(entry: Entry, layout: Layout) -> int:
    """Optimizer steps that a member's log shows."""
    log = layout.checkpoint(entry) / "log.jsonl"
    lines = read_log(log) if log.is_file() else []
    return max((line["step"] for line in lines), default=0)
