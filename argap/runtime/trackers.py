"""Log metrics to experiment trackers: TensorBoard, Weights & Biases and trackio, behind one small interface.

A training run, a call of `argap score` and one size of a suite are each one run of the tracker. TensorBoard writes to
``tensorboard/`` in the run's folder; the others log to the project ``argap``, or to the one named by ``WANDB_PROJECT``
or ``TRACKIO_PROJECT``. A resumed run continues the same run of the tracker.
"""

import importlib
import importlib.util
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from argap.errors import ArgapError, extra

PROJECT = "argap"


class Tracker(Protocol):
    """A run of a tracker."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Record values at a step."""
        ...

    def close(self) -> None:
        """End the run and write whatever is left."""
        ...


class _TensorBoard:
    def __init__(self, folder: Path, config: Mapping[str, Any], first_step: int) -> None:
        with extra("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=first_step + 1 if first_step else None)
        if config and not first_step:
            self._writer.add_text("config", f"```json\n{json.dumps(config, indent=2, default=str)}\n```")

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _OfRun:
    """A tracker whose package ``name`` returns a run object; ``options``: further arguments of its ``init``."""

    def __init__(self, name: str, folder: Path, config: Mapping[str, Any], **options: Any) -> None:
        with extra(name):
            package: Any = importlib.import_module(name)
        project = os.environ.get(f"{name.upper()}_PROJECT", PROJECT)
        self._run = package.init(project=project, name=folder.name, config=dict(config), **options)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


def _wandb(folder: Path, config: Mapping[str, Any], first_step: int) -> _OfRun:
    run = sha256(str(folder.absolute()).encode()).hexdigest()[:16]
    return _OfRun("wandb", folder, config, id=run, resume="allow" if first_step else None, dir=str(folder))


def _trackio(folder: Path, config: Mapping[str, Any], first_step: int) -> _OfRun:
    return _OfRun("trackio", folder, config, resume="allow" if first_step else "never")


KNOWN: dict[str, Callable[[Path, Mapping[str, Any], int], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _wandb,
    "trackio": _trackio,
}
"""Trackers by name, which is also the name of the package."""


def check_trackers(names: Sequence[str]) -> None:
    """Raise `ArgapError` for an unknown tracker, and for one whose package is missing, without importing it."""
    for name in names:
        if name not in KNOWN:
            raise ArgapError(f"`log_to` {name}: expected {', '.join(KNOWN)}")
        with extra(name):
            if importlib.util.find_spec(name) is None:
                raise ModuleNotFoundError(name=name)


class Trackers:
    """Log to several trackers, or none, at once. Use as a context manager, or call `close`."""

    def __init__(
        self, names: Sequence[str], folder: Path, config: Mapping[str, Any] | None = None, *, first_step: int = 0
    ) -> None:
        """Start a run of each tracker. Raises `ArgapError` as `check_trackers` does.

        ``folder``: the run's folder, which names the run. ``config``: shown with it. ``first_step``: the step after
        which a resumed run continues; later steps are logged again.
        """
        check_trackers(names)
        self._trackers = [KNOWN[name](folder, config or {}, first_step) for name in dict.fromkeys(names)]

    def log(self, metrics: Mapping[str, float | None], step: int) -> None:
        """Record values at a step, except None, NaN and infinities."""
        known = {name: value for name, value in metrics.items() if value is not None and math.isfinite(value)}
        for each in self._trackers:
            each.log(known, step)

    def close(self) -> None:
        for each in self._trackers:
            each.close()
        self._trackers = []

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
