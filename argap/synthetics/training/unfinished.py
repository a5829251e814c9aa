"""Unfinished runs, ``unfinished/KEY.safetensors``: from these files a group resumes after a kill.

A file has the run's tensors (`Trainer.tensors`) and, in its header, its `Position`. The files of a group are renamed
together once all are written, so that they are of one step; after a kill in between, the group starts over.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from argap.errors import FormatError, first_line
from argap.files.atomic import remove_leftovers, replacing
from argap.files.regular import check_regular, is_there
from argap.records import Record
from argap.runtime.progress import say
from argap.synthetics.training.config import RunConfig
from argap.synthetics.training.trainer import Trainer

SECONDS_BETWEEN = 300.0
"""Seconds of training between two writes, about as much as a kill loses."""
HEADER = "position"


class Position(Record, frozen=True):
    """The progress of a run."""

    step: Annotated[int, msgspec.Meta(ge=0)]
    """Finished steps."""
    seconds: float
    """Time spent so far."""
    best: float
    best_step: int
    curve: list[tuple[int, float]]


def path_of(folder: Path, config: RunConfig) -> Path:
    """Return the file of a run."""
    return folder / f"{config.key}.safetensors"


def keep(folder: Path, trainers: Sequence[Trainer], step: int, seconds: float) -> None:
    """Write the runs of a group after ``step`` steps."""
    with ExitStack() as renamed:
        for trainer in trainers:
            position = Position(step, seconds, trainer.best, trainer.best_step, trainer.curve)
            temporary = renamed.enter_context(replacing(path_of(folder, trainer.config)))
            save_file(trainer.tensors(), temporary, {HEADER: msgspec.json.encode(position).decode()})


def resume(folder: Path, trainers: Sequence[Trainer]) -> tuple[int, float]:
    """Load the runs of a group; return the steps taken and the seconds spent.

    Both are 0 if not all runs were kept at one step. Raises `FormatError` for a file that is broken or of another
    model.
    """
    remove_leftovers(folder)
    paths = [path_of(folder, trainer.config) for trainer in trainers]
    positions = [_position(path) for path in paths if is_there(path)]
    if not positions:
        return 0, 0.0
    first, title = positions[0], trainers[0].config.title
    if [position.step for position in positions] != [first.step] * len(paths):
        say(f"{title}: begins anew, its runs were not kept at one step")
        return 0, 0.0
    say(f"{title}: resumes after {first.step:,} of {trainers[0].config.steps:,} steps")
    for trainer, path, position in zip(trainers, paths, positions, strict=True):
        with _readable(path), safe_open(path, "pt", str(trainer.device)) as file:
            trainer.load({name: file.get_tensor(name).clone() for name in file.keys()}, position.step)  # noqa: SIM118
        trainer.best, trainer.best_step, trainer.curve = position.best, position.best_step, position.curve
    return first.step, first.seconds


def discard(folder: Path, config: RunConfig) -> None:
    """Remove the file of a finished run, and the folder with its last file."""
    path_of(folder, config).unlink(missing_ok=True)
    with suppress(OSError):  # absent, or not empty
        folder.rmdir()


def _position(path: Path) -> Position:
    with _readable(path), safe_open(path, "pt") as file:
        return msgspec.json.decode((file.metadata() or {})[HEADER], type=Position)


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    check_regular(path)
    try:
        yield
    except (SafetensorError, OSError, RuntimeError, KeyError, msgspec.MsgspecError) as error:
        reason = f"not an unfinished run of this model ({first_line(error)})"
        raise FormatError(f"{path}: {reason}; remove it, and the run begins anew") from None
