"""lm-eval's side: our tasks scored by it from finished answers, and its own tasks run as they are."""

import contextlib
import io
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from argap.errors import ArgapError, extra
from argap.recall.adapter import ArgapLM
from argap.recall.analysis import Sample
from argap.recall.examples import Examples

with extra("recall"):
    import lm_eval.tasks
    from lm_eval import simple_evaluate
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.tasks import TaskManager

OWN = Path(__file__).parent / "tasks"
UPSTREAM = {"swde": ("swde", "swde"), "fda": ("fda", "fda"), "squad": ("squad_completion", "squad_completion")}
"""lm-eval's name of each task, and its folder."""
ZEROSHOT = {
    "wikitext": ("wikitext", "wikitext"),
    "lambada": ("lambada_openai", "lambada"),
    "piqa": ("piqa", "piqa"),
    "hellaswag": ("hellaswag", "hellaswag"),
    "winogrande": ("winogrande", "winogrande"),
    "arc_easy": ("arc_easy", "arc"),
    "arc_challenge": ("arc_challenge", "arc"),
}


class _Answered(LM):
    """Gives the answers that are there already, by row."""

    def __init__(self, answers: Sequence[str]) -> None:
        super().__init__()
        self.answers = answers

    def generate_until(self, requests: list[Instance]) -> list[str]:
        return [self.answers[request.doc_id or 0] for request in requests]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise NotImplementedError("recall tasks only generate")

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError("recall tasks only generate")


def results_of(answers: Sequence[Sequence[Sample]], tasks: Sequence[Examples]) -> dict[str, Any]:
    """lm-eval's own ``results.json`` of one model's finished samples on each task, under the labels that
    the rows may bear."""
    whole: dict[str, Any] = {}
    for samples, examples in zip(answers, tasks, strict=True):
        for key, part in _results_of_task(samples, examples).items():
            if isinstance(part, dict) and examples.label in part:
                whole.setdefault(key, {}).update(part)
            else:
                whole.setdefault(key, part)
    return whole


def _results_of_task(samples: Sequence[Sample], examples: Examples) -> dict[str, Any]:
    rows = None if examples.source.startswith("hub:") else examples.source
    metadata: Any = {"rows": rows}  # handed on to the task's data set as it is
    manager = TaskManager(include_path=str(OWN), include_defaults=False, metadata=metadata)
    answers = [sample["generation"] for sample in samples]
    with contextlib.redirect_stderr(io.StringIO()):  # its bars run over answers that are there
        found = _evaluate(_Answered(answers), [examples.task], manager, limit=len(samples))
    return _labelled(found, examples.task, examples.label)


def run_as_is(lm: ArgapLM, tasks: dict[str, tuple[str, str]], *, limit: int | None = None) -> dict[str, Any]:
    """lm-eval's results of its own tasks, unchanged; only their folders are read.

    Raises `ArgapError` where the hub does not answer.
    """
    root = Path(lm_eval.tasks.__file__).parent
    folders: list[str | Path] = [*sorted({root / folder for _, folder in tasks.values()})]
    manager = TaskManager(include_path=folders, include_defaults=False)
    names = [name for name, _ in tasks.values()]
    try:
        return _evaluate(lm, names, manager, limit=limit)
    except (OSError, ConnectionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArgapError(
            f"{', '.join(names)}: the hub does not answer ({reason}); these tasks need their data there or in its cache"
        ) from error


def _evaluate(lm: LM, tasks: list[str], manager: TaskManager, *, limit: int | None) -> dict[str, Any]:
    """`simple_evaluate`, its logs and bars on stderr, without the samples, as plain JSON values."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    evaluate: Any = simple_evaluate  # its decorator hides its signature
    with contextlib.redirect_stdout(sys.stderr):
        found = evaluate(lm, tasks=tasks, task_manager=manager, limit=limit, bootstrap_iters=1000)
    if found is None:
        raise ArgapError("lm-eval gave no results in this process; run without torchrun")
    plain = {key: value for key, value in found.items() if key != "samples"}
    return json.loads(json.dumps(plain, default=str))


def _labelled(found: dict[str, Any], task: str, label: str) -> dict[str, Any]:
    """The task's name replaced, where lm-eval has it as a key, by the label of its rows."""
    if label == task:
        return found
    for part in found.values():
        if isinstance(part, dict) and task in part:
            part[label] = part.pop(task)
    found["results"][label]["alias"] = label
    return found
