"""The additive decomposition: the gap of each model, taken apart by several partitions of the tokens.

For any partition into slices s with shares p_s, the contributions p_s·Δnll_s add up to the gap Δnll.
"""

from typing import Any, cast

import numpy as np
import pandas as pd

from argap.cells import PREFIX, models_of, sum_by

SLICES = ("AR hits", "other tokens")


def breakdowns(
    cells: pd.DataFrame, bins: dict[str, list[dict[str, Any]]], *, reference: str, hits: np.ndarray
) -> dict[str, list[dict[str, Any]]]:
    """``slice``, ``frequency`` (apart for repeated and other tokens), ``distance``, ``position``, ``domain``.

    ``bins``: the labels of the bins that the cells refer to; ``hits``: which cells are AR hits. Each entry
    holds ``bin, n, share``, each model's ``nll`` and the ``contribution`` of each but the reference (nats).
    """
    table = cells.assign(slice=np.where(hits, *SLICES), domain=cells["domain"].astype(str))
    for kind, described in bins.items():
        names = np.array([entry["label"] for entry in described], dtype=object)
        table[f"{kind} label"] = names[cells[kind].to_numpy()]
    return {
        "slice": _parts(table, ["slice"], "slice", reference),
        "frequency": _parts(table, ["repeated", "frequency", "frequency label"], "frequency label", reference),
        "distance": _parts(table, ["distance", "distance label"], "distance label", reference),
        "position": _parts(table, ["position", "position label"], "position label", reference),
        "domain": _parts(table, ["domain"], "domain", reference),
    }


def _parts(table: pd.DataFrame, by: list[str], label: str, reference: str) -> list[dict[str, Any]]:
    """One entry a group that holds tokens, in the order of ``by``."""
    models = models_of(table)
    total = int(table["n"].to_numpy().sum())
    sums = sum_by(cast(pd.DataFrame, table[[*by, "n", *(PREFIX + m for m in models)]]), by)
    parts = []
    for row in cast(list[dict[str, Any]], sums.to_dict("records")):
        logprob = {m: float(row[PREFIX + m]) for m in models}
        n = int(row["n"])
        entry: dict[str, Any] = {"bin": str(row[label]), "n": n, "share": n / total}
        if "repeated" in by:
            entry["repeated"] = bool(row["repeated"])
        entry["nll"] = {m: -logprob[m] / n for m in models}
        entry["contribution"] = {m: (logprob[reference] - logprob[m]) / total for m in models if m != reference}
        parts.append(entry)
    return parts
