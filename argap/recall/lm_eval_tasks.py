"""lm-eval's tasks: argap's own scored from finished answers, and lm-eval's stock tasks run unchanged.

An lm-eval task file can import code (``!function``). Those bundled with argap and lm-eval are run; others only from a
folder that the caller trusts. Names are looked up in task files read as text (``task:``, ``group:``, ``tag:``), without
lm-eval's own index of all tasks, which takes 25 s.
"""

import contextlib
import difflib
import importlib.metadata
import importlib.util
import io
import json
import logging
import random
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch.utils import collect_env

from argap.errors import ArgapError, extra, first_line
from argap.recall.examples import TASKS, Examples
from argap.recall.golds import fingerprint, gold_rows
from argap.recall.lm_eval_model import ArgapLM
from argap.recall.samples import Sample
from argap.records import as_json
from argap.runtime.progress import say
from argap.runtime.trust import is_trusted

with extra("recall"):
    from lm_eval import evaluate
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import LM
    from lm_eval.loggers.utils import add_env_info, get_commit_from_path
    from lm_eval.tasks import TaskManager

OWN = Path(__file__).parent / "tasks"
BOOTSTRAP = 1000
"""Resamples for the standard error of metrics that are not means."""
SEEDS = {"random_seed": 0, "numpy_seed": 1234, "torch_seed": 1234, "fewshot_seed": 1234}
"""lm-eval's defaults, under the names used in its results."""
UNUSED = ("model_args", "batch_size", "device", "use_cache", "gen_kwargs")
"""Entries of lm-eval's ``config`` that argap never sets."""


UPSTREAM = {"squad": "squad_completion"}
"""lm-eval's names of `TASKS` that differ."""
ZEROSHOT = "zeroshot"
"""Stands for all of `ZEROSHOT_TASKS`."""
ZEROSHOT_TASKS = ("wikitext", "lambada_openai", "piqa", "hellaswag", "winogrande", "arc_easy", "arc_challenge")


Results = dict[str, Any]
"""The content of lm-eval's ``results.json``."""
KEYS = rb"[\"']?(?:task|group|tag)[\"']?\s*:[ \t]*"
NAME = rb"[\"']?([\w.+/@:-]+)[\"']?"
DEFINED = re.compile(
    rb"^" + KEYS + NAME + rb"[ \t\r]*(?:#.*)?$|^[\"']?tag[\"']?\s*:[ \t\r]*\n((?:[ \t]*-.*\n?)+)", re.M
)
ITEM = re.compile(rb"-\s*" + NAME)
SHOWN = 4
"""Number of close names in an error."""


class StockOptions(NamedTuple):
    """How lm-eval's tasks run."""

    limit: int | None = None
    """Use only the first examples of each task."""
    fewshot: int | None = None
    """Examples in each prompt; None: the task's own number, 0 if it has none."""
    task_path: Path | None = None
    """A folder of extra task files, whose code the caller trusts."""
    metadata: Mapping[str, Any] = {}
    """Read by tasks that generate their own data, such as RULER its ``max_seq_lengths``."""


class _Answered(LM):
    """Returns previously generated answers, by row."""

    def __init__(self, answers: Sequence[str]) -> None:
        super().__init__()
        self.answers = answers

    def generate_until(self, requests: list[Instance]) -> list[str]:
        return [self.answers[request.doc_id or 0] for request in requests]

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        raise NotImplementedError("recall tasks only generate")

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        raise NotImplementedError("recall tasks only generate")


def score_finished(answers: Sequence[Sequence[Sample]], tasks: Sequence[Examples]) -> Results:
    """Score one model's samples on each task as lm-eval's ``results.json``, under the labels of the examples."""
    merged: Results = {}
    for samples, examples in zip(answers, tasks, strict=True):
        for key, part in _score_task(samples, examples).items():
            if isinstance(part, dict) and examples.task in part:
                merged.setdefault(key, {})[examples.label] = part[examples.task]
            else:
                merged.setdefault(key, part)
        merged["results"][examples.label]["alias"] = examples.label
    return merged


def _score_task(samples: Sequence[Sample], examples: Examples) -> Results:
    rows = None if examples.source.startswith("hub:") else examples.source
    metadata: Any = {"rows": rows}  # reaches the task's data set unchanged
    manager = TaskManager(include_path=str(OWN), include_defaults=False, metadata=metadata)
    lm = _Answered([sample.generation for sample in samples])
    with contextlib.redirect_stderr(io.StringIO()):  # lm-eval's progress bars: nothing is left to compute
        return _evaluate(lm, [examples.task], manager, limit=len(samples))


def stock_tasks(names: Sequence[str], options: StockOptions = StockOptions()) -> list[str]:  # noqa: B008  (frozen)
    """Return the tasks, groups and tags of lm-eval that ``names`` stand for.

    Raises `ArgapError` for an unknown name, and for a folder of task files that the caller does not trust.
    """
    if any("/" in name or name.endswith((".yaml", ".py")) for name in names) or not names:
        raise ArgapError(
            f"`tasks` {', '.join(names) or '(none)'}: expected some of {', '.join(TASKS)}, or names of lm-eval's "
            "tasks; task files are not read, because they can run code"
        )
    if options.task_path is not None and not is_trusted():
        raise ArgapError(
            f"`task_path` {options.task_path}: task files can run code; allow it with `trust_remote_code=True`"
        )
    expanded = [own for name in names for own in (ZEROSHOT_TASKS if name == ZEROSHOT else [UPSTREAM.get(name, name)])]
    task_folders(expanded, options.task_path)
    return list(dict.fromkeys(expanded))


def run_stock(lm: ArgapLM, tasks: list[str], options: StockOptions) -> Results:
    """Run lm-eval's ``tasks``, as returned by `stock_tasks`, and return lm-eval's results.

    For tasks in RULER's form, ``golds`` has the NLL of the golds by length and depth (`argap.recall.golds`).

    Raises `ArgapError` for a task that needs a missing package, and if its data cannot be loaded.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="argap-tokenizer-") as folder:
            lm.decoder.tokenizer.save(Path(folder))  # RULER trusts the code of its tokenizer; ours has none
            manager = _manager(tasks, options, {"tokenizer": folder, **options.metadata})
            results = _evaluate(lm, tasks, manager, limit=options.limit, fewshot=options.fewshot)
            if lm.golds:
                rows = [as_json(row) for row in gold_rows(lm.golds)]
                results["golds"] = {"rows": rows, "sha256": fingerprint([gold for gold, _ in lm.golds])}
            return results
    except ModuleNotFoundError as error:
        raise ArgapError(f"{', '.join(tasks)}: needs the package {error.name}; install it") from None
    except ValueError as error:
        raise ArgapError(f"{', '.join(tasks)}: lm-eval refuses them ({' '.join(str(error).split())[:300]})") from error
    except (OSError, ConnectionError) as error:
        raise ArgapError(
            f"{', '.join(tasks)}: the hub cannot be reached ({first_line(error)}); connect once, so that the data is "
            "cached"
        ) from error


def _manager(tasks: Sequence[str], options: StockOptions, metadata: dict[str, object]) -> TaskManager:
    """Return lm-eval's manager of the folders that define ``tasks``; of all its folders if they refer to others."""
    folders: list[str | Path] = [*task_folders(tasks, options.task_path)]
    manager = TaskManager(include_path=folders, include_defaults=False, metadata=cast(Any, metadata))
    if _parts(manager) <= manager.task_index.keys():
        return manager
    say("reading all of lm-eval's tasks, which these refer to")
    return TaskManager(include_path=options.task_path, metadata=cast(Any, metadata))


def _parts(manager: TaskManager) -> set[str]:
    """Return the tasks and groups that are parts of groups."""
    lists = [(entry.cfg or {}).get("task") for entry in manager.task_index.values()]
    parts = [part for parts in lists if isinstance(parts, list) for part in parts]
    return {part if isinstance(part, str) else str(part.get("task") or part.get("group")) for part in parts}


def _evaluate(
    lm: LM, tasks: list[str], manager: TaskManager, *, limit: int | None, fewshot: int | None = None
) -> Results:
    """Return the results of lm-eval's ``simple_evaluate``, without samples, as plain JSON values.

    ``simple_evaluate`` itself runs ``git describe``, which prints an error outside a repository, and spends seconds
    after every call describing the machine.
    """
    started = time.time()
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    random.seed(SEEDS["random_seed"])
    np.random.seed(SEEDS["numpy_seed"])  # noqa: NPY002  (lm-eval's tasks draw from it)
    torch.manual_seed(SEEDS["torch_seed"])
    loaded: Any = manager.load(tasks)
    for task in loaded["tasks"].values():
        given = task.get_config("num_fewshot")
        if fewshot is not None and given != 0:  # 0: the task allows none
            task.set_config(key="num_fewshot", value=fewshot)
        elif given is None:
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
def _machine() -> Results:
    """Return lm-eval's description of the machine; it starts several programs, so it runs once per process.

    One of them would be ``pip list``, which takes a second or two, and goes on if argap is killed meanwhile.
    """
    described: Results = {}
    listed, collect_env.get_pip_packages = collect_env.get_pip_packages, _packages
    try:
        add_env_info(described)
    finally:
        collect_env.get_pip_packages = listed
    return described


def _packages(run: object, patterns: Sequence[str] | None = None) -> tuple[str, str]:
    """Return what torch's function of this name does, the lines of ``pip list``, but read by this process."""
    wanted = patterns or ("torch", "numpy", "triton", "optree", "nvidia", "onnx", "mypy")
    found = {f"{each.name}=={each.version}" for each in importlib.metadata.distributions()}
    return "pip3", "\n".join(line for line in sorted(found, key=str.lower) if any(name in line for name in wanted))


def task_folders(names: Sequence[str], own: Path | None = None) -> list[Path]:
    """Return the folders with the files that define ``names``: in ``own``, the user's folder, else in lm-eval.

    Raises `ArgapError` for an undefined name, with the closest ones.
    """
    sources = [*([_defined(own)] if own else []), _defined(_shipped())]
    found: list[Path] = []
    for name in names:
        folders = next((defined[name] for defined in sources if name in defined), None)
        if folders is None:
            known = [known for defined in sources for known in defined]
            close = ", ".join(difflib.get_close_matches(name, known, SHOWN))
            raise ArgapError(
                f"`tasks` {name}: no task of lm-eval{f' or of {own}' if own else ''}; "
                f"{f'close are {close}' if close else 'see lm_eval ls tasks'}"
            )
        found += folders
    return _outermost(found)


def _shipped() -> Path:
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or not spec.submodule_search_locations:
        raise ArgapError("lm_eval is not installed; run `pip install 'argap[recall]'`")
    return Path(spec.submodule_search_locations[0]) / "tasks"


@cache
def _defined(root: Path) -> dict[str, tuple[Path, ...]]:
    """Return the names that the task files below ``root`` define, and the folders of these files."""
    if not root.is_dir():
        raise ArgapError(f"`task_path` {root}: no such folder")
    names: dict[str, dict[Path, None]] = {}
    for path in filter(Path.is_file, root.rglob("*.yaml")):
        for match in DEFINED.finditer(path.read_bytes()):
            for name in [match[1]] if match[1] else ITEM.findall(match[2]):
                names.setdefault(name.decode(), {})[path.parent] = None
    return {name: tuple(folders) for name, folders in names.items()}


def _outermost(folders: Iterable[Path]) -> list[Path]:
    """Drop repetitions and folders inside others."""
    kept: list[Path] = []
    for folder in sorted(set(folders)):
        if not kept or kept[-1] not in folder.parents:
            kept.append(folder)
    return kept
