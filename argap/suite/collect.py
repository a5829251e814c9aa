"""From the runs of a suite to its result: small files from which table, intervals and figures are rebuilt.

Of each size a folder: ``gap.json``, ``cells.parquet`` and ``positions.parquet`` (by document), ``curve.parquet``,
``distances.parquet``, ``distance_sums.parquet``, ``prevalence.parquet``, ``logs.parquet``, ``examples.json``,
``members.json``, ``documents.parquet`` (the source of each) and, where they were measured, ``mqar.json`` and
``trajectory.parquet``.

A result grows: members whose runs are not in the work folder are taken from the result that is there already
(`argap.suite.earlier`). All but the choice of the examples is as if all members had been collected at once.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import pandas as pd

from argap.errors import ArgapError, FormatError, MismatchError
from argap.files.atomic import replacing_folder
from argap.files.checksums import write_checksums
from argap.files.lock import one_writer
from argap.files.parquet import write_parquet
from argap.files.staged import GAP, NEW, put_in_place
from argap.files.staged import whole as whole_result
from argap.metric.threshold import resolve_threshold
from argap.models.configuration import ArgapConfig
from argap.models.cost import cost
from argap.records import (
    EvaluationRecord,
    Examples,
    Gap,
    IndexRecord,
    LeftOut,
    Part,
    as_json,
    read_gap,
    save_gap,
    write_record,
)
from argap.results.example_windows import add_models, choose_examples
from argap.results.sources import table_of_documents, without
from argap.results.summary import summarize
from argap.results.text_warnings import count_hits, warn_of_bigrams, warn_of_sources
from argap.runtime.progress import say
from argap.slices.cells import KEYS, build_cells, sum_by, with_models, write_cells
from argap.suite.config import Entry, Suite
from argap.suite.curve import build_curve
from argap.suite.distances import build_distances
from argap.suite.earlier import KEPT, Earlier, open_earlier
from argap.suite.layout import Layout, check_finished, finished_runs, read_recall, trajectory
from argap.suite.prevalence import build_prevalence
from argap.suite.result import Member, Members
from argap.suite.trajectory import build_logs, build_trajectory
from argap.synthetics.pretrained.records import PretrainedScores
from argap.text.tokenizer import Tokenizer
from argap.tokens.labels import Labels
from argap.tokens.left_out import keep_others, labels_of
from argap.tokens.runs import Run, read_logprobs, read_token_ids
from argap.train.records import read_train

EXAMPLES = 12
MEASURED = ("loss", "grad_norm", "tokens_per_s")
"""Columns of ``logs.parquet`` that take two thirds of the space when stored byte by byte."""
MAY_DIFFER = {"rows", "device", "dtype", "versions", "git"}
"""What ``SIZE/mqar/NAME.json`` has besides the test: members may have been measured on different machines."""


@one_writer("out")
def collect(
    suite: Suite, size: str, layout: Layout, labels: Labels, tokenizer: Tokenizer, out: Path, *, threshold: int
) -> Gap:
    """Write the result of every member of ``size`` that is finished to ``out``, beside the members that a result there
    has already; returns ``gap.json``.

    Raises `ArgapError` where the reference is not finished or no member has a run, and `MismatchError` where a finished
    member is of another suite (`check_finished`), recall of pairs was measured on another test than the suite's, or
    the result in ``out`` cannot be continued (`argap.suite.earlier`); nothing is written then. A kill leaves the
    earlier result, or the new one to be put in place by the next call (`argap.files.staged`).
    """
    evaluation, index = labels.record.evaluation, labels.record.index
    entries = {entry.name: entry for entry in suite.entries(size)}
    runs = finished_runs(suite, size, layout)
    for name in runs:
        check_finished(entries[name], layout, evaluation.fingerprint)
    put_in_place(out)
    tokens = read_token_ids(next(iter(runs.values()))) if runs else None
    left_out = None if tokens is None else left_out_of(out)
    kept = None
    if tokens is not None and left_out is not None:
        kept = keep_others(evaluation, tokens, labels.window, labels.document_of_window, left_out)
    earlier = open_earlier(suite, size, runs, evaluation if kept is None else kept.record, threshold, out)
    for change in earlier.changes:
        say(change)
    if tokens is None:
        raise ArgapError(f"{size}: no member has a run in {layout.work}; `argap suite run` trains one")
    if index is None:
        raise ArgapError(f"{size}: a suite's labels need training counts; label them with `training_index`")
    models = [name for name in entries if name in runs or name in earlier.taken]
    first = [name for name in models if entries[name].seed == 0]
    recall = _recall(suite, {name: layout.mqar(entries[name]) for name in runs}, earlier, models)
    members = tuple(earlier.taken.get(name) or _member(entries[name], runs[name], layout) for name in models)
    scores = {name: read_logprobs(run) for name, run in runs.items()}
    compared = {name: scores[name] for name in first if name in scores}
    whole, documents = labels, table_of_documents(labels, tokens, tokenizer.eos)
    rows = slice(None)
    if (
        kept is not None and left_out is not None and earlier.taken
    ):  # members that were restated are beside those of the same windows
        evaluation, rows = kept.record, kept.rows
        labels, documents = labels_of(labels, kept), without(documents, left_out.documents)
        whole = dataclasses.replace(whole, repeated=whole.repeated & rows)  # no example from another window
    logprobs = {name: logprob[rows] for name, (logprob, _) in scores.items()}
    own_sums = sums_of(build_cells(labels, logprobs, threshold))
    sums = {name: earlier.joined(name, own, models) for name, own in own_sums.items()}
    gap = gap_of(
        suite,
        sums,
        first,
        members,
        evaluation,
        index,
        threshold,
        position=earlier.by_position,
        documents=documents,
        warnings=warn_of_bigrams(count_hits(tokens[rows], labels.ar_hit(threshold) & labels.scored), tokenizer),
    )
    for line in gap.warnings:
        say(line)
    tables = {"documents": documents}
    tables["curve"] = earlier.joined("curve.parquet", build_curve(labels, logprobs, marks(threshold, index)), models)
    if earlier.examples is None:
        examples = choose_examples(
            tokens, whole, compared, tokenizer, reference=suite.reference, threshold=threshold, count=EXAMPLES
        )
    else:
        examples = add_models(earlier.examples, first, earlier.same, tokens, whole, compared)
    tables["distances"], tables["distance_sums"] = build_distances(labels, threshold)
    tables["prevalence"] = build_prevalence(labels, tokens[rows], tokenizer)
    trajectories = {name: trajectory(entries[name], layout) for name in runs}
    tokens_a_step = {name: entry.config.batch_size * entry.config.seq_len for name, entry in entries.items()}
    steps = None
    if any(trajectories.values()) and evaluation.left_out is None:  # those of members taken are of the whole text
        steps = build_trajectory(labels, trajectories, tokens_a_step, threshold)
    logs = build_logs({name: layout.checkpoint(entries[name]) / "log.jsonl" for name in runs})
    for name, own in (("trajectory", steps), ("logs", logs)):
        if (every := earlier.with_rows(f"{name}.parquet", own, models)) is not None:
            tables[name] = every
    write_result(Collected(gap, sums, tables, examples, recall, members), out)
    return gap


def left_out_of(folder: Path) -> LeftOut | None:
    """Return what the result in ``folder``, if there is one, was restated without (`argap.suite.without`)."""
    with suppress(FormatError):  # no result, or one that `open_earlier` says more about
        return read_gap(whole_result(folder)).evaluation.left_out
    return None


def sums_of(cells: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the sums that a result keeps of cells, by file."""
    return {
        name: sum_by(cells.drop(columns=[key for key in KEYS if key not in kept]), kept) for name, kept in KEPT.items()
    }


def marks(threshold: int, index: IndexRecord) -> tuple[int, int]:
    """Return the thresholds that are ends of bins of the curve: the result's, and the one scaled to its training."""
    return threshold, resolve_threshold("scaled", index.exposed_tokens)


class Collected(NamedTuple):
    """What the files of a result hold."""

    gap: Gap
    sums: Mapping[str, pd.DataFrame]
    """Cells, by the name of their file."""
    tables: Mapping[str, pd.DataFrame]
    """By the name of their file, without its suffix."""
    examples: Examples
    recall: PretrainedScores | None
    members: tuple[Member, ...]


def write_result(made: Collected, out: Path) -> None:
    """Write a result to ``out``, in place of the one there once it is whole."""
    with replacing_folder(out / NEW, sole_writer=True) as new:
        for name, table in made.sums.items():
            write_cells(table, new / name, made.gap.bins)
        for name, table in made.tables.items():
            write_parquet(new / f"{name}.parquet", table, split_by_byte=MEASURED)
        write_record(new / "examples.json", made.examples, indent=None)
        if made.recall is not None:
            write_record(new / "mqar.json", made.recall)
        write_record(new / "members.json", Members(made.members))
        write_checksums(new, sorted(new.glob("*.parquet")))
        save_gap(new / GAP, made.gap)
    put_in_place(out)


def _recall(suite: Suite, paths: dict[str, Path], earlier: Earlier, models: list[str]) -> PretrainedScores | None:
    """The recall of pairs of ``models`` as one measurement, from ``paths`` of those with a run and from the earlier
    result; None where none is."""
    from_files = {model: paths.get(model, earlier.folder / "mqar.json") for model in models}
    read = {path: read_recall(suite, path) for path in dict.fromkeys(from_files.values()) if path.is_file()}
    if suite.mqar is None or not read:
        return None
    (first, found), *others = read.items()
    for path, other in others:
        for key, value in msgspec.structs.asdict(found).items():
            if key not in MAY_DIFFER and (own := getattr(other, key)) != value:
                raise MismatchError(
                    f"{first} and {path}: recall of pairs on different tests ({key}: {value!r} and {own!r}); remove "
                    "the file of the earlier test and run `argap suite run` again"
                )
    rows = [row for model, path in from_files.items() if path in read for row in read[path].rows if row.model == model]
    return msgspec.structs.replace(found, rows=tuple(rows))


def gap_of(
    suite: Suite,
    sums: Mapping[str, pd.DataFrame],
    models: Sequence[str],
    members: Sequence[Member],
    evaluation: EvaluationRecord,
    index: IndexRecord,
    threshold: int,
    *,
    position: Callable[[pd.DataFrame, Gap], list[Part]],
    documents: pd.DataFrame,
    warnings: Sequence[str] = (),
) -> Gap:
    """Return ``gap.json`` from the files of sums.

    ``position``: makes the partition by position from the sums by position, which may lack models taken from an older
    result. ``documents``: their table. ``warnings``: further ones.
    """
    among = {member.name: member for member in members if member.name in models}
    parameters = {name: member.scoring["parameters"] for name, member in among.items()}
    cells = with_models(sums["cells.parquet"], models)
    gap = summarize(
        cells,
        reference=suite.reference,
        threshold=threshold,
        evaluation=msgspec.structs.replace(evaluation, data=suite.evaluation.data),
        index=index,
        base=suite.base if suite.base in models else None,
        runs={name: member.checkpoint for name, member in among.items()},
        parameters={name: count for name, count in parameters.items() if isinstance(count, int)},
    )
    by_position = position(with_models(sums["positions.parquet"], models), gap)
    sources = dict(zip(documents["document"].tolist(), documents["source"].tolist(), strict=True))
    found = (*warnings, *warn_of_sources(cells, sources, suite.reference, threshold))
    return msgspec.structs.replace(gap.replaced({"position": by_position}), warnings=found)


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
