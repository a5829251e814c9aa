"""Train runs that differ in their seed or learning rate side by side, and score each once on its test set."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from argap.errors import ArgapError
from argap.models.cost import cost
from argap.progress import progress
from argap.synthetics.learner import Learner, accuracy, accuracy_by_slice
from argap.synthetics.protocol import RunConfig
from argap.synthetics.questions import Questions, questions
from argap.synthetics.together import Together

STEPS_AT_ONCE = 50
"""By so many progress is shown."""
SECONDS_BETWEEN_LOOKS = 0.2
"""By so many data are waited for before ``stop`` is asked again."""


@dataclass(frozen=True)
class RunResult:
    """What one run came to."""

    config: RunConfig
    accuracy: float
    """On the test set, with the weights that were best on the validation set."""
    validation_accuracy: float
    best_step: int
    """After how many steps these weights were."""
    steps: int
    """Trained; fewer than the configuration's where the run stopped early."""
    curve: list[tuple[int, float]]
    """Steps and validation accuracy."""
    slices: dict[str, list[dict[str, float]]]
    """Test accuracy by what tells the task's answers apart; for MQAR distance and number of pairs."""
    parameters: int
    """Of the model; a decoder of compression, alike for all, is counted neither here nor in ``flops``."""
    flops: int
    """Of one forward pass over an example."""
    state_size: int
    stopped: str
    """Why: ``solved``, ``sibling`` (another of its group solved the task), or ``steps`` (it had them all)."""
    seconds: float
    """From the start of the group until this run was scored."""
    group: int
    """Runs that were trained side by side."""
    device: str

    def as_json(self) -> dict[str, Any]:
        """All fields as JSON has them."""
        return vars(self) | {"config": self.config.as_json()}


def train_together(
    configs: Sequence[RunConfig],
    device: torch.device,
    *,
    finished: Callable[[RunResult], None] = lambda _: None,
    first_ends: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> list[RunResult]:
    """Train runs that are alike in steps and evaluations; ``finished`` is called with each as soon as it is scored.

    A run stops where its validation accuracy reaches its ``stop_at``, and the others go on, or with ``first_ends``
    are scored as they are. Where ``stop`` says so, while data are made too, those that are not finished are given
    up. The numbers do not depend on which runs are in the group.

    Raises `ArgapError` for runs that are not alike, for a mixer that is unknown, and as making their data does.
    """
    first = configs[0]
    for config in configs:
        if (config.steps, config.steps_an_epoch, config.evaluations) != (
            first.steps,
            first.steps_an_epoch,
            first.evaluations,
        ):
            raise ArgapError(f"{config.key} and {first.key}: trained together they need the same steps and evaluations")
    started = time.monotonic()
    with _matmul_precision(device):
        data: dict[int, dict[str, Questions]] = {}
        for config in configs:
            if config.seed not in data:
                made = _made(config, stop)
                if made is None:
                    return []
                data[config.seed] = {split: each.to(device) for split, each in made.items()}
        learners = [Learner(config, data[config.seed]["train"], device) for config in configs]
        together = Together(learners)
        curves: dict[str, list[tuple[int, float]]] = {config.key: [] for config in configs}
        results = []
        every = max(1, first.steps_an_epoch // first.evaluations)
        with progress(first.title, first.steps, "steps") as advance:
            for step in range(1, first.steps + 1):
                together.step()
                if stop():
                    return results
                if step % STEPS_AT_ONCE == 0:
                    advance(STEPS_AT_ONCE)
                if step % every and step != first.steps:
                    continue
                for learner in together.learners:
                    key = learner.config.key
                    curves[key].append((step, learner.validate(data[learner.config.seed]["validation"], step)))
                solved = [learner for learner in together.learners if learner.best >= learner.config.stop_at]
                over = step == first.steps or (first_ends and solved)
                ended = together.learners if over else solved
                for learner in ended:
                    why = "solved" if learner in solved else "steps" if step == first.steps else "sibling"
                    seconds = time.monotonic() - started
                    results.append(_scored(learner, step, why, curves[learner.config.key], len(configs), seconds))
                    finished(results[-1])
                if over or len(solved) == len(together.learners):
                    break
                together.keep([learner for learner in together.learners if learner not in solved])
    return results


def _made(config: RunConfig, stop: Callable[[], bool]) -> dict[str, Questions] | None:
    """Training and validation examples of a run; None where ``stop`` says so meanwhile.

    They are made in a thread, for they may take minutes in which this one asks ``stop``. A thread that is not
    waited for ends with its examples or with the process.
    """
    made: Future[dict[str, Questions]] = Future()

    def make() -> None:
        try:
            made.set_result({split: questions(config, split) for split in ("train", "validation")})
        except BaseException as error:  # raised again where it is waited for
            made.set_exception(error)

    threading.Thread(target=make, daemon=True).start()
    while not wait([made], SECONDS_BETWEEN_LOOKS).done:
        if stop():
            return None
    return made.result()


def _scored(
    learner: Learner, step: int, why: str, curve: list[tuple[int, float]], group: int, seconds: float
) -> RunResult:
    """The result of a run that has ended: its best weights on the test set."""
    config = learner.config
    learner.recall_best()
    test = questions(config, "test").to(learner.device)
    right = learner.right(test)
    spent = cost(config.model_config(), config.length)
    on_gpu = learner.device.type == "cuda"
    return RunResult(
        config=config,
        accuracy=accuracy(right, test),
        validation_accuracy=learner.best,
        best_step=learner.best_step,
        steps=step,
        curve=curve,
        slices=accuracy_by_slice(right, test),
        parameters=spent.parameters,
        flops=spent.flops,
        state_size=spent.state_size,
        stopped=why,
        seconds=round(seconds, 3),
        group=group,
        device=torch.cuda.get_device_name() if on_gpu else "CPU",
    )


@contextmanager
def _matmul_precision(device: torch.device):
    """Matrix products in TF32 on a GPU: weights and sums stay float32."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
