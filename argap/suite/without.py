"""Restate a suite's result without some documents, without running a model.

Cells, sums by position, curve and distances by document lose exactly the rows of those documents. The histogram of
distances and the prevalence of repeated bigrams are not by document: they are counted again in the windows kept, from
text, tokenizer and training index, and the cells are checked against the same windows. The restated result thus equals
that of an evaluation set without those windows, and members scored on the text with or without them can be added later
(`argap.suite.collect`).

Older results have no sums by position and document, so no partition by position. ``trajectory.parquet`` stays
unchanged, and `argap.records.LeftOut` says so.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd

from argap.bigram_index.store import BigramIndex, open_index
from argap.errors import FormatError, MismatchError
from argap.evaluation.windows import EvaluationSet, open_evaluation_set
from argap.files.checksums import check_files
from argap.files.lock import one_writer
from argap.files.regular import is_there
from argap.metric.bins import bins_of
from argap.records import Examples, Gap, IndexRecord, LeftOut, read_gap, read_record
from argap.results.in_place import GAP
from argap.results.sources import DOCUMENTS, choose, read_documents, without
from argap.results.text_warnings import HitCounts, warn_of_bigrams
from argap.runtime.progress import say
from argap.slices.cells import PREFIX, build_cells, models_of
from argap.suite.collect import Collected, Kept, keep_others, labels_of, marks, sums_of, write_result
from argap.suite.config import Suite
from argap.suite.gap import build_curve, gap_of, read_sums
from argap.suite.layout import Layout, put_in_place
from argap.suite.repeats import build_distances, build_prevalence
from argap.suite.result import read_size
from argap.suite.tables import read_suite_table
from argap.synthetics.pretrained.records import read_scores
from argap.text.tokenizer import load_tokenizer
from argap.tokens.labels import Labels, index_record, label

REMEDY = "`argap suite run` writes it again"
TRAJECTORY = "trajectory.parquet"


@one_writer("folder")
def restate_without(
    suite: Suite,
    size: str,
    layout: Layout,
    folder: Path,
    where: Mapping[str, Sequence[str]],
    documents: Path | None = None,
) -> Gap:
    """Rewrite the result of ``size`` in ``folder`` without the documents that ``where`` selects; return ``gap.json``.

    ``where``: values by column (`argap.results.sources.choose`). ``documents``: the table of documents of the scored
    text; None: the result's own. The text is the suite's, with or without those documents at its end, and the index is
    the one in ``layout``. Repeating the call changes nothing. Raises `ArgapError` for a value that no document has, and
    `MismatchError` for a text or an index that does not match the result.
    """
    put_in_place(folder)
    gap = read_gap(folder)
    if gap.index is None or gap.threshold is None:
        raise FormatError(f"{folder / GAP}: `index` is null, and a suite has one; {REMEDY}")
    check_files(folder, sorted(folder.glob("*.parquet")))
    table = _table(folder, documents)
    left_out = _left_out(gap, folder, table, where)
    tokenizer = load_tokenizer(suite.entries(size)[0].config.tokenizer)
    data = open_evaluation_set(suite.windows, tokenizer)
    index = _index(layout.index(size), gap.index)
    kept = keep_others(data.record, data.tokens, data.window, data.document_of_window, left_out)
    labels = labels_of(label(data, index), kept)
    tokens = data.tokens[kept.rows]
    whole = read_size(folder)
    sums = {name: without(each, left_out.documents) for name, each in read_sums(whole).items()}
    cells = sums["cells.parquet"]
    _check_cells(folder / "cells.parquet", cells, labels, gap)
    left_out = _counted(left_out, gap, kept)
    table = without(table, left_out.documents)
    hits = HitCounts()
    hits.add(tokens, labels.ar_hit(gap.threshold) & labels.scored)
    restated = gap_of(
        suite,
        size,
        sums,
        [model for model in models_of(cells) if model in gap.models],
        whole.members,
        msgspec.structs.replace(kept.record, left_out=left_out),
        gap.index,
        gap.threshold,
        documents=table,
        warnings=warn_of_bigrams(hits, tokenizer),
    )
    distances, by_document = build_distances(labels, gap.threshold)
    tables = {
        "documents": table,
        "distances": distances,
        "distance_sums": _distance_sums(folder, by_document, left_out),
        "prevalence": build_prevalence(labels, tokens, tokenizer),
    }
    if is_there(folder / "curve.parquet"):
        tables["curve"] = _curve(folder, labels, gap, gap.index, models_of(cells))
    whole.check()  # before anything is written
    tables["logs"] = read_suite_table(folder, "logs.parquet")
    if (trajectory := whole.trajectory()) is not None:
        tables["trajectory"] = trajectory
    recall = folder / "mqar.json"
    made = Collected(
        restated,
        sums,
        tables,
        _examples(folder, left_out, data, kept),
        read_scores(recall) if is_there(recall) else None,
        whole.members,
    )
    write_result(made, folder)
    for line in restated.warnings:
        say(line)
    return restated


def _table(folder: Path, documents: Path | None) -> pd.DataFrame:
    """Read the table of scored documents; it may still list documents left out earlier."""
    path = folder / DOCUMENTS if documents is None else documents
    if documents is None and not is_there(path):
        raise FormatError(f"{path}: no such file; give `documents`, a table with document, domain and source")
    return read_documents(path)


def _left_out(gap: Gap, folder: Path, table: pd.DataFrame, where: Mapping[str, Sequence[str]]) -> LeftOut:
    """Return all documents left out, now and earlier."""
    earlier = gap.evaluation.left_out
    before: Mapping[str, Sequence[str]] = {} if earlier is None else earlier.where
    further = {
        column: [value for value in values if value not in before.get(column, ())] for column, values in where.items()
    }
    chosen = choose(table, further)
    merged = {
        column: tuple(dict.fromkeys([*before.get(column, ()), *where.get(column, ())]))
        for column in (*before, *(name for name in where if name not in before))
    }
    return LeftOut(
        where=merged,
        documents=tuple(sorted({*chosen.tolist(), *(() if earlier is None else earlier.documents)})),
        tokens=0 if earlier is None else earlier.tokens,
        scored=0 if earlier is None else earlier.scored,
        fingerprint=gap.fingerprint if earlier is None else earlier.fingerprint,
        unchanged=(TRAJECTORY,) if is_there(folder / TRAJECTORY) else (),
    )


def _counted(left_out: LeftOut, gap: Gap, kept: Kept) -> LeftOut:
    """Add the tokens lost now to those that ``left_out`` counted earlier."""
    return msgspec.structs.replace(
        left_out,
        tokens=left_out.tokens + gap.evaluation.tokens - kept.record.tokens,
        scored=left_out.scored + gap.evaluation.scored - kept.record.scored,
    )


def _index(folder: Path, recorded: IndexRecord) -> BigramIndex:
    """Open the index and check that it is the result's. Raises `MismatchError` otherwise."""
    index = open_index(folder)
    index.passes = recorded.passes  # how often training reads the text; the counts are unchanged
    if (own := index_record(index)) != (expected := msgspec.structs.replace(recorded, folder=own.folder)):
        differ = [name for name in own.__struct_fields__ if getattr(own, name) != getattr(expected, name)]
        raise MismatchError(
            f"{folder}: {differ[0]} {getattr(own, differ[0])}, the result's index has {getattr(expected, differ[0])}; "
            "build it from the suite's training text"
        )
    return index


def _check_cells(path: Path, cells: pd.DataFrame, labels: Labels, gap: Gap) -> None:
    """Raise `MismatchError` unless the cells count the tokens of ``labels``."""
    evaluation = labels.record.evaluation
    if gap.bins != bins_of(gap.threshold, evaluation.seq_len):
        raise MismatchError(f"{path}: its bins are those of another argap; {REMEDY}")
    expected = sums_of(build_cells(labels, {}, gap.bins))["cells.parquet"]
    documents = 1 + max(int(frame["document"].to_numpy().max()) for frame in (cells, expected))
    found, of_text = (
        np.bincount(frame["document"].to_numpy(), frame["n"].to_numpy(), documents).astype(np.int64)
        for frame in (cells, expected)
    )
    if differ := np.flatnonzero(found != of_text).tolist():
        number = differ[0]
        raise MismatchError(
            f"{path}: {found[number]:,} tokens of document {number}, {of_text[number]:,} in the text; if one of "
            f"its windows has text of a document left out, leave it out as well: `without` document={number}"
        )
    keys = [name for name in expected.columns if not name.startswith(PREFIX)]
    if not all(np.array_equal(cells[key].to_numpy(), expected[key].to_numpy()) for key in keys):
        raise MismatchError(f"{path}: its counts are not those of this text and this index; {REMEDY}")


def _curve(folder: Path, labels: Labels, gap: Gap, index: IndexRecord, models: Sequence[str]) -> pd.DataFrame:
    """Return the curve of the documents kept, with the rows that their tokens need."""
    assert gap.threshold is not None
    found = read_suite_table(folder, "curve.parquet", models)
    keys = ["document", "high"]
    rows = build_curve(labels, {}, marks(gap.threshold, index))
    merged = rows[keys].merge(found, on=keys, how="left").fillna(0)
    merged = merged.astype({"n": rows["n"].dtype})
    if not np.array_equal(merged["n"].to_numpy(), rows["n"].to_numpy()):
        raise MismatchError(
            f"{folder / 'curve.parquet'}: its counts are not those of this text and this index; {REMEDY}"
        )
    return merged


def _distance_sums(folder: Path, rebuilt: pd.DataFrame, left_out: LeftOut) -> pd.DataFrame:
    """Return the sums of log distances of the documents kept. Raises `MismatchError` if they count other hits."""
    kept = without(read_suite_table(folder, "distance_sums.parquet"), left_out.documents)
    if not all(np.array_equal(kept[name].to_numpy(), rebuilt[name].to_numpy()) for name in ("document", "domain", "n")):
        raise MismatchError(
            f"{folder / 'distance_sums.parquet'}: its counts are not those of this text and this index; {REMEDY}"
        )
    return kept


def _examples(folder: Path, left_out: LeftOut, data: EvaluationSet, kept: Kept) -> Examples:
    """Return the example windows of the documents kept."""
    examples = read_record(folder / "examples.json", Examples)
    stays = set(np.unique(data.window[kept.rows]).tolist())
    windows = [each for each in examples.windows if each.window in stays and each.document not in left_out.documents]
    return msgspec.structs.replace(examples, windows=tuple(windows))
