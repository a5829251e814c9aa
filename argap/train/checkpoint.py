"""Training checkpoints in ``checkpoints/step-N/``, written atomically; `argap score` can load each as a model.

``model.safetensors`` (float32), ``config.json`` and the tokenizer are the model after N steps.
``optimizer.safetensors`` has AdamW's two moments by parameter name, ``state.json`` the step and the losses not yet
logged. Nothing is pickled. Random states are not saved, because every step seeds its generators.
"""

import re
import shutil
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, load_model, save_file
from transformers import PreTrainedModel

from argap.errors import FormatError, first_line
from argap.files.atomic import replacing_folder
from argap.files.checksums import check_files, write_checksums
from argap.files.configs import Whole
from argap.files.record import Record, read_record, write_record
from argap.files.regular import check_regular, found_in
from argap.text.tokenizer import copy_tokenizer
from argap.train.model import save_model
from argap.train.optimizer import load_moments, moments

STEP = re.compile(r"step-\d+", re.ASCII)
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
AGAIN = "run the same command again: it resumes from the previous checkpoint"
REMEDY = f"free some space and {AGAIN}"
"""Advice when a checkpoint cannot be written."""


class Position(Record, frozen=True, omit_defaults=False):
    """The progress of a run."""

    step: Whole
    """Finished steps."""
    losses: tuple[float, ...] = ()
    """Losses since the last line of the log."""
    seconds: float = 0.0
    """Time spent training so far."""


def save_checkpoint(
    folder: Path,
    model: PreTrainedModel,
    optimizer: torch.optim.Optimizer,
    position: Position,
    *,
    beside: Path,
    keep: int,
    every: int,
) -> None:
    """Write ``folder/step-N``, then `tidy` the others.

    ``beside``: the folder whose tokenizer files are copied. ``keep`` and ``every``: as in `tidy`.
    """
    with replacing_folder(folder / f"step-{position.step}", remedy=REMEDY, sole_writer=True) as temporary:
        save_model(model, temporary)
        copy_tokenizer(beside, temporary)
        save_file(moments(optimizer, dict(model.named_parameters())), temporary / "optimizer.safetensors")
        write_record(temporary / "state.json", position)
        write_checksums(temporary, [temporary / name for name in FILES])
    tidy(folder, keep=keep, every=every, finished=False)


def tidy(folder: Path, *, keep: int, every: int, finished: bool) -> None:
    """Leave the checkpoints that an undisturbed run leaves, and while it is not ``finished`` the latest to resume from.

    Those are the latest ``keep`` (0: all) of every ``every`` steps. Others are of an interrupt, or of a process that
    was killed before or while it removed them.
    """
    saved = checkpoints(folder)
    scheduled = [path for path in saved if every and step_of(path) % every == 0]
    kept = scheduled[-keep:] + ([] if finished else saved[-1:])
    for path in saved:
        if path not in kept:
            shutil.rmtree(path)


def load_checkpoint(folder: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> Position:
    """Load a checkpoint into ``model`` and ``optimizer``.

    Raises `FormatError` if it is broken or belongs to another model.
    """
    try:
        for name in FILES:
            check_regular(folder / name)
        check_files(folder, [folder / name for name in FILES])
        position = read_record(folder / "state.json", Position)
        load_model(model, folder / "model.safetensors")
        saved = load_file(folder / "optimizer.safetensors")
        load_moments(optimizer, dict(model.named_parameters()), saved, position.step)
    except (FormatError, SafetensorError, OSError, RuntimeError, KeyError) as error:
        raise FormatError(
            f"{folder}: not a complete checkpoint of this model ({first_line(error)}); remove the folder and {AGAIN}"
        ) from error
    return position


def checkpoints(folder: Path) -> list[Path]:
    """List the finished checkpoints below ``folder``, earliest first."""
    return sorted((path for path in found_in(folder, "step-*") if STEP.fullmatch(path.name)), key=step_of)


def step_of(folder: Path) -> int:
    """Return the step of a checkpoint."""
    return int(folder.name.removeprefix("step-"))
