"""Slices and parts of the gap as the rows of data frames, whose columns `argap.result.Result` documents."""

from collections.abc import Sequence
from math import inf

import pandas as pd

from argap.records import Bin, Interval, Part, SliceResult
from argap.slices.figures import ALL


def slice_frame(slices: Sequence[SliceResult], *, more: bool = False) -> pd.DataFrame:
    """The columns of `argap.result.Result.table`; ``more``: those of `argap.result.Result.gap`."""
    rows = []
    for each in slices:
        for model in each.models:
            row: dict[str, object] = {
                "model": model.model,
                "slice": "overall" if each.name == ALL else each.name,
                "n": each.n,
                "share": each.share,
                "nll": inf if model.reason else model.nll,
                "ppl": inf if model.reason else model.ppl,
            }
            for name in ("delta", "contribution"):
                difference = getattr(model, name)
                row[name] = None if difference is None else difference.nll
                row |= _ends(name, difference and difference.ci95)
            due = model.gap_due_to
            row["gap_due_to"] = due and due.value
            row |= _ends("gap_due_to", due and due.ci95)
            row["case"] = due and due.case
            row["unresolved"] = due and due.unresolved
            if more:
                row |= {"ar_hits": each.ar_hits, "where": each.where}
            rows.append(row)
    frame = pd.DataFrame(rows)
    numbers = [name for name in frame.columns if name not in ("model", "slice", "n", "case", "unresolved", "where")]
    return frame.astype(dict.fromkeys(numbers, "float64"))


def part_row(part: Part, model: str, bounds: Bin | None, repeated: bool) -> dict[str, object]:
    """A row of `argap.result.Result.breakdown`; ``repeated``: whether there is a column that says so."""
    row: dict[str, object] = {"bin": part.bin}
    if bounds is not None:
        row |= {"low": bounds.low, "high": bounds.high}
    if repeated:
        row["repeated"] = part.repeated
    row |= {"n": part.n, "share": part.share, "model": model, "nll": part.nll.get(model, float("nan"))}
    row["contribution"] = part.contribution.get(model, float("nan"))
    return row | _ends("contribution", part.ci95.get(model))


def _ends(name: str, ends: Interval | None) -> dict[str, float]:
    low, high = ends or (float("nan"), float("nan"))
    return {f"{name}_low": low, f"{name}_high": high}
