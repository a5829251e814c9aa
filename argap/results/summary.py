"""GAP: from cells to the rows of the Zoology paper's Table 1, one for each model, with their parts."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import get_args

import numpy as np
import pandas as pd

from argap.errors import ArgapError
from argap.files.resumable import environment
from argap.metric.bins import bins_of
from argap.metric.intervals import effective_documents
from argap.metric.share import share_closed
from argap.records import (
    GAP_FORMAT,
    Breakdowns,
    Closed,
    EvaluationRecord,
    Gap,
    GapRow,
    IndexRecord,
    ModelOnSlice,
    SliceResult,
    SliceScores,
)
from argap.slices.cells import CellFile, hits_and_others, models_of
from argap.slices.figures import documents_of, slices_of_cells
from argap.slices.margins import Margins
from argap.slices.partitions import By, Partitions, hits_by_threshold, share_by_threshold


def summarize(
    cells: pd.DataFrame | CellFile | Margins,
    *,
    reference: str,
    threshold: int | None,
    evaluation: EvaluationRecord,
    index: IndexRecord | None,
    base: str | None = None,
    run: str = "",
    parameters: dict[str, int] | None = None,
    runs: dict[str, str] | None = None,
) -> Gap:
    """``gap.json`` of the models in ``cells``; the reference's row comes first.

    ``base``: the model whose gap the others close (`ArgapError` where it is not one of them). ``run``: the result's
    folder; ``runs`` and ``parameters``: of each model. Without an ``index`` the ``threshold`` is None, and the hits are
    all repeated bigrams.
    """
    if base is not None:
        check_base(base, models_of(cells))
    bins = bins_of(threshold, evaluation.seq_len)
    partitions = Partitions(bins, threshold)

    def masks(part: pd.DataFrame) -> dict[str, np.ndarray]:
        return hits_and_others(part, threshold) | partitions.masks(part) | hits_by_threshold(part, bins)

    whole, *others = slices_of_cells(cells, masks, reference)
    scored = {each.name: each for each in others}
    _, n = documents_of(cells)
    rows = gap_rows(whole, scored, base, parameters or {}, runs or {})
    return Gap(
        format=GAP_FORMAT,
        rows=tuple(rows),
        reference=reference,
        threshold=threshold,
        bins=bins,
        breakdowns=Breakdowns(**{by: partitions.parts(by, whole, scored) for by in get_args(By)}),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        fingerprint=evaluation.fingerprint,
        run=run,
        evaluation=evaluation,
        index=index,
        versions=environment()["versions"],
        curve=share_by_threshold(bins, scored),
        unit=evaluation.unit,
        documents=len(n),
        effective_documents=effective_documents(n),
    )


def gap_rows(
    whole: SliceResult,
    scored: Mapping[str, SliceResult],
    base: str | None,
    parameters: Mapping[str, int],
    runs: Mapping[str, str],
) -> list[GapRow]:
    """The rows of ``gap.json``, the reference's first, from all tokens and the slices of `hits_and_others`."""
    on_hits, other = scored["ar_hits"], scored["other"]
    overall, ar, rest = ({m.model: m for m in part.models} for part in (whole, on_hits, other))
    reference = next(name for name, model in overall.items() if model.reference)
    rows = []
    for name in sorted(overall, key=lambda m: m != reference):
        closed = _closed(name, base, reference, overall, ar)
        rows.append(
            GapRow(
                model=name,
                reference=name == reference,
                overall=_scores(whole, overall[name]),
                ar_hits=_scores(on_hits, ar[name]),
                other=_scores(other, rest[name]),
                share_ar_hits=on_hits.share,
                gap_due_to_ar=ar[name].gap_due_to,
                delta=overall[name].contribution,
                delta_ar=ar[name].contribution,
                closed=closed,
                run=runs.get(name, ""),
                parameters=parameters.get(name),
            )
        )
    return rows


def check_base(base: str, models: list[str]) -> None:
    """Raise `ArgapError` where ``base`` is not one of the models compared."""
    if base not in models:
        raise ArgapError(f"`base` {base}: not one of the models compared, which are {', '.join(models)}")


def _scores(part: SliceResult, model: ModelOnSlice) -> SliceScores:
    return SliceScores(part.n, model.nll, model.ppl, model.reason)


def _closed(
    model: str, base: str | None, reference: str, overall: dict[str, ModelOnSlice], hits: dict[str, ModelOnSlice]
) -> Closed | None:
    """The share of the base's gap that a model closes, overall and on the AR hits."""
    if base is None or model in (base, reference):
        return None
    return Closed(base, *(share_closed(*(on[name].nll for name in (model, base, reference))) for on in (overall, hits)))
