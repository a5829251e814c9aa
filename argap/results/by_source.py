"""Compute the share of each source in a gap or lead, and the share of the AR hits without that source.

A gap may rest on one source, whose text may resemble no training text. The table of sources shows it: leave one out,
and see whether the share on AR hits stays.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from argap.errors import FormatError
from argap.files.regular import is_there
from argap.files.remedies import remedy_for
from argap.metric.documents import LeftOut, behind, leave_one_source_out
from argap.metric.influence import effective_number
from argap.metric.share import LEVEL, NO_SHARE
from argap.records import Gap, Interval, LabelsRecord, Record, read_record
from argap.results.sources import DOCUMENTS, read_documents, source_name
from argap.slices.cells import (
    PREFIX,
    keys_of,
    mean_over_seeds,
    sum_by,
    sum_cells,
    with_models,
)
from argap.slices.figures import WHOLE, slices_of_cells
from argap.slices.margins import sum_hits
from argap.slices.partitions import HITS, hits_and_others
from argap.tokens.labels import FORMAT

MOST = 15
"""Maximum number of sources listed: those with the largest share of the tokens or of a gap."""
FEWEST = 10
"""Fewer sources, counted by `BySource.worth`, give intervals that say next to nothing."""
NEEDED = ("document", "domain", "repeated", "frequency")
"""Keys of the cells that identify sources and AR hits."""


class ModelWithout(Record, frozen=True, omit_defaults=False):
    """A model's gap or lead in one source, and in all others."""

    model: str
    part: float | None
    """The source's share of the gap or lead; None if the model is level in the whole text."""
    hits: float | None
    """Share of the AR hits in the gap or lead on all other sources; None if the model is level there."""
    reason: str | None
    """Why ``hits`` is None, or must not be claimed."""


class SourceRow(Record, frozen=True, omit_defaults=False):
    """One source, left out."""

    name: str
    documents: int
    share_of_tokens: float
    models: tuple[ModelWithout, ...]


class OverSources(Record, frozen=True, omit_defaults=False):
    """The intervals of a model's gap or lead, with sources in place of documents as units."""

    model: str
    delta_ci95: Interval | None
    share_ci95: Interval | None
    """Of the share of the AR hits; None also if it must not be claimed."""


class BySource(Record, frozen=True, omit_defaults=False):
    """The sources of a text, largest first, and the models compared with the reference."""

    by: str
    """``source`` or ``domain``."""
    sources: tuple[SourceRow, ...]
    hits: tuple[ModelWithout, ...]
    """The same with nothing left out: ``part`` is 1."""
    worth: float
    """Effective number of sources: how many of equal size would hold the tokens as unequally."""
    over: tuple[OverSources, ...]
    """The models of ``hits``; empty for domains, if there is nothing to leave out, and below `FEWEST` sources."""
    smaller: int
    """Number of sources not listed."""
    reason: str | None
    """Why there is nothing to leave out; ``sources`` is then empty."""


class Grouped(NamedTuple):
    """Sums over groups of documents or of tokens. Legend: G groups, M models."""

    by: str
    """``source`` or ``domain``."""
    names: list[str]
    """``[G]``."""
    documents: np.ndarray
    """``[G]``: number of documents with a token of the group."""
    n: np.ndarray
    """``[2, G]``: scored tokens, and AR hits."""
    logprob: np.ndarray
    """``[2, M, G]``: their sums of log p."""
    level: np.ndarray
    """bool ``[M]``: whether the models are level with the reference."""
    models: list[str]
    reference: int

    @property
    def left_out(self) -> LeftOut:
        """Return each group's share of the gaps, and the shares of the slices (all, AR hits) without it."""
        return leave_one_source_out(behind(self.logprob, self.reference), np.arange(len(self.names)))


def group(gap: Gap, sums: pd.DataFrame, source_of: Mapping[int, str] | None = None) -> Grouped:
    """Group documents by source; by domain if ``source_of`` (source by document) is None, or says too little.

    One source, or one per document, says too little. ``sums``: of `argap.slices.margins.sum_hits`, of
    all seeds of the models in ``gap``, whose means are summed.
    """
    source_of = _telling(source_of)
    columns = ["n", *(PREFIX + model for model in gap.models)]
    sums = mean_over_seeds(sums, gap.seeds)
    sums = sum_by(
        sums.loc[:, ["document", "hit", *columns]].assign(name=_names(sums, source_of)), ["name", "document", "hit"]
    )
    names, code = np.unique(sums["name"].to_numpy(object), return_inverse=True)
    hit, values = sums["hit"].to_numpy(bool), sums[columns].to_numpy(np.float64).T
    total = np.stack(
        [[np.bincount(code[rows], column[rows], len(names)) for column in values] for rows in (hit | True, hit)]
    )
    return Grouped(
        by="domain" if source_of is None else "source",
        names=names.tolist(),
        documents=sums.assign(name=code).groupby("name")["document"].nunique().to_numpy(),
        n=total[:, 0],
        logprob=total[:, 1:],
        level=np.array([gap.directions.get(model) == LEVEL for model in gap.models]),
        models=gap.models,
        reference=gap.models.index(gap.reference),
    )


def _telling(source_of: Mapping[int, str] | None) -> Mapping[int, str] | None:
    """Return the sources if there are several, but fewer than documents; else None, and domains are used."""
    several = source_of is not None and 1 < len(set(source_of.values())) < len(source_of)
    return source_of if several else None


def _names(cells: pd.DataFrame, source_of: Mapping[int, str] | None) -> np.ndarray:
    names = cells["domain"] if source_of is None else cells["document"].map(source_of.get)
    return names.astype(object).fillna("").to_numpy()  # the table of documents may lack one, which is refused later


def by_source(gap: Gap, cells: pd.DataFrame, source_of: Mapping[int, str] | None) -> BySource:
    """Leave out each source in turn.

    ``cells``: of all seeds of the models in ``gap``, at its threshold. ``source_of``: see `group`.
    """
    seeds = [name for names in gap.seeds.values() for name in names]
    grouped = group(gap, sum_hits(with_models(cells, seeds), gap.threshold, gap.bins), source_of)
    chosen = [model for model in grouped.models if model in gap.directions]
    judged = [model for model in chosen if gap.directions[model] != LEVEL]
    reason = None
    if not chosen:
        reason = "No other model with a finite ΔNLL to compare."
    elif len(grouped.names) == 1:
        reason = f"All of the text is one {grouped.by}, {grouped.names[0]}: leaving it out leaves nothing."
    elif not judged:
        reason = f"No model has a gap or a lead, so the {grouped.by}s have no share of one."
    tokens, part = grouped.n[0] / grouped.n[0].sum(), grouped.left_out.part
    listed: list[int] = []
    if reason is None:
        most = np.abs(part[[grouped.models.index(model) for model in judged]]).max(axis=0)
        listed = np.argsort(-np.maximum(tokens, most), kind="stable")[:MOST].tolist()
    distinct, code = np.unique(_names(cells, _telling(source_of)), return_inverse=True)

    def without(g: int) -> tuple[ModelWithout, ...]:
        others = cells.loc[code != distinct.tolist().index(grouped.names[g])]
        masks = hits_and_others(others, gap.threshold, gap.bins)
        hits = slices_of_cells(others, masks, gap.reference, seeds=gap.seeds)[HITS]
        return tuple(
            ModelWithout(model, float(part[grouped.models.index(model), g]), hits[model].share, hits[model].reason)
            if model in judged
            else _level(model)
            for model in chosen
        )

    worth = float(effective_number(grouped.n[0]))
    few = reason is not None or grouped.by == "domain" or worth < FEWEST
    whole = (
        ModelWithout(model, 1.0, gap.on_hits[model].share, gap.on_hits[model].reason)
        if model in judged
        else _level(model)
        for model in chosen
    )
    return BySource(
        by=grouped.by,
        sources=tuple(
            SourceRow(grouped.names[g], int(grouped.documents[g]), float(tokens[g]), without(g))
            for g in sorted(listed, key=lambda g: -tokens[g])
        ),
        hits=tuple(whole),
        worth=worth,
        over=() if few else tuple(_over_sources(gap, cells, code, chosen)),
        smaller=0 if reason else len(grouped.names) - len(listed),
        reason=reason,
    )


def _over_sources(gap: Gap, cells: pd.DataFrame, source: np.ndarray, models: Sequence[str]) -> Iterator[OverSources]:
    """Yield the intervals of ``models``; ``source``: the number of each cell's source."""
    masks = hits_and_others(cells, gap.threshold, gap.bins)
    of_source = cells.assign(document=source)
    parts = slices_of_cells(of_source, masks, gap.reference, seeds=gap.seeds)
    for model in models:
        share = None if (hits := parts[HITS][model]).reason else hits.share_ci95
        yield OverSources(model, parts[WHOLE][model].delta_ci95, share)


def _level(model: str) -> ModelWithout:
    return ModelWithout(model, None, None, NO_SHARE)


def read_by_source(folder: Path, gap: Gap) -> BySource | None:
    """Return `by_source` of a result from its cells; None without ``cells.parquet``."""
    path = folder / "cells.parquet"
    if not is_there(path):
        return None
    columns = [name for seeds in gap.seeds.values() for name in seeds]
    cells = sum_cells(path, [name for name in keys_of(path, gap) if name in NEEDED], columns, gap)
    return by_source(gap, cells, sources_of(folder, gap, cells["document"].to_numpy()))


def sources_of(folder: Path, gap: Gap, documents: np.ndarray) -> Mapping[int, str] | None:
    """Return the source of each document of a result, from its table of documents or its labels; None without either.

    ``documents``: of the cells. Raises `FormatError` if one of them is missing there.
    """
    beside = [folder, *(Path(row.run).parent for row in gap.rows if row.run)]
    for path in (folder / DOCUMENTS, *(each / "labels" / "labels.json" for each in beside)):
        if not is_there(path):
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
