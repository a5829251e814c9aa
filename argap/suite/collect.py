"""From the runs of a suite to its result: small files from which table, intervals and figures are rebuilt.

Of each size a folder: ``gap.json``, ``cells.parquet`` (by document), ``curve.parquet``, ``distances.parquet``,
``distance_sums.parquet``, ``prevalence.parquet``, ``examples.json``, ``members.json``, ``logs/NAME.jsonl`` and,
where they were measured, ``mqar.json`` and ``trajectory.parquet``.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pandas as pd

from argap.cells import KEYS, PREFIX, build_cells, sum_by, write_cells
from argap.checksums import write_checksums
from argap.errors import ArgapError, MismatchError
from argap.example_windows import choose_examples
from argap.labels import Labels
from argap.lock import one_writer
from argap.models.configuration import ArgapConfig
from argap.models.cost import cost
from argap.parquet import write_parquet
from argap.records import Gap, as_json, write_record
from argap.runs import Run, read_logprobs, read_token_ids
from argap.suite.config import Entry, Suite
from argap.suite.curve import build_curve
from argap.suite.distances import build_distances
from argap.suite.layout import Layout, check_finished, open_finished, trajectory
from argap.suite.prevalence import build_prevalence
from argap.suite.result import Member, Members
from argap.suite.trajectory import build_trajectory
from argap.summary import summarize
from argap.synthetics.pretrained_test import PretrainedScores, read_scores
from argap.threshold import resolve_threshold
from argap.tokenizer import Tokenizer
from argap.train.records import read_train

KEPT = [key for key in KEYS if key not in ("window", "position")]
"""Keys of the committed cells: intervals are over documents, and `gap.json` has the positions."""
EXAMPLES = 12
MAY_DIFFER = {"rows", "device", "dtype", "versions", "git"}
"""What ``SIZE/mqar/NAME.json`` has besides the test: members may have been measured on different machines."""


@one_writer("out")
def collect(
    suite: Suite, size: str, layout: Layout, labels: Labels, tokenizer: Tokenizer, out: Path, *, threshold: int
) -> Gap:
    """Write the result of every member of ``size`` that is finished to ``out``; returns ``gap.json``.

    Raises `ArgapError` where the reference is not finished, and `MismatchError` where a finished member is of another
    suite (`check_finished`) or recall of pairs was measured on another test than the suite's.
    """
    runs: dict[str, Run] = {}
    entries: dict[str, Entry] = {}
    for entry in suite.entries(size):
        run = open_finished(layout.run(entry))
        if run is not None:
            check_finished(entry, layout, labels.record.evaluation.fingerprint)
            runs[entry.name], entries[entry.name] = run, entry
    if suite.reference not in runs:
        raise ArgapError(f"{size}: the reference {suite.reference} is not finished; `argap suite run` trains it")
    recall = _recall(suite, [layout.mqar(entry) for entry in entries.values()])
    scores = {name: read_logprobs(run) for name, run in runs.items()}
    logprobs = {name: logprob for name, (logprob, _) in scores.items()}
    index = labels.record.index
    if index is None:
        raise ArgapError(f"{size}: a suite's labels need training counts; label them with `training_index`")
    cells = build_cells(labels, logprobs, threshold)
    first = [name for name, entry in entries.items() if entry.seed == 0]
    tokens = read_token_ids(runs[suite.reference])
    gap = _gap(suite, cells, first, runs, labels, threshold)
    examples = choose_examples(
        tokens,
        labels,
        {name: scores[name] for name in first},
        tokenizer,
        reference=suite.reference,
        threshold=threshold,
        count=EXAMPLES,
    )
    histogram, sums = build_distances(labels, threshold)
    write_cells(
        sum_by(cells.drop(columns=[key for key in KEYS if key not in KEPT]), KEPT), out / "cells.parquet", gap.bins
    )
    scaled = resolve_threshold("scaled", index.exposed_tokens)
    write_parquet(out / "curve.parquet", build_curve(labels, logprobs, (threshold, scaled)))
    write_parquet(out / "distances.parquet", histogram)
    write_parquet(out / "distance_sums.parquet", sums)
    write_parquet(out / "prevalence.parquet", build_prevalence(labels, tokens, tokenizer))
    write_record(out / "examples.json", examples, indent=None)
    trajectories = {name: trajectory(entry, layout) for name, entry in entries.items()}
    tokens_a_step = {name: entry.config.batch_size * entry.config.seq_len for name, entry in entries.items()}
    steps = build_trajectory(labels, trajectories, tokens_a_step, threshold) if any(trajectories.values()) else None
    _replace(out / "trajectory.parquet", write_parquet, steps)
    _replace(out / "mqar.json", write_record, recall)
    members = tuple(_member(entries[name], run, layout) for name, run in runs.items())
    write_record(out / "members.json", Members(members))
    for name, entry in entries.items():
        (out / "logs").mkdir(parents=True, exist_ok=True)
        shutil.copyfile(layout.checkpoint(entry) / "log.jsonl", out / "logs" / f"{name}.jsonl")
    write_checksums(out, [*sorted(out.glob("*.parquet")), *sorted((out / "logs").glob("*.jsonl"))])
    write_record(out / "gap.json", gap)
    return gap


def _replace(path: Path, write: Callable[[Path, Any], None], value: Any) -> None:
    """Write a file that not every suite has, or remove an earlier suite's."""
    if value is None:
        path.unlink(missing_ok=True)
    else:
        write(path, value)


def _recall(suite: Suite, paths: list[Path]) -> PretrainedScores | None:
    """The recall of pairs in all of ``paths`` that are there, as one measurement; None where none is."""
    again = "remove the file and run `argap suite run` again"
    measured = {path: read_scores(path, remedy=again) for path in paths if path.is_file()}
    if suite.mqar is None or not measured:
        return None
    for path, found in measured.items():
        for key, asked in msgspec.structs.asdict(suite.mqar).items():
            if (own := getattr(found, key)) != asked:
                raise MismatchError(
                    f"{path}: recall of pairs with {key} {own!r}, the suite's mqar has {asked!r}; {again}"
                )
    (first, found), *others = measured.items()
    for path, other in others:
        for key, value in msgspec.structs.asdict(found).items():
            if key not in MAY_DIFFER and (own := getattr(other, key)) != value:
                raise MismatchError(
                    f"{first} and {path}: recall of pairs on different tests ({key}: {value!r} and {own!r}); remove "
                    "the file of the earlier test and run `argap suite run` again"
                )
    return msgspec.structs.replace(found, rows=tuple(row for each in measured.values() for row in each.rows))


def _gap(
    suite: Suite, cells: pd.DataFrame, models: list[str], runs: dict[str, Run], labels: Labels, threshold: int
) -> Gap:
    chosen = cast(pd.DataFrame, cells[[*KEYS, "n", *(PREFIX + name for name in models)]])
    return summarize(
        chosen,
        reference=suite.reference,
        threshold=threshold,
        evaluation=msgspec.structs.replace(labels.record.evaluation, data=suite.evaluation.data),
        index=labels.record.index,
        base=suite.base if suite.base in models else None,
        runs={name: runs[name].record.checkpoint.fingerprint for name in models},
        parameters={name: done.parameters for name in models if (done := runs[name].finished) and done.parameters},
    )


def _member(entry: Entry, run: Run, layout: Layout) -> Member:
    """What was trained, what it costs, and what identifies it."""
    folder = layout.checkpoint(entry)
    spent = cost(ArgapConfig.from_pretrained(folder), entry.config.seq_len)
    return Member(
        name=entry.name,
        member=entry.member,
        size=entry.size,
        seed=entry.seed,
        parameters=spent.parameters,
        flops=spent.flops,
        state_size=spent.state_size,
        checkpoint=run.record.checkpoint.fingerprint,
        evaluation=run.record.evaluation.fingerprint,
        train=read_train(folder),
        scoring=as_json(run.record)["finished"],
    )
