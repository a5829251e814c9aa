"""Compute GAP from cells: the estimates of every model by slice, by partition and by threshold."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import get_args

import numpy as np
import pandas as pd

from argap.errors import ArgapError
from argap.files.resumable import environment
from argap.metric.bins import bins_of
from argap.metric.share import direction, share_closed
from argap.records import (
    GAP_FORMAT,
    Bins,
    Closed,
    EvaluationRecord,
    Gap,
    GapRow,
    IndexRecord,
    Part,
    estimates_of,
)
from argap.slices.cells import CellFile, models_of
from argap.slices.figures import WHOLE, Key, Seeds, documents_of, slices_of_cells
from argap.slices.margins import Margins
from argap.slices.partitions import HITS, By, curve, groups, hits_by_threshold, in_order


def summarize(
    cells: pd.DataFrame | CellFile | Margins,
    *,
    reference: str,
    threshold: int | None,
    evaluation: EvaluationRecord,
    index: IndexRecord | None,
    bins: Bins | None = None,
    base: str | None = None,
    run: str = "",
    parameters: dict[str, int] | None = None,
    runs: dict[str, str] | None = None,
    seeds: Seeds | None = None,
) -> Gap:
    """Compute the ``gap.json`` of the models in ``cells``, the reference first.

    ``base``: the model whose gap the others close (`ArgapError` if it is not one of them). ``run``: the result's
    folder; ``runs`` and ``parameters``: by model. Without an ``index`` the ``threshold`` is None, and every repeated
    bigram is a hit. ``bins``: those that the cells refer to; None: without the bounds of the ladder. ``seeds``: the
    columns of the cells of each model; None: every column is a model.
    """
    if base is not None:
        check_base(base, list(seeds or models_of(cells)))
    bins = bins or bins_of(threshold, evaluation.seq_len)

    def masks(part: pd.DataFrame) -> dict[Key, np.ndarray]:
        return groups(part, bins, threshold) | hits_by_threshold(part, bins)

    scored = slices_of_cells(cells, masks, reference, seeds=seeds)
    _, n = documents_of(cells)
    partitions = [[scored[WHOLE]], *(in_order(by, scored) for by in get_args(By)), curve(scored, threshold)]
    return Gap(
        format=GAP_FORMAT,
        reference=reference,
        threshold=threshold,
        unit=evaluation.unit,
        rows=gap_rows(scored, reference, base, parameters or {}, runs or {}, seeds or {}),
        slices=(),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        run=run,
        evaluation=evaluation,
        index=index,
        versions=environment()["versions"],
        documents=len(n),
        bins=bins,
        estimates=estimates_of(partitions),
    )


def gap_rows(
    scored: Mapping[Key, Part],
    reference: str,
    base: str | None,
    parameters: Mapping[str, int],
    runs: Mapping[str, str],
    seeds: Seeds,
) -> tuple[GapRow, ...]:
    """Return the models of ``gap.json``, the reference first. ``scored``: at least all tokens and the AR hits."""
    on = scored[WHOLE], scored[HITS]
    return tuple(
        GapRow(
            model,
            None if each.delta is None else direction(each.delta, each.delta_ci95),
            parameters.get(model),
            runs.get(model, ""),
            _closed(model, base, reference, on),
            seeds=tuple(seeds.get(model, ())) if len(seeds.get(model, ())) > 1 else (),
        )
        for model, each in scored[WHOLE].estimates.items()
    )


def check_base(base: str, models: list[str]) -> None:
    """Raise `ArgapError` if ``base`` is not one of the models compared."""
    if base not in models:
        raise ArgapError(f"`base` {base}: not one of the models compared, which are {', '.join(models)}")


def _closed(model: str, base: str | None, reference: str, on: tuple[Part, Part]) -> Closed | None:
    """Return the share of the base's gap that a model closes, overall and on the AR hits."""
    if base is None or model in (base, reference):
        return None
    return Closed(base, *(share_closed(*(part[name].nll for name in (model, base, reference))) for part in on))
