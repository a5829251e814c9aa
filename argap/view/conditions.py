"""Write the tokens of a part of a breakdown as a condition for the slice box."""

from argap.records import AR_HITS, Bin, Gap, Part
from argap.slices.conditions import COPIED_AS, hits_of, literal


def condition_of(part: Part, by: str, gap: Gap) -> str:
    """Return SQL over the columns of `argap.tokens.table` that selects the tokens of ``part`` in partition ``by``."""
    if by == "slice":
        hits = hits_of(gap.threshold)
        return hits if part.bin == AR_HITS else f"NOT ({hits})"
    if by in COPIED_AS:
        return COPIED_AS[by][part.bin]
    if by == "domain":
        return f"domain = {literal(part.bin)}"
    bounds = next(each for each in getattr(gap.bins, by) if each.label == part.bin)
    column = {"frequency": "train_count", "distance": "distance", "position": "pos"}[by]
    within = _within(column, bounds)
    if by != "frequency":
        return within
    return f"repeated AND {within}" if part.repeated else f"NOT repeated AND {within}"


def _within(column: str, bounds: Bin) -> str:
    if bounds.high is None:
        return f"{column} >= {bounds.low}"
    return (
        f"{column} = {bounds.low}" if bounds.low == bounds.high else f"{column} BETWEEN {bounds.low} AND {bounds.high}"
    )
