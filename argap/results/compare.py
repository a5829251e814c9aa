"""Compute ``gap.json`` and its parts from finished runs and their labels, without running a model or importing torch.

The output folder gets ``gap.json``, ``cells.parquet`` and ``examples.json``, next to the runs and ``labels/`` of
``argap score``. `label_result` adds training counts to a result scored without an index, and missing columns to labels
of an earlier format.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pandas as pd

from argap.bigram_index.store import check_tokenizer, open_index
from argap.errors import ArgapError, FormatError, MismatchError
from argap.evaluation.windows import open_evaluation_set, separator_of
from argap.files.atomic import replacing, replacing_folder
from argap.files.checksums import write_checksums
from argap.files.hub import fetched, is_hub
from argap.files.lock import one_writer
from argap.files.regular import is_folder, is_there
from argap.files.resumable import case_aside, folder_name
from argap.metric.bins import bins_of
from argap.metric.threshold import PAPER_THRESHOLD, PAPER_TOKENS, Threshold, resolve_threshold
from argap.records import (
    INFINITE,
    NAMED,
    Gap,
    IndexRecord,
    LabelsRecord,
    Part,
    SliceInfo,
    read_gap,
    save_gap,
    write_record,
)
from argap.results.context_use import context_use
from argap.results.example_windows import ExampleChooser
from argap.results.in_place import GAP, NEW, put_in_place
from argap.results.layout import check_result, remove_report
from argap.results.sources import source_name
from argap.results.summary import summarize
from argap.results.text_warnings import HitCounts, warn_of_bigrams, warn_of_bos, warn_of_sources
from argap.runtime.progress import say
from argap.scoring.per_model import split_name
from argap.slices.cells import CellWriter, build_cells
from argap.slices.fidelity import Compared, Followed
from argap.slices.margins import Margin, Margins, joint_margins, margin_of_hits, margins_of
from argap.text.tokenizer import Tokenizer
from argap.tokens.labels import (
    Labels,
    fill_labels,
    index_record,
    label_portions,
    with_copies,
    with_counts,
    write_labels,
)
from argap.tokens.portions import Portion, map_portions, read_portions
from argap.tokens.runs import (
    BESIDE,
    Run,
    check_ids,
    check_same_set,
    check_text,
    named,
    open_run,
    recorded_text,
    tokenizer_of,
)
from argap.tokens.segment_runs import align_finished, check_tokens
from argap.tokens.table import TokenTable

if TYPE_CHECKING:
    from argap.slices.library import SliceSpec


@one_writer("out")
def compare_runs(
    runs: Sequence[str],
    reference: str,
    out: Path,
    *,
    threshold: Threshold = PAPER_THRESHOLD,
    base: str | None = None,
    slices: "Sequence[SliceSpec] | None" = None,
) -> Gap:
    """Compute the gap of finished runs to the run ``reference``, and write it to ``out``.

    A run may be given another name, ``NAME=RUN``. Runs of several tokenizers are first written to ``out`` as segment
    runs (`argap.tokens.segment_runs`). If no run has labels, as after `argap import`, the text is labelled. ``slices``:
    as in `write_gap`. Raises `ArgapError` for unfinished runs and runs of the same name, and `MismatchError` for runs
    of different evaluation sets.
    """
    opened = _open(reference, *runs)
    if base is not None and not any(_is_in(run, base) for run in opened):
        opened += _open(base)
    by_name: dict[str, Run] = {}
    for run in opened:
        other = by_name.setdefault(run.model.lower(), run)
        if other is not run:
            named = f"both named {run.model}{case_aside(run.model, other.model)}"
            raise ArgapError(f"{run.folder} and {other.folder} are {named}; give one of them as NAME=RUN")
    if len({run.record.evaluation.unit for run in opened}) > 1:
        check_tokens(opened)
    base_name = None if base is None else next(run.model for run in opened if _is_in(run, base))
    if len({run.record.evaluation.tokenizer_fingerprint for run in opened}) > 1:
        opened, folder = align_finished(opened, out), out / "labels"
    else:
        folder = _labels_beside(opened) or _label_text(opened, out)
    table = TokenTable(tuple(opened), folder)
    if slices:
        from argap.slices.of_tokens import check_slices

        check_slices(slices, table.models, table.record.evaluation, table.further)
    return write_gap(opened, folder, table.tokenizer, out, threshold=threshold, base=base_name, slices=slices)


def _open(*sources: str) -> list[Run]:
    """Open runs given as ``RUN`` or ``NAME=RUN``, each once."""
    given = [(name, fetched(path, BESIDE) if is_hub(path) else path) for name, path in map(split_name, sources)]
    chosen = {(name, Path(path).resolve()): path for name, path in given}
    return [named(open_run(path), name) for (name, _), path in chosen.items()]


def _is_in(run: Run, source: str) -> bool:
    """Return whether ``source``, ``RUN`` or ``NAME=RUN``, is this run."""
    name, path = split_name(source)
    path = fetched(path, BESIDE) if is_hub(path) else Path(path)
    return run.folder.resolve() == path.resolve() and name in (None, run.model)


def labels_of(run: Run) -> Path:
    """Return the folder of labels next to a run. Raises `ArgapError` if there is none."""
    folder = _labels_beside([run])
    if folder is None:
        raise ArgapError(
            f"{run.folder.parent / 'labels'}: no labels beside the run; expected a run of `argap score` or of "
            "`argap import --index DIR`"
        )
    return folder


def _labels_beside(runs: Sequence[Run]) -> Path | None:
    """Return the first folder of labels next to one of the runs; None if there is none."""
    beside = [run.folder.parent / "labels" for run in runs]
    return next((folder for folder in beside if is_there(folder / "labels.json")), None)


def _label_text(runs: Sequence[Run], out: Path) -> Path:
    """Write labels to ``out``/labels, with counts from the index recorded in the first run, and return the folder.

    Reads the text again. Without an index every repeated bigram is a hit. Existing labels are kept, as they may have
    gained counts (`label_result`). Raises `ArgapError` for segment runs and for a missing text, and `MismatchError` for
    runs of different evaluation sets, for a changed text, and for existing labels of another text.
    """
    check_tokens(runs)
    first, folder = runs[0], out / "labels"
    for run in runs:
        check_same_set(run, first.record.evaluation, f"{first.folder} holds")
    if is_there(folder / "labels.json"):
        if TokenTable((), folder).record.evaluation.fingerprint != first.record.evaluation.fingerprint:
            raise MismatchError(f"{folder}: labels of another comparison; choose another `out`")
        return folder
    tokenizer = tokenizer_of(first)
    data = open_evaluation_set(recorded_text(first), tokenizer)
    check_text(first, data.record)
    index = first.record.source.index
    opened = open_index(index) if index is not None and (is_hub(index) or is_folder(Path(index))) else None
    write_labels(label_portions(data, opened), tokenizer, folder)
    return folder


def write_gap(
    runs: Sequence[Run],
    labels: Path,
    tokenizer: Tokenizer,
    out: Path,
    *,
    threshold: Threshold,
    base: str | None,
    slices: "Sequence[SliceSpec] | None" = None,
) -> Gap:
    """Write the result of ``runs``, the reference first, remove an earlier report there, and return ``gap.json``.

    ``labels``: a folder in ``out`` or next to a run. ``slices``: slices to record; None: those of an earlier result in
    ``out``, which stays until the new one is whole (`argap.results.in_place`). Files are read in portions of whole
    windows.
    """
    put_in_place(out)
    with replacing_folder(out / NEW, sole_writer=True) as new:
        gap = _write_gap(new, runs, labels, tokenizer, out, threshold=threshold, base=base, slices=slices)
    remove_report(out)
    put_in_place(out)
    return gap


def _write_gap(
    new: Path,
    runs: Sequence[Run],
    labels: Path,
    tokenizer: Tokenizer,
    out: Path,
    *,
    threshold: Threshold,
    base: str | None,
    slices: "Sequence[SliceSpec] | None",
) -> Gap:
    """Write the files of a result in ``out`` to the folder ``new``."""
    check_result(out)  # before the work, as it is replaced at the end
    table = TokenTable(tuple(runs), labels)
    evaluation, index = table.record.evaluation, table.record.index
    for run in runs:
        _check_labels(run, table.record, runs[0])
    tau = threshold_of(threshold, index)
    bins = bins_of(tau, evaluation.seq_len, index)
    earlier = _recorded(out) if slices is None else ()
    chooser = ExampleChooser(table.models, tokenizer, reference=runs[0].model, threshold=tau)
    n = table.scored_of_document
    margins = Margins(table.models, np.flatnonzero(n), n[n > 0])
    of_hits = Margins(table.models, np.flatnonzero(n), n[n > 0], by="document")
    bigrams = HitCounts()
    followed = Followed(table)

    def summed(portion: Portion) -> tuple[Portion, pd.DataFrame, list[Margin], Margin, list[Compared]]:
        made = build_cells(portion.labels, {m: s.logprob for m, s in portion.scores.items()}, bins)
        joint = joint_margins(made)
        return portion, made, margins_of(joint), margin_of_hits(joint, tau, bins), followed.compare(portion)

    with CellWriter(new / "cells.parquet", bins) as cells:
        for portion, made, of_portion, hits_of_portion, compared in map_portions(table, summed):
            cells.add_cells(made)
            followed.add(compared)
            margins.add(of_portion)
            of_hits.add([hits_of_portion])
            filled = {m: (portion.labels.over_segments(s.logprob), s.top1) for m, s in portion.scores.items()}
            chooser.add(check_ids(runs[0], portion.tokens, tokenizer), portion.labels, filled)
            hits = portion.labels.ar_hit(tau) & portion.labels.scored
            bigrams.add(portion.tokens, hits)
    gap = summarize(
        margins,
        reference=runs[0].model,
        threshold=tau,
        bins=bins,
        evaluation=msgspec.structs.replace(evaluation, data=runs[0].record.source.data),
        index=index,
        base=base,
        run=str(out),
        runs={run.model: str(run.folder) for run in runs},
        parameters={
            run.model: run.finished.parameters for run in runs if run.finished and run.finished.parameters is not None
        },
    )
    sources = dict(enumerate(map(source_name, table.record.sources)))
    warnings = (
        *warn_of_bos(runs, tokenizer),
        *warn_of_sources(gap, next(of_hits.frames()), sources),
        *warn_of_bigrams(bigrams, tokenizer),
    )
    gap = with_slices(gap, _slices(gap, out, table, slices, earlier))
    gap = msgspec.structs.replace(
        gap,
        warnings=warnings,
        fidelity=followed.results(),
        context=context_use(table),
        scores={run.model: run.record.identity.scores for run in runs},
    )
    for line in warnings:
        say(line)
    for model in gap.models:
        if gap.on_all[model].infinite:
            say(f"{model}: {INFINITE}, so its perplexity is infinite and its share of the gap unresolved")
    write_checksums(new, [new / "cells.parquet"])
    write_record(new / "examples.json", chooser.examples(), indent=None)
    save_gap(new / GAP, gap)
    return gap


def _slices(
    gap: Gap, out: Path, table: TokenTable, slices: "Sequence[SliceSpec] | None", recorded: Sequence[SliceInfo]
) -> list[Part]:
    """Score ``slices``, or those ``recorded`` earlier that can still be computed."""
    if not slices and not recorded:
        return []
    from argap.slices.library import SliceSpec
    from argap.slices.of_tokens import as_slices, check_where, score_slices

    chosen = list(slices or ())
    for each in (SliceSpec(each.name, each.where, each.title, each.note) for each in recorded if each.where):
        try:
            check_where(each, gap.models, table.record.evaluation, table.further)
            chosen.append(each)
        except ArgapError as error:
            say(f"{out}: a slice of the earlier result is left out: {error}")
    scored = score_slices(table, as_slices(chosen), threshold=gap.threshold, empty=slices is None, bins=slices is None)
    return scored[2:]


def _recorded(out: Path) -> tuple[SliceInfo, ...]:
    """Return the slices of the result in ``out``; none if there is no result, or none that can be read, and says so."""
    if not is_there(out / GAP):
        return ()
    try:
        return read_gap(out).slices
    except FormatError as error:
        say(f"{out}: slices of the earlier result are left out: {error}")
        return ()


def with_slices(gap: Gap, slices: Sequence[Part]) -> Gap:
    """Return a result with ``slices`` instead of those recorded."""
    moved = [part.moved(NAMED, part.bin) for part in slices]
    return msgspec.structs.replace(gap.replaced({NAMED: moved}), slices=tuple(part.about for part in slices))


@one_writer("folder")
def record_slices(folder: Path, slices: Sequence[Part], since: Gap, *, beside: bool = False) -> Gap:
    """Replace the slices recorded in ``gap.json``, and remove an earlier report.

    ``since``: the result that they were computed from. ``beside``: keep those that are recorded. Raises `ArgapError`,
    before anything is changed, for a name that is taken, and if the result has been replaced since.
    """
    from argap.slices.library import check_names

    put_in_place(folder)
    gap = read_gap(folder)
    if (gap.date, gap.scores, gap.index) != (since.date, since.scores, since.index):
        raise ArgapError(f"{folder}: the result was replaced while its slices were computed; start again")
    if beside:
        recorded = gap.parts(NAMED)
        check_names((part.about.name for part in slices), beside=(part.about.name for part in recorded))
        slices = [*recorded, *slices]
    gap = with_slices(gap, slices)
    with replacing(folder / "gap.json") as written:  # before the report is removed: the disk may be full
        save_gap(written, gap)
        remove_report(folder)
    return gap


@one_writer("folder")
def label_result(folder: Path, index: str | None = None, *, threshold: Threshold | None = None) -> Gap:
    """Label the result of `argap score` in ``folder`` with exposures from ``index``, and return the new ``gap.json``.

    Without an index, counts stay, and labels of an earlier format get the columns they lack. ``threshold``: None for
    the paper's, or without an index for the result's own. Rewrites ``labels/``, ``gap.json`` and everything computed
    from them, including recorded slices; runs stay, and no model runs. If interrupted, repeat the call. Raises
    `ArgapError` for a folder without its own labels, and `MismatchError` for an index of another tokenizer.
    """
    put_in_place(folder)
    gap = read_gap(folder)
    beside = folder / "labels"
    if not is_there(beside / "labels.json"):
        raise ArgapError(f"{folder}: no labels there; label the folder of `argap score`, then repeat `argap compare`")
    opened = None if index is None else open_index(index)
    if threshold is None:
        threshold = PAPER_THRESHOLD if opened or gap.threshold is None else gap.threshold
    # Refuse a bad threshold before anything is rewritten.
    threshold_of(threshold, index_record(opened) if opened else gap.index)
    inside = [(row, folder / folder_name(row.model)) for row in gap.rows]  # else at the recorded path
    runs = [named(open_run(own if is_there(own / "run.json") else row.run), row.model) for row, own in inside]
    table = TokenTable(tuple(runs), beside)
    evaluation = table.record.evaluation
    if opened is not None:
        check_tokenizer(opened, evaluation.tokenizer, evaluation.tokenizer_fingerprint)
    base = next((row.closed.base for row in gap.rows if row.closed), None)
    for run in runs:
        _check_labels(run, table.record, runs[0])
    tokenizer = table.tokenizer
    eos = separator_of(tokenizer) if evaluation.packing == "packed" else None

    def completed() -> Iterator[Labels]:
        for portion in read_portions(table):
            labels = with_copies(portion.labels, portion.tokens, eos)
            yield labels if opened is None else with_counts(labels, portion.tokens, opened)

    with replacing_folder(beside) as temporary:
        fill_labels(completed(), tokenizer, temporary)
        with replacing_folder(folder / NEW, sole_writer=True) as new:
            made = _write_gap(new, runs, temporary, tokenizer, folder, threshold=threshold, base=base, slices=None)
        (folder / GAP).unlink()  # it has other labels
    remove_report(folder)
    put_in_place(folder)
    return made


def threshold_of(threshold: Threshold, index: IndexRecord | None) -> int | None:
    """Return τ for the counts of ``index``; None without one. Raises `ArgapError` for ``scaled`` without an index."""
    if index is not None:
        return resolve_threshold(threshold, index.exposed_tokens)
    resolve_threshold(threshold, PAPER_TOKENS)  # refuse a bad value even without an index
    if threshold == "scaled":
        raise ArgapError("`threshold` scaled: 1,250 per 10 B training tokens, which an index records; give `index=DIR`")
    return None


def _check_labels(run: Run, labels: LabelsRecord, reference: Run) -> None:
    check_same_set(run, labels.evaluation, f"the labels (and {reference.folder}) hold")
