"""Compute ``gap.json`` of a suite's result from its sums; torch is never imported."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from argap.errors import ArgapError, FormatError
from argap.files.checksums import check_files
from argap.files.regular import is_there
from argap.files.remedies import SUITE
from argap.records import (
    COPY,
    INDUCTION,
    EvaluationRecord,
    Gap,
    IndexRecord,
    Part,
    as_json,
    read_gap,
    save_gap,
)
from argap.results.by_source import sources_of
from argap.results.in_place import GAP
from argap.results.sources import DOCUMENTS, read_documents
from argap.results.summary import summarize
from argap.results.text_warnings import BIGRAM, warn_of_sources
from argap.slices.cells import PREFIX, check_bins, models_of, with_models
from argap.slices.margins import sum_hits
from argap.slices.partitions import By, partition
from argap.slices.tally import tally
from argap.suite.config import Suite
from argap.suite.layout import Layout, put_in_place
from argap.suite.result import Member, SizeResult, read_size
from argap.suite.tables import read_suite_table
from argap.tokens.labels import Labels

FURTHER: Mapping[By, str] = {"position": "positions.parquet", COPY: "copies.parquet", INDUCTION: "copies.parquet"}
"""Partitions whose sums are not in ``cells.parquet``, and their files, which older results lack."""


def gap_of(
    suite: Suite,
    size: str,
    sums: Mapping[str, pd.DataFrame],
    models: Sequence[str],
    members: Sequence[Member],
    evaluation: EvaluationRecord,
    index: IndexRecord,
    threshold: int,
    *,
    documents: pd.DataFrame,
    warnings: Sequence[str] = (),
) -> Gap:
    """Compute ``gap.json`` of ``models`` from the files of sums, over all their seeds.

    Text and index are recorded under the suite's own names, so that the result is the same on every machine.
    Partitions whose sums lack a model, as they do for members taken from an older result, are left out.
    ``documents``: the table of documents. ``warnings``: more warnings to record.
    """
    among = {member.name: member for member in members if member.name in models}
    parameters = {name: member.scoring["parameters"] for name, member in among.items()}
    seeds = {name: tuple(each.name for each in members if each.member == of.member) for name, of in among.items()}
    columns = [name for names in seeds.values() for name in names]
    cells = with_models(sums["cells.parquet"], columns)
    gap = summarize(
        cells,
        reference=suite.reference,
        threshold=threshold,
        evaluation=msgspec.structs.replace(evaluation, data=suite.evaluation.data),
        index=msgspec.structs.replace(index, folder=Layout.of(suite.name).index(size).as_posix()),
        base=suite.base if suite.base in models else None,
        runs={name: member.checkpoint for name, member in among.items()},
        parameters={name: count for name, count in parameters.items() if isinstance(count, int)},
        seeds=seeds,
    )
    further: dict[str, list[Part]] = {"position": []}
    for by, name in FURTHER.items():
        if name in sums and set(columns) <= {*models_of(sums[name])}:
            own = with_models(sums[name], columns)
            further[by] = partition(own, gap.bins, by, reference=gap.reference, threshold=threshold, seeds=gap.seeds)
    sources = dict(zip(documents["document"].tolist(), documents["source"].tolist(), strict=True))
    found = (*warnings, *warn_of_sources(gap, sum_hits(cells, threshold, gap.bins), sources))
    return msgspec.structs.replace(gap.replaced(further), warnings=found)


def recompute(suite: Suite, folder: Path) -> Gap:
    """Compute ``gap.json`` in ``folder`` again from the other files there, as after an update of argap.

    All files of the result are read first. The file stays if all numbers are the same to nine digits, as the last ones
    depend on the processor. Raises `FormatError` for a result without an index, and for missing or damaged files.
    """
    put_in_place(folder)
    gap = read_gap(folder)
    if gap.index is None or gap.threshold is None:
        raise FormatError(f"{folder / GAP}: `index` is null, and a suite has one; {SUITE}")
    check_files(folder, sorted(folder.glob("*.parquet")))
    size = read_size(folder)
    made = gap_of(
        suite,
        size.size,
        read_sums(size),
        gap.models,
        size.members,
        gap.evaluation,
        gap.index,
        gap.threshold,
        documents=read_documents(folder / DOCUMENTS),
        warnings=[line for line in gap.warnings if line.startswith(BIGRAM)],
    )
    made = msgspec.structs.replace(made, run=gap.run, date=gap.date, versions=gap.versions)
    size.check()  # before anything is written
    sources_of(folder, gap, size.cells["document"].to_numpy())
    if not _alike(as_json(gap), as_json(made)):
        save_gap(folder / GAP, made)
    return made


def read_sums(size: SizeResult) -> dict[str, pd.DataFrame]:
    """Read the files of sums that a result has, by name. Raises `FormatError` for a broken one."""
    files = [name for name in dict.fromkeys(FURTHER.values()) if is_there(size.folder / name)]
    sums = {name: read_suite_table(size.folder, name) for name in files}
    for name, table in sums.items():
        check_bins(size.folder / name, table, size.gap.bins)
    return {"cells.parquet": size.cells} | sums


def _alike(old: Any, new: Any) -> bool:
    """Return whether two JSON values are equal, numbers to nine digits."""
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(_alike(old[key], new[key]) for key in old)
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(map(_alike, old, new))
    return old == new


SINGLE = 10
"""Each count up to this one has its own bin."""
PER_DECADE = 20
"""Bins per decade above `SINGLE`."""


def fine_bounds(highest: int, thresholds: Sequence[int]) -> np.ndarray:
    """Return the upper bounds of the bins, int64, ascending.

    0 … 10, then 20 per decade up to at least ``highest``, and all ``thresholds``.
    """
    decades = np.log10(max(highest, SINGLE) / SINGLE)
    grid = SINGLE * 10 ** (np.arange(0, np.ceil(decades * PER_DECADE) + 1) / PER_DECADE)
    return np.unique(np.concatenate([np.arange(SINGLE), np.ceil(grid).astype(np.int64), thresholds]).astype(np.int64))


def build_curve(labels: Labels, logprobs: Mapping[str, np.ndarray], thresholds: Sequence[int] = ()) -> pd.DataFrame:
    """Bin the repeated, scored tokens by training count: one row per document and non-empty bin.

    Columns ``document``, ``high``, ``n`` and each model's sum of log p (float64). Every value of ``thresholds`` is the
    upper bound of a bin. Bins without tokens appear once, with ``n`` 0.
    """
    rows = np.flatnonzero(labels.repeated & labels.scored)
    if labels.train_count is None:
        raise ArgapError("labels without training counts have no curve over thresholds; label them with an index")
    counts = labels.train_count[rows]
    bounds = fine_bounds(int(counts.max(initial=0)), thresholds)
    every = np.arange(len(bounds))  # one row per bin, in the first document, with weight 0
    document = np.append(
        np.repeat(labels.document_of_window[labels.window[:1]], len(every)),  # document 0 may be left out
        labels.document_of_window[labels.window[rows]],
    )
    number = np.append(every, np.searchsorted(bounds, counts))
    weight = np.append(np.zeros_like(every), np.ones_like(rows))
    columns = [np.append(np.zeros(len(every), dtype=values.dtype), values[rows]) for values in logprobs.values()]
    groups = tally([document, number], columns, weight)
    sums = {PREFIX + model: each for model, each in zip(logprobs, groups.sums, strict=True)}
    document, number = groups.keys
    return pd.DataFrame({"document": document.astype(np.int32), "high": bounds[number], "n": groups.n, **sums})
