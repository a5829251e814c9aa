"""GAP: from cells to ``gap.json``, one row of the paper's Table 1 for each model, with its parts."""

from datetime import UTC, datetime
from typing import Any

import numpy as np
import pandas as pd

from argap.bins import distance_bins, frequency_bins, position_bins
from argap.bootstrap import Sums, bootstrap
from argap.cells import PREFIX, ar_hits, models_of
from argap.gap import gap_due_to_ar, share_closed

Slice = dict[str, Any]


def summarize(
    cells: pd.DataFrame, *, reference: str, threshold: float, seq_len: int, base: str | None = None
) -> dict[str, Any]:
    """``rows``, ``bins`` and ``breakdowns`` of ``gap.json``; the reference's row comes first.

    ``base``: the model whose gap the others close (``argap compare --base``).
    """
    hits = ar_hits(cells, threshold)
    models = sorted(models_of(cells), key=lambda m: m != reference)
    rows = [_row(cells, hits, model, reference) for model in models]
    if base is not None:
        _add_closed(rows, base, reference)
    return {
        "rows": rows,
        "reference": reference,
        "threshold": threshold,
        "bins": {
            "frequency": frequency_bins(threshold).describe(),
            "distance": distance_bins(seq_len).describe(),
            "position": position_bins(seq_len).describe(),
        },
        "breakdowns": breakdowns(cells, hits, models, reference, threshold, seq_len),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def breakdowns(
    cells: pd.DataFrame, hits: np.ndarray, models: list[str], reference: str, threshold: float, seq_len: int
) -> dict[str, list[dict[str, Any]]]:
    """The additive decomposition: for each kind a partition whose contributions p_s·Δnll_s sum to Δnll."""
    frequency = [b["label"] for b in frequency_bins(threshold).describe()]
    distance = [b["label"] for b in distance_bins(seq_len).describe()]
    position = [b["label"] for b in position_bins(seq_len).describe()]
    total = int(cells["n"].sum())

    def parts(by: list[Any], labels: list[str], repeated: bool = False) -> list[dict[str, Any]]:
        columns = ["n", *(PREFIX + m for m in models)]
        found = []
        for key, part in cells[columns].groupby(by, observed=True, sort=True)[columns].sum().iterrows():
            keys = key if isinstance(key, tuple) else (key,)
            place = keys[-1]
            entry = _part(part, labels[place] if isinstance(place, (int, np.integer)) else str(place), total)
            if repeated:
                entry["repeated"] = bool(keys[0])
            found.append(entry)
        return found

    def _part(sums: pd.Series, label: str, total: int) -> dict[str, Any]:
        n = int(sums["n"])
        nll = {m: float(-sums[PREFIX + m] / n) for m in models}
        contribution = {m: float((sums[PREFIX + reference] - sums[PREFIX + m]) / total) for m in models}
        del contribution[reference]
        return {"bin": label, "n": n, "share": n / total, "nll": nll, "contribution": contribution}

    return {
        "slice": parts([np.where(hits, 0, 1)], ["AR hits", "other tokens"]),
        "frequency": parts([cells["repeated"], cells["frequency"]], frequency, repeated=True),
        "distance": parts([cells["distance"]], distance),
        "position": parts([cells["position"]], position),
        "domain": parts([cells["domain"].astype(str)], []),
    }


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
    return {"n": count, "nll": nll, "ppl": float(np.exp(nll))}


def _document_sums(cells: pd.DataFrame, hits: np.ndarray, model: str, reference: str) -> Sums:
    n = cells["n"].to_numpy(dtype=np.float64)
    columns = pd.DataFrame(
        {
            "n": n,
            "model": cells[PREFIX + model],
            "model_hits": cells[PREFIX + model] * hits,
            "reference": cells[PREFIX + reference],
            "reference_hits": cells[PREFIX + reference] * hits,
        }
    )
    sums = columns.groupby(cells["document"].to_numpy(), sort=True).sum()
    return Sums(*(sums[name].to_numpy() for name in Sums._fields))


def _add_closed(rows: list[dict[str, Any]], base: str, reference: str) -> None:
    """``closed`` of each row: the share of the base's gap that the model closes, overall and on the hits."""
    by_name = {row["model"]: row for row in rows}
    for row in rows:
        if row["model"] in (base, reference):
            continue
        row["closed"] = {"base": base}
        for part in ("overall", "ar_hits"):
            nlls = [by_name[name][part]["nll"] for name in (row["model"], base, reference)]
            closed = None if None in nlls else share_closed(*nlls)
            row["closed"][part] = None if closed is None else closed._asdict()
