"""Convert estimates to data frames; `argap.result.Result` documents their columns."""

from collections.abc import Sequence
from math import inf

import pandas as pd

from argap.records import ALL, Bin, ContextUse, Fidelity, Interval, Part, Quantiles

CI = "_ci95"


def slice_frame(slices: Sequence[Part], *, more: bool = False) -> pd.DataFrame:
    """Return the columns of `argap.result.Result.table`; ``more``: those of `argap.result.Result.gap`."""
    rows = []
    for part in slices:
        for model, each in part.estimates.items():
            row: dict[str, object] = {
                "model": model,
                "slice": "overall" if part.bin == ALL else part.bin,
                "n": each.n,
                "share_of_tokens": each.share_of_tokens,
                "nll": inf if each.infinite else each.nll,
                "ppl": inf if each.infinite else each.ppl,
                "delta": each.delta,
                **_ends("delta", each.delta_ci95),
                "contribution": each.contribution,
                **_ends("contribution", each.contribution_ci95),
                "share": each.share,
                **_ends("share", each.share_ci95),
                "paper_rule": each.paper_rule,
                "reason": each.reason,
            }
            if more:
                row |= {"ar_hits": part.about.ar_hits, "where": part.about.where}
            rows.append(row)
    frame = pd.DataFrame(rows)
    numbers = [name for name in frame.columns if name not in ("model", "slice", "n", "reason", "where")]
    return frame.astype(dict.fromkeys(numbers, "float64"))


def context_frame(points: Sequence[ContextUse]) -> pd.DataFrame:
    """Return the columns of `argap.result.Result.context_use`."""
    rows = []
    for each in points:
        row: dict[str, object] = {"model": each.model, "context": each.context, "n": each.n}
        for name in ("nll", "gain", "delta"):
            row |= {name: _number(getattr(each, name))} | _ends(name, getattr(each, f"{name}_ci95"))
        rows.append(row)
    return pd.DataFrame(rows).astype({"context": "Int64"})


def fidelity_frame(found: Sequence[Fidelity]) -> pd.DataFrame:
    """Return the columns of `argap.result.Result.fidelity`."""
    rows = []
    for each in found:
        row: dict[str, object] = {"model": each.model, "slice": "overall" if each.name == ALL else each.name}
        for name in Fidelity.__struct_fields__[2:]:
            value = getattr(each, name)
            if name == "quantiles":
                row |= dict.fromkeys(Quantiles._fields) if value is None else value._asdict()
            else:
                row |= _ends(name[: -len(CI)], value) if name.endswith(CI) else {name: value}
        rows.append(row)
    frame = pd.DataFrame(rows)
    return frame.astype(dict.fromkeys(frame.columns[3:], "float64"))


def part_rows(part: Part, bounds: Bin | None) -> list[dict[str, object]]:
    """Return the rows of `argap.result.Result.breakdown` for one bin."""
    row: dict[str, object] = {"bin": part.bin}
    if bounds is not None:
        row |= {"low": bounds.low, "high": bounds.high}
    if part.repeated is not None:
        row["repeated"] = part.repeated
    row |= {"n": part.n, "share_of_tokens": part.share_of_tokens}
    return [
        row
        | {"model": model, "nll": _number(each.nll), "contribution": _number(each.contribution)}
        | _ends("contribution", each.contribution_ci95)
        | {"share": _number(each.share)}
        | _ends("share", each.share_ci95)
        for model, each in part.estimates.items()
    ]


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _ends(name: str, ends: Interval | None) -> dict[str, float]:
    low, high = ends or (float("nan"), float("nan"))
    return {f"{name}_low": low, f"{name}_high": high}
