"""The whole path: checkpoints and a reference in, ``gap.json`` and its parts out.

Out folder: one run folder a model, ``labels/``, ``gap.json``, ``cells.parquet``, ``examples.json``.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from argap.atomic import write_json
from argap.bigram_index.store import check_tokenizer, open_index
from argap.cells import build_cells, write_cells
from argap.corpus import open_corpus
from argap.errors import ArgapError, MismatchError
from argap.evaluation import EvaluationSet, build_evaluation_set
from argap.examples import choose_examples
from argap.labels import Labels, label, read_labels, write_labels
from argap.parallel import Parallel
from argap.progress import say
from argap.references import absolute
from argap.runs import Run, environment, folder_name, open_run, read_logprobs, read_token_ids
from argap.scorer import ScoreOptions, score
from argap.summary import summarize
from argap.targets import Settings, distinct, find_target
from argap.tokenizer import Tokenizer, load_tokenizer

PAPER_THRESHOLD = 1250
PAPER_TOKENS = 10_000_000_000


def score_models(
    checkpoints: Sequence[str],
    reference: str,
    out: Path,
    *,
    settings: Settings = Settings(),  # noqa: B008  (frozen)
    threshold: str = str(PAPER_THRESHOLD),
    options: ScoreOptions = ScoreOptions(),  # noqa: B008  (frozen)
    base: str | None = None,
    overwrite: bool = False,
    parallel: Parallel | None = None,
) -> dict[str, Any]:
    """Score each checkpoint and the reference once, and write the gap of each to ``out``.

    ``settings`` are completed by what is recorded with the reference. Returns ``gap.json``; of several
    processes, which share the scoring, only the main one has it, the others get nothing.
    """
    parse_threshold(threshold, PAPER_TOKENS)  # a bad one is refused before any work
    target = find_target(reference, reference=True)
    settings = settings.over(target.settings)
    if not settings.data or settings.index is None:
        what = "--data PATH" if not settings.data else "--index DIR"
        raise ArgapError(f"{reference}: no text and index are recorded with this reference; give {what}")
    others = distinct([find_target(c, reference=False) for c in checkpoints], target)
    names = [target.name, *(model.name for model in others)]
    if base is not None and base not in names:
        raise ArgapError(f"--base {base}: not one of the models compared, which are {', '.join(names)}")
    index = open_index(settings.index)
    tokenizer = target.tokenizer
    for model in [target, *others]:
        own = tokenizer if model is target else model.tokenizer
        check_tokenizer(index, own.name, own.fingerprint)
    data = _evaluation_set(settings, tokenizer)
    if target.run is not None:
        _check_same_set(target.run, data.fingerprint, "the text is now")
    labels = label(data, index)
    source = {
        **vars(settings),
        "data": [absolute(d) for d in settings.data],
        "index": absolute(settings.index),
    }
    runs = []
    for model in [target, *others]:
        if model.run is not None:
            runs.append(model.run)
        else:
            assert model.checkpoint is not None
            folder = out / folder_name(model.name)
            runs.append(
                score(
                    model.checkpoint,
                    data,
                    folder,
                    model_name=model.name,
                    source=source,
                    options=options,
                    overwrite=overwrite,
                    parallel=parallel,
                )
            )
    if parallel is not None and not parallel.is_main:
        return {}
    write_labels(labels, tokenizer, out / "labels")  # not before the folder has taken every run
    return _write_gap(runs, labels, tokenizer, out, threshold=threshold, base=base)


def compare_runs(
    runs: Sequence[str], reference: str, out: Path, *, threshold: str = str(PAPER_THRESHOLD), base: str | None = None
) -> dict[str, Any]:
    """The gap of finished runs, from their files alone: no model is run. Returns ``gap.json``."""
    folders: list[str] = [reference, *runs, *([base] if base else [])]
    opened = [open_run(folder) for folder in dict.fromkeys(folders)]
    by_name: dict[str, Run] = {}
    for run in opened:
        if run.model in by_name:
            raise ArgapError(f"{run.folder} and {by_name[run.model].folder} are both named {run.model}; rename one")
        by_name[run.model] = run
    beside = [run.folder.parent / "labels" for run in opened]
    folder = next((f for f in beside if (f / "labels.json").is_file()), None)
    if folder is None:
        raise ArgapError(f"{beside[0]}: no labels beside the run; repeat its `argap score` command")
    labels = read_labels(folder)
    tokenizer = load_tokenizer(folder, name=labels.record["evaluation"]["tokenizer"])
    base_name = open_run(base).model if base else None
    return _write_gap(opened, labels, tokenizer, out, threshold=threshold, base=base_name)


def parse_threshold(text: str, index_tokens: int) -> int:
    """τ: a whole number, or ``scaled``: 1,250 for each 10 B tokens of the index, rounded down.

    (A count is at most τ exactly where it is at most τ rounded down.)
    """
    if text == "scaled":
        return PAPER_THRESHOLD * index_tokens // PAPER_TOKENS
    if not re.fullmatch(r"\d+", text):
        raise ArgapError(f"--threshold {text}: expected a whole number of occurrences, or scaled")
    return int(text)


def _write_gap(
    runs: list[Run], labels: Labels, tokenizer: Tokenizer, out: Path, *, threshold: str, base: str | None
) -> dict[str, Any]:
    evaluation = labels.record["evaluation"]
    for run in runs:
        _check_same_set(run, evaluation["fingerprint"], f"the labels (and {runs[0].folder}) hold")
    tau = parse_threshold(threshold, labels.record["index"]["tokens"])
    found = {run.model: read_logprobs(run) for run in runs}
    cells = build_cells(labels, {name: logprob for name, (logprob, _) in found.items()}, tau)
    gap = summarize(cells, reference=runs[0].model, threshold=tau, seq_len=evaluation["seq_len"], base=base)
    by_name = {run.model: run for run in runs}
    for row in gap["rows"]:
        run = by_name[row["model"]]
        row["run"] = str(run.folder)
        row["parameters"] = run.record["finished"]["parameters"]
    gap |= {
        "fingerprint": evaluation["fingerprint"],
        "run": str(out),
        "evaluation": {**evaluation, "data": runs[0].record["source"]["data"]},
        "index": labels.record["index"],
        "versions": environment()["versions"],
    }
    (out / "gap.json").unlink(missing_ok=True)  # written last: a folder that has one is whole
    write_cells(cells, out / "cells.parquet")
    tokens = read_token_ids(runs[0])
    examples = choose_examples(tokens, labels, found, tokenizer, reference=runs[0].model, threshold=tau)
    write_json(out / "examples.json", examples)
    write_json(out / "gap.json", gap)
    return gap


def _check_same_set(run: Run, fingerprint: str, what: str) -> None:
    """Raise `MismatchError` unless ``run`` scored the evaluation set of that fingerprint; ``what`` has it."""
    own = run.record["evaluation"]["fingerprint"]
    if own != fingerprint:
        raise MismatchError(
            f"{run.folder} holds evaluation set {own[:12]}, {what} {fingerprint[:12]}; "
            "score both with the same --data, --seq-len and --packing"
        )


def _evaluation_set(settings: Settings, tokenizer: Tokenizer) -> EvaluationSet:
    corpora = [
        open_corpus(spec, text_column=settings.text_column or "text", token_dtype=settings.token_dtype)
        for spec in settings.data
    ]
    data = build_evaluation_set(
        corpora,
        tokenizer,
        seq_len=settings.seq_len or 2048,
        packing=settings.packing or "packed",
        limit_tokens=settings.limit_tokens,
    )
    for corpus in corpora:
        for remark in corpus.tally.remarks():
            say(f"{corpus.spec}: {remark}")
    return data
