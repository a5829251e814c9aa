"""Compute the share of each source in a gap or lead, and the share of the AR hits without that source.

A gap may rest on one source, whose text may resemble no training text. The table of sources shows it: leave one out,
and see whether the share on AR hits stays.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from argap.errors import FormatError
from argap.files.remedies import remedy_for
from argap.metric.direction import LEVEL
from argap.metric.documents import LeftOut, behind, figures, leave_one_source_out
from argap.records import Bins, Gap, LabelsRecord, Record, read_record
from argap.results.sources import DOCUMENTS, read_documents, source_name
from argap.slices.cells import (
    PREFIX,
    CellFile,
    ar_hits,
    keys_of,
    mean_over_seeds,
    models_of,
    parts_of,
    sum_by,
    sum_cells,
)
from argap.tokens.labels import FORMAT

MOST = 15
"""Maximum number of sources listed: those with the largest share of the tokens or of a gap."""
NEEDED = ("document", "domain", "repeated", "frequency")
"""Keys of the cells that identify sources and AR hits."""


class ModelWithout(Record, frozen=True, omit_defaults=False):
    """A model's gap or lead in one source, and in all others."""

    model: str
    part: float | None
    """The source's share of the gap or lead; None if the model is level."""
    hits: float | None
    """Share of the AR hits in the gap or lead on all other sources; None if the model is level."""
    level: bool
    """Whether the model is level on all other sources, so that ``hits`` must not be claimed."""


class SourceRow(Record, frozen=True, omit_defaults=False):
    """One source, left out."""

    name: str
    documents: int
    share_of_tokens: float
    models: tuple[ModelWithout, ...]


class BySource(Record, frozen=True, omit_defaults=False):
    """The sources of a text, largest first, and the models compared with the reference."""

    by: str
    """``source`` or ``domain``."""
    sources: tuple[SourceRow, ...]
    hits: tuple[ModelWithout, ...]
    """The same with nothing left out: ``part`` is 1."""
    smaller: int
    """Number of sources not listed."""
    reason: str | None
    """Why there is nothing to leave out; ``sources`` is then empty."""


class Grouped(NamedTuple):
    """Sums over groups of documents or of tokens. Legend: G groups, M models, R rows (group and document)."""

    by: str
    """``source`` or ``domain``."""
    names: list[str]
    """``[G]``."""
    n: np.ndarray
    """``[2, G]``: scored tokens, and AR hits."""
    logprob: np.ndarray
    """``[2, M, G]``: their sums of log p."""
    models: list[str]
    reference: int
    group: np.ndarray
    """``[R]``: number of the group."""
    document: np.ndarray
    """``[R]``."""
    sums: np.ndarray
    """``[1 + M, R]``: scored tokens, and each model's sum of log p."""

    @property
    def documents(self) -> np.ndarray:
        """Return the number of documents with a token of each group ``[G]``."""
        return np.bincount(self.group, minlength=len(self.names))

    @property
    def left_out(self) -> LeftOut:
        """Return each group's share of the gaps, and the shares of the slices (all, AR hits) without it."""
        return leave_one_source_out(behind(self.logprob, self.reference), np.arange(len(self.names)))

    def level(self, without: int | None = None) -> np.ndarray:
        """Return whether each gap's interval over documents contains 0, bool ``[M]``; ``without``: a group left out."""
        kept = self.group != (-1 if without is None else without)
        _, document = np.unique(self.document[kept], return_inverse=True)
        n, *logprob = (np.bincount(document, column[kept]) for column in self.sums)
        return figures(n[None], np.array(logprob)[None], self.reference).direction == LEVEL


def group(
    cells: pd.DataFrame | CellFile,
    reference: str,
    threshold: int | None,
    bins: Bins,
    source_of: Mapping[int, str] | None = None,
) -> Grouped:
    """Sum the cells by source; by domain if ``source_of`` (source by document) is None, or says too little.

    One source, or one per document, says too little. ``threshold``: the one used to bin the cells; ``bins``: those
    that they refer to.
    """
    several = source_of is not None and 1 < len(set(source_of.values())) < len(source_of)
    models, keys = models_of(cells), ["name", "document", "hit"]
    columns = ["n", *(PREFIX + model for model in models)]
    pieces = []
    for part in parts_of(cells):
        names = part["document"].map(source_of.get) if several and source_of else part["domain"].astype(str)
        named = part[["document", *columns]].assign(name=names, hit=ar_hits(part, threshold, bins))
        pieces.append(sum_by(named, keys))
    by_hit = sum_by(pd.concat(pieces), keys)
    names, code = np.unique(by_hit["name"].to_numpy(str), return_inverse=True)
    hit = by_hit["hit"].to_numpy(bool)
    values = by_hit[columns].to_numpy(np.float64).T
    total = np.stack(
        [[np.bincount(code[rows], column[rows], len(names)) for column in values] for rows in (hit | True, hit)]
    )
    rows = sum_by(by_hit.assign(name=code).drop(columns="hit"), ["name", "document"])
    return Grouped(
        by="source" if several else "domain",
        names=names.tolist(),
        n=total[:, 0],
        logprob=total[:, 1:],
        models=models,
        reference=models.index(reference),
        group=rows["name"].to_numpy(),
        document=rows["document"].to_numpy(),
        sums=rows[columns].to_numpy(np.float64).T,
    )


def by_source(gap: Gap, cells: pd.DataFrame, source_of: Mapping[int, str] | None) -> BySource:
    """Leave out each source in turn.

    ``cells``: of the models in ``gap`` and their seeds, at its threshold; ``source_of``: see `group`.
    """
    grouped = group(mean_over_seeds(cells, gap.seeds), gap.reference, gap.threshold, gap.bins, source_of)
    directions = gap.directions
    chosen = [model for model in grouped.models if model in directions]
    judged = [model for model in chosen if directions[model] != LEVEL]
    reason = None
    if not chosen:
        reason = "No other model with a finite ΔNLL to compare."
    elif len(grouped.names) == 1:
        reason = f"All of the text is one {grouped.by}, {grouped.names[0]}: leaving it out leaves nothing."
    elif not judged:
        reason = f"No model has a gap or a lead, so the {grouped.by}s have no share of one."
    listed = [] if reason else _largest(grouped, [grouped.models.index(model) for model in judged])
    parts = grouped.left_out

    def without(g: int) -> tuple[ModelWithout, ...]:
        level = grouped.level(g)
        return tuple(
            ModelWithout(
                model,
                _known(parts.part[m, g], model in judged),
                _known(parts.share[1, m, g], model in judged),
                bool(level[m]),
            )
            for model in chosen
            for m in [grouped.models.index(model)]
        )

    lost = behind(grouped.logprob, grouped.reference).sum(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = dict(zip(grouped.models, lost[1] / lost[0], strict=True))
    tokens = grouped.n[0] / grouped.n[0].sum()
    documents = grouped.documents
    return BySource(
        grouped.by,
        tuple(SourceRow(grouped.names[g], int(documents[g]), float(tokens[g]), without(g)) for g in listed),
        tuple(
            ModelWithout(m, _known(1.0, m in judged), _known(share[m], m in judged), m not in judged) for m in chosen
        ),
        0 if reason else len(grouped.names) - len(listed),
        reason,
    )


def _largest(grouped: Grouped, judged: list[int]) -> list[int]:
    """Return the groups to list, those with the most tokens first."""
    tokens = grouped.n[0] / grouped.n[0].sum()
    parts = np.nan_to_num(np.abs(grouped.left_out.part[judged])).max(axis=0)
    largest = np.argsort(-np.maximum(tokens, parts), kind="stable")[:MOST]
    return sorted(largest.tolist(), key=lambda g: -tokens[g])


def _known(value: float, known: bool) -> float | None:
    return float(value) if known and np.isfinite(value) else None


def read_by_source(folder: Path, gap: Gap) -> BySource | None:
    """Return `by_source` of a result from its cells; None without ``cells.parquet``."""
    path = folder / "cells.parquet"
    if not path.is_file():
        return None
    cells = sum_cells(
        path,
        [name for name in NEEDED if name in keys_of(path)],
        [name for names in gap.seeds.values() for name in names],
    )
    return by_source(gap, cells, sources_of(folder, gap, cells["document"].to_numpy()))


def sources_of(folder: Path, gap: Gap, documents: np.ndarray) -> Mapping[int, str] | None:
    """Return the source of each document of a result, from its table of documents or its labels; None without either.

    ``documents``: of the cells. Raises `FormatError` if one of them is missing there.
    """
    beside = [folder, *(Path(row.run).parent for row in gap.rows if row.run)]
    for path in (folder / DOCUMENTS, *(each / "labels" / "labels.json" for each in beside)):
        if not path.is_file():
            continue
        if path.name == DOCUMENTS:
            table = read_documents(path)
            found = dict(zip(table["document"].tolist(), table["source"].tolist(), strict=True))
        else:
            record = read_record(path, LabelsRecord, newest=FORMAT)
            if record.evaluation.fingerprint != gap.fingerprint:
                continue
            found = dict(enumerate(map(source_name, record.sources)))
        if lacking := set(np.unique(documents).tolist()) - found.keys():
            raise FormatError(f"{path}: no document {min(lacking)}, which cells.parquet has{remedy_for(path)}")
        return found
    return None
