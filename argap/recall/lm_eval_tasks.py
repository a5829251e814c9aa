"""lm-eval's tasks: argap's own scored from finished answers, and lm-eval's stock tasks run unchanged.

Only tasks that argap or lm-eval ships are run. An lm-eval task file can import code (``!function``), so files that a
user names are never read.
"""

import contextlib
import io
import json
import logging
import random
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from argap.errors import ArgapError, extra
from argap.recall.examples import TASKS, Examples
from argap.recall.lm_eval_model import ArgapLM
from argap.recall.samples import Sample

with extra("recall"):
    import lm_eval.tasks
    from lm_eval import evaluate
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.loggers.utils import add_env_info, get_commit_from_path
    from lm_eval.tasks import TaskManager

OWN = Path(__file__).parent / "tasks"
BOOTSTRAP = 1000
"""Resamples for the standard error of metrics that are not means."""
SEEDS = {"random_seed": 0, "numpy_seed": 1234, "torch_seed": 1234, "fewshot_seed": 1234}
"""lm-eval's defaults, as its results name them."""
UNUSED = ("model_args", "batch_size", "device", "use_cache", "gen_kwargs")
"""Entries of lm-eval's ``config`` that argap never sets."""


class StockTask(NamedTuple):
    """A task that lm-eval ships: its name, and its folder below ``lm_eval/tasks``."""

    name: str
    folder: str


UPSTREAM = {
    "swde": StockTask("swde", "swde"),
    "fda": StockTask("fda", "fda"),
    "squad": StockTask("squad_completion", "squad_completion"),
}
ZEROSHOT = "zeroshot"
"""Stands for all of `ZEROSHOT_TASKS`."""
ZEROSHOT_TASKS = [
    StockTask("wikitext", "wikitext"),
    StockTask("lambada_openai", "lambada"),
    StockTask("piqa", "piqa"),
    StockTask("hellaswag", "hellaswag"),
    StockTask("winogrande", "winogrande"),
    StockTask("arc_easy", "arc"),
    StockTask("arc_challenge", "arc"),
]


class _Answered(LM):
    """Returns answers that were generated before, by row."""

    def __init__(self, answers: Sequence[str]) -> None:
        super().__init__()
        self.answers = answers

    def generate_until(self, requests: list[Instance]) -> list[str]:
        return [self.answers[request.doc_id or 0] for request in requests]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise NotImplementedError("recall tasks only generate")

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError("recall tasks only generate")


def score_finished(answers: Sequence[Sequence[Sample]], tasks: Sequence[Examples]) -> dict[str, Any]:
    """lm-eval's ``results.json`` for one model's samples on each task, under the labels of the examples."""
    merged: dict[str, Any] = {}
    for samples, examples in zip(answers, tasks, strict=True):
        for key, part in _score_task(samples, examples).items():
            if isinstance(part, dict) and examples.label in part:
                merged.setdefault(key, {}).update(part)
            else:
                merged.setdefault(key, part)
    return merged


def _score_task(samples: Sequence[Sample], examples: Examples) -> dict[str, Any]:
    rows = None if examples.source.startswith("hub:") else examples.source
    metadata: Any = {"rows": rows}  # reaches the task's data set unchanged
    manager = TaskManager(include_path=str(OWN), include_defaults=False, metadata=metadata)
    lm = _Answered([sample.generation for sample in samples])
    with contextlib.redirect_stderr(io.StringIO()):  # lm-eval's progress bars: nothing is left to compute
        results = _evaluate(lm, [examples.task], manager, limit=len(samples))
    return _relabelled(results, examples.task, examples.label)


def stock_tasks(names: Sequence[str]) -> list[StockTask]:
    """lm-eval's tasks for some of `TASKS`, or for ``zeroshot`` alone. Raises `ArgapError` for any other name."""
    if list(names) == [ZEROSHOT]:
        return ZEROSHOT_TASKS
    unknown = [name for name in names if name not in UPSTREAM]
    if unknown or not names:
        raise ArgapError(
            f"`tasks` {', '.join(unknown) or '(none)'}: expected some of {', '.join(TASKS)}, or {ZEROSHOT} alone; "
            "task files are not read, because they can run code"
        )
    return [UPSTREAM[name] for name in names]


def run_stock(lm: ArgapLM, names: Sequence[str], *, limit: int | None = None) -> dict[str, Any]:
    """lm-eval's results on its stock tasks for ``names`` (see `stock_tasks`); only the folders of these are read.

    Raises `ArgapError` for an unknown task and where the hub cannot be reached.
    """
    tasks = stock_tasks(names)
    root = Path(lm_eval.tasks.__file__).parent
    folders: list[str | Path] = [*sorted({root / task.folder for task in tasks})]
    manager = TaskManager(include_path=folders, include_defaults=False)
    own_names = [task.name for task in tasks]
    try:
        return _evaluate(lm, own_names, manager, limit=limit)
    except (OSError, ConnectionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArgapError(
            f"{', '.join(own_names)}: the hub cannot be reached ({reason}); connect once, so that the data is cached"
        ) from error


def _evaluate(lm: LM, tasks: list[str], manager: TaskManager, *, limit: int | None) -> dict[str, Any]:
    """The results that lm-eval's ``simple_evaluate`` returns, without samples, as plain JSON values.

    ``simple_evaluate`` itself runs ``git describe``, which prints an error outside a repository, and describes the
    machine for seconds after every call.
    """
    started = time.time()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    random.seed(SEEDS["random_seed"])
    np.random.seed(SEEDS["numpy_seed"])  # noqa: NPY002  (lm-eval's tasks draw from it)
    torch.manual_seed(SEEDS["torch_seed"])
    loaded: Any = manager.load(tasks)
    for task in loaded["tasks"].values():
        if task.get_config("num_fewshot") is None:
            task.set_config(key="num_fewshot", value=0)
        task.set_fewshot_seed(seed=SEEDS["fewshot_seed"])
    run: Any = evaluate  # its decorator hides its signature
    with contextlib.redirect_stdout(sys.stderr):
        results = run(lm=lm, task_dict=loaded, limit=limit, bootstrap_iters=BOOTSTRAP)
    if results is None:
        raise ArgapError("lm-eval returned no results in this process; run without torchrun")
    results.pop("samples", None)
    info = lm.get_model_info() if isinstance(lm, ArgapLM) else {}
    options = {"limit": limit, "bootstrap_iters": BOOTSTRAP, **SEEDS}
    results["config"] = {"model": type(lm).__name__, **dict.fromkeys(UNUSED), "batch_sizes": [], **info, **options}
    results |= {"git_hash": get_commit_from_path(Path.cwd()), "date": started, **_machine()}
    return json.loads(json.dumps(results, default=str))


@cache
def _machine() -> dict[str, Any]:
    """lm-eval's description of the machine; it starts several programs, so once per process."""
    described: dict[str, Any] = {}
    add_env_info(described)
    return described


def _relabelled(results: dict[str, Any], task: str, label: str) -> dict[str, Any]:
    """The results with the label of the examples wherever the task's name is a key."""
    if label == task:
        return results
    for part in results.values():
        if isinstance(part, dict) and task in part:
            part[label] = part.pop(task)
    results["results"][label]["alias"] = label
    return results
