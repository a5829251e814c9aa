"""Train runs that differ in seed or learning rate side by side, and score each once on its test set.

On a GPU, a step of all runs is one CUDA graph in which each run has its own stream. A step of a small model is a few
hundred kernels that each occupy a few multiprocessors for some microseconds: launching them from Python takes longer
than running them. With a CUDA graph, a step of all models is one launch, and the branches of the graph run in parallel.
Mixers need no support for this: the graph records the kernels of autograd as they are launched.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import torch

from argap.errors import ArgapError, first_line
from argap.models.cost import cost
from argap.records import Record, as_json
from argap.runtime.progress import progress, say
from argap.synthetics.training.config import RunConfig
from argap.synthetics.training.supervision import Supervision, supervision
from argap.synthetics.training.trainer import (
    LengthAccuracy,
    SliceAccuracy,
    Trainer,
    accuracy,
    accuracy_by_slice,
    length_accuracy,
)
from argap.synthetics.training.unfinished import SECONDS_BETWEEN, keep, resume

STEPS_PER_UPDATE = 50
"""Steps between updates of the progress bar."""
POLL_SECONDS = 0.2
"""Seconds between checks of ``stop`` while examples are generated."""

Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A whole number that fits a column of the table of runs."""
Data = Mapping[str, Supervision]
"""Split to examples, on the device."""
Stopped = Literal["solved", "sibling", "steps"]


class RunResult(Record, frozen=True, forbid_unknown_fields=True):
    """The result of one run: a line of ``runs.jsonl``, and ``runs/KEY.json`` until the run is collected there."""

    config: RunConfig
    accuracy: float
    """On the test set, with the weights that had the best validation accuracy."""
    validation_accuracy: float
    best_step: Number
    """The step of the best validation accuracy."""
    steps: Number
    """Steps trained; fewer than the configuration's if the run stopped early."""
    curve: list[tuple[int, float]]
    """Steps and validation accuracy."""
    slices: dict[str, list[SliceAccuracy]]
    """Test accuracy by each slice of the task; for MQAR by distance and by number of KV pairs."""
    parameters: Number
    """Parameters of the model. Neither they nor ``flops`` count the decoder of compression, which all models share."""
    flops: Number
    """FLOPs of one forward pass over one example."""
    state_size: Number
    stopped: Stopped
    """Why the run ended: it solved the task, another run of its group did, or it reached the last step."""
    seconds: float
    """Time from the start of the group until this run was scored."""
    group: Number
    """Number of runs trained side by side."""
    device: str
    compiled: bool = False
    """Whether the layers were compiled, whose rounding differs."""
    longer: tuple[LengthAccuracy, ...] = ()
    """Test accuracy at each of the configuration's multiples of the length."""

    def as_json(self) -> dict[str, Any]:
        """Return all fields as JSON values; of the configuration only those that its task uses."""
        return as_json(self) | {"config": self.config.as_json()}


def train_group(
    configs: Sequence[RunConfig],
    device: torch.device,
    *,
    finished: Callable[[RunResult], None] = lambda _: None,
    kept: Path | None = None,
    first_ends: bool = False,
    compiled: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> list[RunResult]:
    """Train runs with the same number of steps and evaluations; call ``finished`` with each result once it is scored.

    A run stops when its validation accuracy reaches its ``stop_at``. The others continue, or with ``first_ends`` are
    scored at that point. ``compiled``: steps run compiled layers, whose rounding differs. Once ``stop`` returns true,
    even while examples are generated, training ends. Unfinished runs are kept in the folder ``kept``, then and every
    five minutes, and resume from there (`argap.synthetics.training.unfinished`). On a CPU the results depend neither on
    that nor on the other runs of the group.

    Raises `ArgapError` for runs of different lengths, for an unknown mixer, for data that cannot be built, and for a
    broken file in ``kept``.
    """
    _check_alike(configs)
    first = configs[0]
    started = time.monotonic()
    with _matmul_precision(device):
        data = _data_by_seed(configs, device, stop)
        if data is None:
            return []
        trainers = [Trainer(config, data[config.seed]["train"], device, compiled=compiled) for config in configs]
        step, earlier = (0, 0.0) if kept is None else resume(kept, trainers)
        written = time.monotonic()
        started -= earlier
        group = TrainerGroup(trainers)
        results: list[RunResult] = []
        every = max(1, first.steps_per_epoch // first.evaluations)
        with progress(first.title, first.steps - step, "steps") as advance:
            while group.trainers and not stop():
                group.step()
                step += 1
                if step % STEPS_PER_UPDATE == 0:
                    advance(STEPS_PER_UPDATE)
                if step % every == 0 or step == first.steps:
                    ended = _ended(group.trainers, data, step, first_ends)
                    for trainer, why in ended.items():
                        results.append(_score(trainer, step, why, len(configs), time.monotonic() - started))
                        finished(results[-1])
                    group.keep_only([trainer for trainer in group.trainers if trainer not in ended])
                if kept is not None and time.monotonic() - written > SECONDS_BETWEEN:
                    written = time.monotonic()
                    keep(kept, group.trainers, step, written - started)
        if kept is not None and step:
            keep(kept, group.trainers, step, time.monotonic() - started)
    return results


def _check_alike(configs: Sequence[RunConfig]) -> None:
    first, *others = configs
    for config in others:
        if any(getattr(config, key) != getattr(first, key) for key in ("steps", "steps_per_epoch", "evaluations")):
            raise ArgapError(f"{config.key} and {first.key}: runs of a group need the same steps and evaluations")


def _data_by_seed(
    configs: Sequence[RunConfig], device: torch.device, stop: Callable[[], bool]
) -> dict[int, Data] | None:
    """Generate the training and validation examples of each seed; None once ``stop`` returns true.

    They are generated in a thread, since this can take minutes in which ``stop`` must still be checked. An abandoned
    thread ends when its examples are done or with the process.
    """
    by_seed = {config.seed: config for config in configs}
    generated: Future[dict[int, Data]] = Future()

    def generate() -> None:
        try:
            splits = ("train", "validation")
            generated.set_result({seed: {s: supervision(c, s) for s in splits} for seed, c in by_seed.items()})
        except BaseException as error:  # raised again by the waiting thread
            generated.set_exception(error)

    threading.Thread(target=generate, daemon=True).start()
    while not wait([generated], POLL_SECONDS).done:
        if stop():
            return None
    return {seed: {split: each.to(device) for split, each in data.items()} for seed, data in generated.result().items()}


def _ended(
    trainers: Sequence[Trainer], data: Mapping[int, Data], step: int, first_ends: bool
) -> dict[Trainer, Stopped]:
    """Validate the runs. Returns those that end at this step, with the reason."""
    for trainer in trainers:
        trainer.validate(data[trainer.config.seed]["validation"], step)
    solved = [trainer for trainer in trainers if trainer.best >= (trainer.config.stop_at or float("inf"))]
    last = step == trainers[0].config.steps
    ended = trainers if last or (first_ends and solved) else solved
    return {trainer: "solved" if trainer in solved else "steps" if last else "sibling" for trainer in ended}


def _score(trainer: Trainer, step: int, why: Stopped, group: int, seconds: float) -> RunResult:
    """Score a run that has ended: its best weights on the test set."""
    config = trainer.config
    trainer.restore_best()
    test = supervision(config, "test").to(trainer.device)
    correct = trainer.correct(test)
    longer = []
    for multiple in config.multiples:
        more = supervision(config, "test", multiple).to(trainer.device)
        longer.append(length_accuracy(config.length * multiple, trainer.correct(more), more))
    model_cost = cost(config.model_config(), config.length)
    return RunResult(
        config=config,
        accuracy=accuracy(correct, test),
        validation_accuracy=trainer.best,
        best_step=trainer.best_step,
        steps=step,
        curve=trainer.curve,
        slices=accuracy_by_slice(correct, test),
        parameters=model_cost.parameters,
        flops=model_cost.flops,
        state_size=model_cost.state_size,
        stopped=why,
        seconds=round(seconds, 3),
        group=group,
        device=torch.cuda.get_device_name() if trainer.device.type == "cuda" else "CPU",
        compiled=trainer.compiled,
        longer=tuple(longer),
    )


@contextmanager
def _matmul_precision(device: torch.device):
    """Use TF32 for matrix products on a GPU; weights and accumulators stay float32."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


WARM_UP = 3
"""Steps before the capture, in which libraries and the optimizer allocate their state."""


class TrainerGroup:
    """Runs that take their steps together."""

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers = list(trainers)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.steps = 0
        self.use_graph = self.trainers[0].stream is not None

    def keep_only(self, trainers: Sequence[Trainer]) -> None:
        """Continue with only these runs."""
        if len(trainers) != len(self.trainers):
            self.trainers, self.graph = list(trainers), None

    def step(self) -> None:
        """Take one step in every run."""
        self.steps += 1
        if self.graph is None and self.use_graph and self.steps > WARM_UP:
            self._capture()
        if self.graph is not None:
            self.graph.replay()
        else:
            self._step_each()

    def _step_each(self) -> None:
        """Take one step in every run, on its own stream if there are streams."""
        for trainer in self.trainers:
            if trainer.stream is None:
                trainer.step()
                continue
            main = torch.cuda.current_stream()
            trainer.stream.wait_stream(main)
            with torch.cuda.stream(trainer.stream):
                trainer.step()
        for trainer in self.trainers:
            if trainer.stream is not None:
                torch.cuda.current_stream().wait_stream(trainer.stream)

    def _capture(self) -> None:
        """Record a step of all runs. If a step synchronizes with the GPU, continue without a graph."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph):
                self._step_each()
        except RuntimeError as error:
            self.use_graph = False
            for trainer in self.trainers:
                trainer.optimizer.zero_grad(set_to_none=True)
            torch.cuda.synchronize()
            reason = first_line(error)
            say(f"{self.trainers[0].config.name}: no CUDA graph of its step ({reason}); it runs kernel by kernel")
            return
        self.graph = graph
