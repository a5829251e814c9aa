"""Collect the runs of a suite into its result: small files that suffice to rebuild table, intervals and figures.

Each size has a folder: ``gap.json``; by document ``cells.parquet``, ``positions.parquet``, ``copies.parquet`` and
``curve.parquet``; ``distances.parquet``, ``distance_sums.parquet``, ``prevalence.parquet``, ``logs.parquet``,
``examples.json``, ``members.json``, ``documents.parquet`` (the source of each) and, if measured, ``mqar.json`` and
``trajectory.parquet``.

A result can grow: members whose runs are not in the work folder are reused from the existing result
(`argap.suite.earlier`). Apart from the choice of examples, the result is the same as if all members had been collected
at once.

Documents are left out by dropping whole windows, so that the others stay intact. A window belongs to the document that
holds most of it. With packing, its other tokens are dropped or kept with it.
"""

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pandas as pd

from argap.errors import ArgapError, FormatError, MismatchError
from argap.evaluation.windows import fingerprint_of
from argap.files.atomic import replacing_folder
from argap.files.checksums import write_checksums
from argap.files.lock import one_writer
from argap.files.parquet import write_parquet
from argap.files.regular import is_there
from argap.metric.bins import bins_of
from argap.metric.threshold import resolve_threshold
from argap.models.configuration import read_native
from argap.models.cost import cost
from argap.records import (
    EvaluationRecord,
    Examples,
    Gap,
    IndexRecord,
    LeftOut,
    as_json,
    read_gap,
    save_gap,
    write_record,
)
from argap.results.example_windows import add_models, choose_examples
from argap.results.in_place import GAP, NEW
from argap.results.in_place import whole as whole_result
from argap.results.layout import check_report
from argap.results.sources import table_of_documents, without
from argap.results.text_warnings import HitCounts, warn_of_bigrams
from argap.runtime.progress import say
from argap.slices.cells import KEYS, build_cells, models_of, sum_by, write_cells
from argap.suite.config import Entry, Suite
from argap.suite.earlier import Earlier, open_earlier
from argap.suite.gap import build_curve, gap_of
from argap.suite.layout import Layout, check_finished, finished_runs, put_in_place, read_recall, trajectory
from argap.suite.repeats import build_distances, build_prevalence
from argap.suite.result import Member, Members
from argap.suite.tables import KEPT
from argap.suite.trajectory import build_logs, build_trajectory
from argap.synthetics.pretrained.records import PretrainedScores
from argap.text.tokenizer import Tokenizer
from argap.tokens.labels import Labels
from argap.tokens.runs import Run, check_ids, read_logprobs, read_token_ids
from argap.train.records import read_train


class Kept(NamedTuple):
    """The windows that stay. Legend: N tokens of the whole set."""

    rows: np.ndarray
    """bool ``[N]``: the tokens of these windows."""
    record: EvaluationRecord
    """The record of these windows, with the fingerprint of a set that has no others."""


def keep_others(
    record: EvaluationRecord, tokens: np.ndarray, window: np.ndarray, document_of_window: np.ndarray, left_out: LeftOut
) -> Kept:
    """Return the windows that belong to none of the documents ``left_out``.

    ``tokens``, ``window``: int32 ``[N]``, token ids and the window of each. ``document_of_window``: int32 ``[W]``.
    The result does not depend on whether documents left out at the end of the text are still there.
    """
    stays = ~np.isin(document_of_window, left_out.documents)
    rows = stays[window]
    lengths = np.bincount(window, minlength=len(stays))[stays]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    others = ~np.isin(np.arange(record.documents), left_out.documents)
    described = msgspec.structs.replace(
        record,
        fingerprint=fingerprint_of(tokens[rows], offsets),
        tokens=int(lengths.sum()),
        scored=int(lengths.sum()) - len(lengths),
        windows=len(lengths),
        documents=int(others.sum()),
        left_out=left_out,
    )
    return Kept(rows, described)


def labels_of(labels: Labels, kept: Kept) -> Labels:
    """Return the labels of the tokens that stay; windows and documents keep their numbers."""
    columns = {
        field.name: getattr(labels, field.name) for field in fields(labels) if field.name != "document_of_window"
    }
    return replace(labels, **{name: each[kept.rows] for name, each in columns.items() if isinstance(each, np.ndarray)})


EXAMPLES = 12
MEASURED = ("loss", "grad_norm", "tokens_per_s")
"""Columns of ``logs.parquet`` that byte splitting shrinks by a third."""
MAY_DIFFER = {"rows", "device", "dtype", "versions", "git"}
"""Fields of ``SIZE/mqar/NAME.json`` that do not describe the test: members may be measured on different machines."""


@one_writer("out")
def collect(
    suite: Suite, size: str, layout: Layout, labels: Labels, tokenizer: Tokenizer, out: Path, *, threshold: int
) -> Gap:
    """Write the result of every finished member of ``size`` to ``out``, keeping members already there; return it.

    Raises `ArgapError` if the reference is not finished or no member has a run, and `MismatchError` if a finished
    member belongs to another suite (`check_finished`), recall of pairs was measured on another test than the suite's,
    or the result in ``out`` cannot be continued (`argap.suite.earlier`); nothing is written then. If the process is
    killed, the earlier result stays, or the next call puts the new one in place (`argap.suite.layout`).
    """
    evaluation, index = labels.record.evaluation, labels.record.index
    entries = {entry.name: entry for entry in suite.entries(size)}
    runs = finished_runs(suite, size, layout)
    for name in runs:
        check_finished(entries[name], layout, evaluation.fingerprint)
    put_in_place(out)
    tokens = read_token_ids(next(iter(runs.values()))) if runs else None
    kept = None if tokens is None else _kept(labels, tokens, out)
    earlier = open_earlier(suite, size, runs, evaluation if kept is None else kept.record, threshold, out)
    for change in earlier.changes:
        say(change)
    if tokens is None:
        raise ArgapError(f"{size}: no member has a run in {layout.work}; `argap suite run` trains one")
    if index is None:
        raise ArgapError(f"{size}: a suite's labels need training counts; label them with `training_index`")
    check_ids(next(iter(runs.values())), tokens, tokenizer)
    models = [name for name in entries if name in runs or name in earlier.taken]
    first = [name for name in models if entries[name].seed == 0]
    recall = _recall(suite, {name: layout.mqar(entries[name]) for name in runs}, earlier, models)
    members = tuple(earlier.taken.get(name) or _member(entries[name], runs[name], layout) for name in models)
    scores = {name: read_logprobs(run) for name, run in runs.items()}
    # Members taken from a restated result were scored on the windows kept, so all others are compared there.
    text = _text(labels, tokens, tokenizer.eos, kept if earlier.taken else None)
    logprobs = {name: logprob[text.rows] for name, (logprob, _) in scores.items()}
    own_sums = sums_of(build_cells(text.labels, logprobs, bins_of(threshold, evaluation.seq_len)))
    sums = {name: earlier.joined(name, own, models) for name, own in own_sums.items()}
    hits = HitCounts()
    hits.add(tokens[text.rows], text.labels.ar_hit(threshold) & text.labels.scored)
    gap = gap_of(
        suite,
        size,
        sums,
        first,
        members,
        text.evaluation,
        index,
        threshold,
        documents=text.documents,
        warnings=warn_of_bigrams(hits, tokenizer),
    )
    for line in gap.warnings:
        say(line)
    curve = build_curve(text.labels, logprobs, marks(threshold, index))
    curve = earlier.joined("curve.parquet", curve, models)
    tables = {"documents": text.documents} | ({"curve": curve} if models_of(curve) == models else {})
    compared = {name: scores[name] for name in first if name in scores}
    if earlier.examples is None:
        examples = choose_examples(
            tokens, text.whole, compared, tokenizer, reference=suite.reference, threshold=threshold, count=EXAMPLES
        )
    else:
        examples = add_models(earlier.examples, first, earlier.same, tokens, text.whole, compared)
    tables["distances"], tables["distance_sums"] = build_distances(text.labels, threshold)
    tables["prevalence"] = build_prevalence(text.labels, tokens[text.rows], tokenizer)
    for name, own in _training_tables(text, entries, runs, layout, threshold).items():
        if (every := earlier.with_rows(f"{name}.parquet", own, models)) is not None:
            tables[name] = every
    write_result(Collected(gap, sums, tables, examples, recall, members), out)
    return gap


def _kept(labels: Labels, tokens: np.ndarray, out: Path) -> Kept | None:
    """Return the windows that the result in ``out`` keeps; None if it was not restated without documents."""
    left_out = left_out_of(out)
    if left_out is None:
        return None
    return keep_others(labels.record.evaluation, tokens, labels.window, labels.document_of_window, left_out)


class _Text(NamedTuple):
    """The part of the evaluation text that a result is computed on. Legend: N tokens of the whole text."""

    evaluation: EvaluationRecord
    labels: Labels
    documents: pd.DataFrame
    rows: slice | np.ndarray
    """Its tokens, bool ``[N]`` or all."""
    whole: Labels
    """Labels of the whole text, with no repeated bigram in windows left out, so that no example comes from them."""


def _text(labels: Labels, tokens: np.ndarray, eos: int | None, kept: Kept | None) -> _Text:
    """Restrict labels and documents to the windows ``kept``; None: all."""
    documents = table_of_documents(labels, tokens, eos)
    if kept is None:
        return _Text(labels.record.evaluation, labels, documents, slice(None), labels)
    assert kept.record.left_out is not None
    documents = without(documents, kept.record.left_out.documents)
    whole = dataclasses.replace(labels, repeated=labels.repeated & kept.rows)
    return _Text(kept.record, labels_of(labels, kept), documents, kept.rows, whole)


def _training_tables(
    text: _Text, entries: Mapping[str, Entry], runs: Mapping[str, Run], layout: Layout, threshold: int
) -> dict[str, pd.DataFrame | None]:
    """Build the trajectory and the logs of the members with a run; no trajectory without intermediate checkpoints.

    None is built if documents are left out either: the trajectories of members taken cover the whole text.
    """
    trajectories = {name: trajectory(entries[name], layout) for name in runs}
    tokens_per_step = {name: entry.config.batch_size * entry.config.seq_len for name, entry in entries.items()}
    steps = None
    if any(trajectories.values()) and text.evaluation.left_out is None:
        steps = build_trajectory(text.labels, trajectories, tokens_per_step, threshold)
    logs = build_logs({name: layout.checkpoint(entries[name]) / "log.jsonl" for name in runs})
    return {"trajectory": steps, "logs": logs}


def left_out_of(folder: Path) -> LeftOut | None:
    """Return the documents that the result in ``folder`` was restated without (`argap.suite.without`), if any."""
    with suppress(FormatError):  # no result, or one that `open_earlier` reports on
        return read_gap(whole_result(folder)).evaluation.left_out
    return None


def sums_of(cells: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Sum cells to the files of sums that a result keeps."""
    return {
        name: sum_by(cells.drop(columns=[key for key in KEYS if key in cells and key not in kept]), kept)
        for name, kept in KEPT.items()
        if {*kept} <= {*cells.columns}
    }


def marks(threshold: int, index: IndexRecord) -> tuple[int, int]:
    """Return the thresholds that must be bin ends of the curve: the result's, and the one scaled to its training."""
    return threshold, resolve_threshold("scaled", index.exposed_tokens)


class Collected(NamedTuple):
    """The contents of a result's files."""

    gap: Gap
    sums: Mapping[str, pd.DataFrame]
    """Cells, by file name."""
    tables: Mapping[str, pd.DataFrame]
    """By file name, without suffix."""
    examples: Examples
    recall: PretrainedScores | None
    members: tuple[Member, ...]


def write_result(made: Collected, out: Path) -> None:
    """Write a result to ``out``; it replaces the one there once complete.

    Raises `FormatError` if the tables of its report, there or for all sizes, could not be written afterwards.
    """
    for folder in (out, out.parent):
        check_report(folder)
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
    """Merge the recall of pairs of ``models`` into one measurement; None if there is none.

    ``paths``: the files of models with a run; the others come from the earlier result. Raises `MismatchError` if they
    were measured on different tests.
    """
    from_files = {model: paths.get(model, earlier.folder / "mqar.json") for model in models}
    read = {path: read_recall(suite, path) for path in dict.fromkeys(from_files.values()) if is_there(path)}
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


def _member(entry: Entry, run: Run, layout: Layout) -> Member:
    """Describe a member: its training, its cost and its fingerprints."""
    folder = layout.checkpoint(entry)
    spent = cost(read_native(folder), entry.config.seq_len)
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
