"""GAP: from cells to the rows of the Zoology paper's Table 1, one for each model, with their parts."""

from datetime import UTC, datetime
from typing import TypedDict, cast

import numpy as np
import pandas as pd

from argap.bins import bins_of
from argap.breakdowns import breakdowns, share_by_threshold
from argap.cells import ar_hits, models_of, sum_by
from argap.errors import ArgapError
from argap.gap import share_closed
from argap.intervals import effective_documents
from argap.records import (
    GAP_FORMAT,
    Closed,
    ClosedShare,
    EvaluationRecord,
    Gap,
    GapRow,
    IndexRecord,
    ModelOnSlice,
    SliceResult,
    SliceScores,
)
from argap.resumable import environment
from argap.slices import slices_of_cells


def summarize(
    cells: pd.DataFrame,
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
    bins = bins_of(threshold, evaluation.seq_len)
    rows = gap_rows(cells, reference=reference, threshold=threshold, base=base, parameters=parameters, runs=runs)
    return Gap(
        format=GAP_FORMAT,
        rows=tuple(rows),
        reference=reference,
        threshold=threshold,
        bins=bins,
        breakdowns=breakdowns(cells, bins, reference=reference, threshold=threshold),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        fingerprint=evaluation.fingerprint,
        run=run,
        evaluation=evaluation,
        index=index,
        versions=environment()["versions"],
        curve=share_by_threshold(cells, bins, reference=reference),
        unit=evaluation.unit,
        **documents_of(cells),
    )


class Documents(TypedDict):
    """Fields of `Gap`."""

    documents: int
    effective_documents: float


def documents_of(cells: pd.DataFrame) -> Documents:
    """The number of documents in ``cells``, and how many of equal size they are worth."""
    n = sum_by(cast(pd.DataFrame, cells[["document", "n"]]), ["document"])["n"].to_numpy()
    return {"documents": len(n), "effective_documents": effective_documents(n)}


def gap_rows(
    cells: pd.DataFrame,
    *,
    reference: str,
    threshold: int | None,
    base: str | None = None,
    parameters: dict[str, int] | None = None,
    runs: dict[str, str] | None = None,
) -> list[GapRow]:
    """The rows of ``gap.json``, the reference's first, from cells with at least ``document``, ``repeated`` and
    ``frequency``. Raises `ArgapError` where ``base`` is not one of the models."""
    names = sorted(models_of(cells), key=lambda m: m != reference)
    if base is not None:
        check_base(base, names)
    hits = ar_hits(cells, threshold)
    whole, on_hits, other = slices_of_cells(cells, {"ar_hits": hits, "other": np.logical_not(hits)}, reference)
    overall, ar, rest = ({m.model: m for m in part.models} for part in (whole, on_hits, other))
    rows = []
    for name in names:
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
                run=(runs or {}).get(name, ""),
                parameters=(parameters or {}).get(name),
            )
        )
    return rows


def check_base(base: str, models: list[str]) -> None:
    """Raise `ArgapError` where ``base`` is not one of the models compared."""
    if base not in models:
        raise ArgapError(f"`base` {base}: not one of the models compared, which are {', '.join(models)}")


def _scores(part: SliceResult, model: ModelOnSlice) -> SliceScores:
    return SliceScores(part.n, model.nll, model.ppl)


def _closed(
    model: str, base: str | None, reference: str, overall: dict[str, ModelOnSlice], hits: dict[str, ModelOnSlice]
) -> Closed | None:
    """The share of the base's gap that a model closes, overall and on the AR hits."""
    if base is None or model in (base, reference):
        return None
    shares: list[ClosedShare | None] = []
    for scores in (overall, hits):
        own, worst, best = (scores[name].nll for name in (model, base, reference))
        if own is None or worst is None or best is None:
            shares.append(None)
        else:
            shares.append(ClosedShare(*share_closed(own, worst, best)))
    return Closed(base, *shares)
