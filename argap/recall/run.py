"""The whole benchmark: checkpoints and tasks in; samples, ``recall.json`` and lm-eval's ``results.json`` out."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from argap.bigram_index.store import open_index
from argap.errors import ArgapError
from argap.files.atomic import write_json
from argap.files.lock import one_writer
from argap.files.resumable import environment
from argap.recall.answered import find_answered
from argap.recall.asked import Asked, AskedCheckpoint, AskedCopy, Asking
from argap.recall.examples import COPY, Examples
from argap.recall.link import ArNll, link_to_gap, read_ar_nlls
from argap.recall.lm_eval_model import ArgapLM
from argap.recall.lm_eval_tasks import Results, StockOptions, run_stock, score_finished, stock_tasks
from argap.recall.prompts import Protocol
from argap.recall.result import FORMAT, RecallResult, flips, open_recall
from argap.recall.samples import HitRule, Sample, model_folder
from argap.recall.scores import Score, score
from argap.records import write_record
from argap.scoring.config import DEFAULT, ScoreConfig
from argap.scoring.find import find_checkpoints, find_source
from argap.scoring.sources import check_folders, distinct, once


@one_writer("out")
def run_recall(
    models: Sequence[str],
    tasks: Sequence[Examples],
    out: Path,
    *,
    reference: str | None = None,
    protocol: Protocol = Protocol(),  # noqa: B008  (frozen)
    config: ScoreConfig = DEFAULT,
    index: str | None = None,
    threshold: int = 1250,
    ar_nlls: Mapping[str, ArNll] | None = None,
    overwrite: bool = False,
) -> RecallResult:
    """Ask every model every example of ``tasks``; write and return ``recall.json``.

    ``models`` and ``reference``: checkpoints, names, finished runs (a model's folder in the ``out`` of an earlier call,
    whose answers are copied), or ``copy``, the baseline without a model, which uses the first checkpoint's tokenizer.
    ``ar_nlls``: by model, from `argap.recall.link.read_ar_nlls`. Raises `ArgapError` for ``ar_nlls`` without the
    reference's and for prompts longer than a model's context; `MismatchError` for an index of another tokenizer, and
    for a folder with another run; and what `argap.recall.answered.find_answered` raises.
    """
    rule = HitRule(None if index is None else open_index(index), threshold)
    answered = partial(find_answered, tasks=tasks, protocol=protocol, rule=rule, bos=config.bos)
    found = _find_models([*models, *([reference] if reference else [])], answered, config)
    compared = None if reference is None else found[-1].name
    if ar_nlls is not None:
        _check_reference(compared, ar_nlls)
    samples: dict[tuple[str, str], list[Sample]] = {}
    scores: list[Score] = []
    asking = Asking(tasks, out, protocol, config, rule, overwrite)
    for model in once(found):
        answers = model.answers(asking)
        for examples, own in zip(tasks, answers, strict=True):
            samples[model.name, examples.label] = own
            scores.append(score(model.name, examples.label, own))
        write_json(model_folder(out, model.name) / "results.json", score_finished(answers, tasks), seal=False)
    result = RecallResult(
        format=FORMAT,
        rows=scores,
        reference=compared,
        protocol=protocol,
        tasks=[examples.describe() for examples in tasks],
        flips=[
            flips(model, task, own, samples[compared, task])
            for (model, task), own in samples.items()
            if compared is not None and model != compared
        ],
        link=[] if ar_nlls is None or compared is None else link_to_gap(scores, ar_nlls, compared),
        run=str(out),
        **environment(),
    )
    write_record(out / "recall.json", result)
    return result


def relink(folder: Path, gap: Path) -> RecallResult:
    """Rewrite the link in ``recall.json`` with the AR gaps in ``gap``; no model is asked, and samples are not read.

    Raises `ArgapError` if ``gap`` lacks the reference.
    """
    result = open_recall(folder)
    nlls = read_ar_nlls(gap, result.reference)
    _check_reference(result.reference, nlls)
    result = replace(result, link=link_to_gap(result.rows, nlls, result.reference or ""))
    write_record(folder / "recall.json", result)
    return result


def _check_reference(reference: str | None, ar_nlls: Mapping[str, ArNll]) -> None:
    if reference not in ar_nlls:
        raise ArgapError(f"`gap`: no AR hits of the reference {reference}; expected one of {', '.join(ar_nlls)}")


def run_upstream(
    models: Sequence[str],
    tasks: Sequence[str],
    out: Path,
    *,
    config: ScoreConfig = DEFAULT,
    stock: StockOptions = StockOptions(),  # noqa: B008
) -> dict[str, Results]:
    """Run lm-eval's tasks on every model; return its results by model, also written to ``MODEL/results.json``.

    ``tasks``: names of lm-eval's tasks, groups and tags; ``zeroshot`` for those of the papers' tables. Raises
    `ArgapError` for any other.
    """
    names = stock_tasks(tasks, stock)  # refused before a model is loaded
    results = {}
    sources = find_checkpoints(models, config)
    check_folders(source.name for source in sources)
    config.check_models([source.name for source in sources])
    for source in sources:
        results[source.name] = run_stock(ArgapLM.of(source, config), names, stock)
        write_json(model_folder(out, source.name) / "results.json", results[source.name], seal=False)
    return results


def _find_models(names: Sequence[str], answered: Callable[[str], Asked | None], config: ScoreConfig) -> list[Asked]:
    """Find the model of each name; ``answered`` finds finished runs.

    Equal names are told apart by `argap.scoring.sources.distinct`. Raises `ArgapError` for the copy baseline without a
    checkpoint.
    """
    finished = {name: answered(name) for name in names if name != COPY}
    sources = {name: find_source(name, config) for name, each in finished.items() if each is None}
    if COPY in names and not sources:
        raise ArgapError(
            "copy: the baseline takes its tokenizer from a checkpoint, and finished runs have none; name a checkpoint "
            "too, or as `reference`"
        )
    found: dict[str, Asked] = {name: each for name, each in finished.items() if each is not None}
    found |= {name: AskedCheckpoint(source) for name, source in sources.items()}
    if COPY in names:
        found[COPY] = AskedCopy(next(iter(sources.values())))
    models = distinct([found[name] for name in names], config)
    check_folders(model.name for model in once(models))
    config.check_models([model.name for model in models])
    return models
