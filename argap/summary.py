"""GAP: from cells to ``gap.json``, one row of the paper's Table 1 for each model, with its parts."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from argap.bins import distance_bins, frequency_bins, position_bins
from argap.bootstrap import Sums, bootstrap
from argap.breakdowns import breakdowns
from argap.cells import PREFIX, ar_hits, models_of, sum_by
from argap.errors import ArgapError
from argap.gap import gap_due_to_ar, perplexity, share_closed

Slice = dict[str, Any]


def summarize(
    cells: pd.DataFrame, *, reference: str, threshold: float, seq_len: int, base: str | None = None
) -> dict[str, Any]:
    """``rows``, ``bins`` and ``breakdowns`` of ``gap.json``; the reference's row comes first.

    ``base``: the model whose gap the others close (``argap compare --base``); `ArgapError` where it is none
    of them.
    """
    hits = ar_hits(cells, threshold)
    rows = gap_rows(cells, reference=reference, threshold=threshold, base=base)
    bins = {
        "frequency": frequency_bins(threshold).describe(),
        "distance": distance_bins(seq_len).describe(),
        "position": position_bins(seq_len).describe(),
    }
    return {
        "rows": rows,
        "reference": reference,
        "threshold": threshold,
        "bins": bins,
        "breakdowns": breakdowns(cells, bins, reference=reference, hits=hits),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def gap_rows(cells: pd.DataFrame, *, reference: str, threshold: float, base: str | None = None) -> list[dict[str, Any]]:
    """``rows`` of ``gap.json``, the reference's first, from cells that hold at least ``document``, ``repeated``
    and ``frequency``. Raises `ArgapError` where ``base`` is none of the models."""
    hits = ar_hits(cells, threshold)
    models = sorted(models_of(cells), key=lambda m: m != reference)
    rows = [_row(cells, hits, model, reference) for model in models]
    if base is not None:
        _add_closed(rows, base, reference)
    return rows


def _row(cells: pd.DataFrame, hits: np.ndarray, model: str, reference: str) -> dict[str, Any]:
    n = cells["n"].to_numpy()
    logprob = cells[PREFIX + model].to_numpy()
    share = float(n[hits].sum() / n.sum())
    row: dict[str, Any] = {
        "model": model,
        "reference": model == reference,
        "overall": _slice(n, logprob),
        "ar_hits": _slice(n[hits], logprob[hits]),
        "other": _slice(n[~hits], logprob[~hits]),
        "share_ar_hits": share,
        "gap_due_to_ar": None,
        "delta": None,
        "delta_ar": None,
    }
    if model == reference:
        return row
    other = cells[PREFIX + reference].to_numpy()
    difference = logprob - other
    delta = float(difference.sum() / n.sum())
    delta_hits = float(difference[hits].sum() / n[hits].sum()) if n[hits].sum() else 0.0
    result = gap_due_to_ar(delta_hits, delta, share)
    intervals = bootstrap(_document_sums(cells, hits, model, reference))
    row["gap_due_to_ar"] = {**result._asdict(), "ci95": intervals.gap_due_to_ar, "reason": intervals.reason}
    row["delta"] = {"nll": -delta + 0.0, "ci95": intervals.delta}
    row["delta_ar"] = {"nll": -delta_hits * share + 0.0, "ci95": intervals.delta_ar}
    return row


def _slice(n: np.ndarray, logprob: np.ndarray) -> Slice:
    count = int(n.sum())
    if not count:
        return {"n": 0, "nll": None, "ppl": None}
    nll = float(-logprob.sum() / count)
    return {"n": count, "nll": nll, "ppl": perplexity(nll)}


def _document_sums(cells: pd.DataFrame, hits: np.ndarray, model: str, reference: str) -> Sums:
    n = cells["n"].to_numpy(dtype=np.float64)
    columns = pd.DataFrame(
        {
            "document": cells["document"],
            "n": n,
            "model": cells[PREFIX + model],
            "model_hits": cells[PREFIX + model] * hits,
            "reference": cells[PREFIX + reference],
            "reference_hits": cells[PREFIX + reference] * hits,
        }
    )
    sums = sum_by(columns, ["document"])
    return Sums(*(sums[name].to_numpy() for name in Sums._fields))


def _add_closed(rows: list[dict[str, Any]], base: str, reference: str) -> None:
    """``closed`` of each row: the share of the base's gap that the model closes, overall and on the hits."""
    by_name = {row["model"]: row for row in rows}
    if base not in by_name:
        raise ArgapError(f"--base {base}: not one of the models compared, which are {', '.join(by_name)}")
    for row in rows:
        if row["model"] in (base, reference):
            continue
        shares: dict[str, Any] = {"base": base}
        for part in ("overall", "ar_hits"):
            nlls = [by_name[name][part]["nll"] for name in (row["model"], base, reference)]
            closed = None if None in nlls else share_closed(*nlls)
            shares[part] = None if closed is None else closed._asdict()
        row["closed"] = shares
